"""Puts and streams one large file in a process of its own and prints how much memory that took."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from pathlib import Path

from pyspark_checkpoint import open_object_store


def peak_bytes() -> int:
    """The most memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    task = json.loads(sys.argv[1])
    store = open_object_store(task["url"], task["options"], env={})
    store.put("warm-up", b"x" * 100_000)
    b"".join(store.stream("warm-up"))
    before = peak_bytes()
    with Path(task["file"]).open("rb") as body:
        store.put("large", body, if_absent=True)
    after_put = peak_bytes()
    digest = hashlib.sha256()
    for chunk in store.stream("large"):
        digest.update(chunk)
    print(
        json.dumps(
            {
                "put_bytes": after_put - before,
                "stream_bytes": peak_bytes() - before,
                "size_bytes": store.head("large").size_bytes,
                "sha256": digest.hexdigest(),
            }
        )
    )
    store.close()


if __name__ == "__main__":
    main()
