"""Rows of a table: types, hashing, deltas, snapshots, merging. Pure: pyarrow, no store, no Spark.

1. ``schema`` and ``types`` turn Spark's schema into Arrow's, and say what may change; ``conform`` casts.
2. ``murmur3`` and ``vnode`` route a row to its partition exactly as Spark would.
3. ``codec`` (with ``ipc``) writes an epoch's rows as a delta (Arrow) or a snapshot (Parquet), and reads
   them back within bounds that the manifest states.
4. ``merge`` (with ``identity``) applies deltas to a snapshot: one row a key, deletes included.
5. ``compaction`` decides which deltas are rewritten in an epoch, so that chains stay short.
6. ``info`` is the table that a manifest records, ``lineage`` what its rows follow on, ``feed`` which
   epochs a stream of changes may serve.
"""
