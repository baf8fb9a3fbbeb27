"""A checkpoint location from a checkpoint: plan, execute, preflight."""
