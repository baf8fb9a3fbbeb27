"""A checkpoint location from a checkpoint, so that the unmodified query goes on from there.

``api`` has what people call, and the order of the steps. ``plan`` decides, purely, which files are written:
state, operator metadata, source logs, ``metadata``, ``offsets``, ``commits``, in this order, so that Spark
never finds a log without what it speaks of. ``execute`` writes them through ``file_writer``; every byte is
verified before it has a name. ``lock`` marks the location as unfinished before the first file and until
after the last change to history and table: whoever repeats an interrupted restore takes the mark over, and
the one before stops at its next look at it. ``repartition`` is Spark's part, ``replace_stale`` puts a
restored location at the path of a stale one by two renames, ``rewind`` takes a query back whole,
``preflight`` says before a start whether the query fits its location, and ``checkpoint_rows`` reads rows
from a restored clone.
"""
