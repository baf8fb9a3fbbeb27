"""Checkpoints of any streaming query, captured beside it by a listener.

1. ``listener``: Spark's callbacks. A query's start waits for ``startup_guard``; all others return at once.
2. ``startup_guard``: a query whose checkpoint location is behind its history, or has diverged from it, is
   stopped, restored or warned about, before its first batch.
3. ``worker``: one thread a query. Events and a timer wake it; it captures the newest committed batch.
4. ``checkpointer``: one capture. It lists the location, uploads the files that the history does not have,
   and publishes the manifest. Spark is never blocked, and nothing of the query's is changed.
5. ``sink_watcher``: a query whose ckpt-sink commits state with its rows needs no upload: its newest
   checkpoint is sealed instead.
6. ``health``: whether captures work, recorded in the store.

The listener is put together with the restore of a stale location in ``session.py``.
"""
