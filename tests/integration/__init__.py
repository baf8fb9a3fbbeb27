"""Tests with real parts: Spark, servers, processes. One directory a feature."""
