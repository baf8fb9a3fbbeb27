"""Spark's own state: files of a checkpoint location into a store, and back. Needs no Spark."""
