"""Outputs that go back, with a real Spark."""
