"""Rows of a table: types, hashing, deltas, snapshots, merging. Pure: pyarrow, no store, no Spark."""
