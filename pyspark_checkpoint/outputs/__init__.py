"""Where a query's rows go, and how far: one file an output that can be asked and rolled back."""
