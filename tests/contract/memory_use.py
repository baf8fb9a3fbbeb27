"""Puts and streams one large file in a process of its own and prints how much memory that took."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from pyspark_checkpoint import open_object_store


def memory_bytes(field: str) -> int:
    """What the kernel says of this process: VmRSS is what it has, VmHWM the most that it ever had.

    Not getrusage: its maximum begins with what the parent had when it started this process.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not say {field}")


def main() -> None:
    task = json.loads(sys.argv[1])
    store = open_object_store(task["url"], task["options"], env={})
    store.put("warm-up", b"x" * 100_000)
    b"".join(store.stream("warm-up"))
    before = memory_bytes("VmRSS")
    with Path(task["file"]).open("rb") as body:
        store.put("large", body, if_absent=True)
    after_put = memory_bytes("VmHWM")
    digest = hashlib.sha256()
    for chunk in store.stream("large"):
        digest.update(chunk)
    print(
        json.dumps(
            {
                "put_bytes": after_put - before,
                "stream_bytes": memory_bytes("VmHWM") - before,
                "size_bytes": store.head("large").size_bytes,
                "sha256": digest.hexdigest(),
            }
        )
    )
    store.close()


if __name__ == "__main__":
    main()
