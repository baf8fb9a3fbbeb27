"""Savepoints for Spark Structured Streaming: see README.md."""
