"""A directory, on a local disk or one that many machines mount."""
