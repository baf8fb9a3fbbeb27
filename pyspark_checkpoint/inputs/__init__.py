"""What a query reads from: whether each source still has what comes after a checkpoint.

A restored query asks its sources for everything after the checkpoint's offsets. A source that has removed
some of it makes the query fail, or skips rows without a word. So whoever goes back asks first:

1. ``offset_reader`` reads the offsets of the checkpoint: which kind of source, and where it stands. Pure.
2. One module a kind of source asks the source what it still has, and decides.
3. ``check`` does both for every source; ``refuse_lost`` refuses by name.
"""
