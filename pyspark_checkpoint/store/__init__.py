"""Bytes by key, with exact conditional writes, on memory, disk, S3, GCS and Azure."""
