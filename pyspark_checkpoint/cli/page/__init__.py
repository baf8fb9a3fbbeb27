"""The page that ``ckpt report`` writes: pure functions from a history to HTML without any script."""
