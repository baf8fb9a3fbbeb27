"""A process that writes to a local store until it is killed, and says what it has done."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from pathlib import Path

from pyspark_checkpoint.store.local.local_store import LocalStore


def sealed(payload: bytes) -> bytes:
    """Put a digest before a payload, so that a torn object can be told."""
    return hashlib.sha256(payload).digest() + payload


def is_whole(data: bytes) -> bool:
    """Say whether an object is exactly what ``sealed`` made."""
    return hashlib.sha256(data[32:]).digest() == data[:32]


def main() -> None:
    root, name, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    chance = random.Random(seed)
    store = LocalStore(root)
    os.write(1, b"ready\n")
    step = 0
    while True:
        payload = chance.randbytes(chance.choice([10, 5_000, 400_000, 2_000_000]))
        store.put(f"created/{name}/{step}", sealed(payload), if_absent=True)
        os.write(1, f"created {step}\n".encode())
        store.put("replaced", sealed(payload))
        stored = store.read("counter")
        store.put("counter", sealed(str(int(stored.data[32:]) + 1).encode()), if_match=stored.version)
        os.write(1, b"counted\n")
        if step % 4 == 3:
            store.delete([f"created/{name}/{step - 1}"])
            os.write(1, f"deleted {step - 1}\n".encode())
        step += 1


if __name__ == "__main__":
    main()
