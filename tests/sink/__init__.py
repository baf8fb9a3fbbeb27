"""``format("ckpt-sink")`` in a real Spark: what is written, what is read, and what survives."""
