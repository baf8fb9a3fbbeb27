"""``CheckpointListener``: checkpoints of any streaming query, taken beside it."""
