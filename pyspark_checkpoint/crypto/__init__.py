"""Encryption at rest: who has the store but not the keys reads nothing and forges nothing.

A user keeps master keys in a key ring (``keyring``), which never leaves the driver. Each run makes a data
key and stores it wrapped by the active master key (``data_keys``). An artifact is encrypted under a key
derived from the data key for it alone, and bound to its place in the history (``aead``); tasks receive
data keys, by value, and nothing else. Manifests, seals and statuses are authenticated under a data key
that tasks never get. Changing the master key rewraps data keys and touches no artifact.
``history.store_cipher`` brings the store.
"""
