"""A restore in a process of its own, slow enough to be killed in the middle: a group of files a line."""

from __future__ import annotations

import sys

from pyspark_checkpoint.restorer import execute as restoring
from pyspark_checkpoint.restorer.api import restore


def main(url: str, query: str, to: str) -> None:
    """Restore the newest checkpoint, and say after each file how far it is."""
    restoring.GROUP_BYTES = 1
    restore(url, to, query=query, progress=lambda done, total: print(done, total, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
