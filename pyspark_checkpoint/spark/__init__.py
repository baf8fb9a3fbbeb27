"""The only part that imports pyspark: the sink, its readers, and what watches queries."""
