"""The checkpoint file manager of the jar: its contract, its faults, and real queries on top of it."""
