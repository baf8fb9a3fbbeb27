"""Rewinds a query, and is killed before it changes anything on a disk for the so-many-th time."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from pyspark_checkpoint import rewind
from tests.ecosystem.app import session

CHANGES = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate")


def main() -> None:
    """Rewind as the first argument says; killed before change ``kill_at``, if there are so many."""
    wanted = json.loads(sys.argv[1])
    changes = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal changes
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or writes:
            changes += 1
            if changes == wanted["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    spark = session(wanted["session"]) if "session" in wanted else None
    sys.addaudithook(count)
    report = rewind(wanted["url"], spark=spark, **wanted["arguments"])
    restored = report.restored
    print(json.dumps({"changes": changes, "batch": restored.batch_id if restored else None}))


if __name__ == "__main__":
    main()
