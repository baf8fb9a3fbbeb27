"""Encryption: AES-256-GCM under data keys, which a master key wraps. Pure: no store, no clock."""
