"""A query at a location that is a mount point, made stale and started again with ``stale="restore"``.

Argument: a directory; its ``location`` is mounted, in this process and its children alone.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import root_url
from tests.integration.listener.lab import Lab
from tests.integration.listener.test_listener import counted, listening, set_back, wait_for_batch
from tests.support.drivers.session import spark_session
from tests.support.made_location import contents


def main(directory: Path) -> None:
    """Print as JSON what became of the query."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    url, location = str(directory / "store"), directory / "location"
    with spark_session("mounted", {}) as spark:
        lab = Lab(spark, directory, directory)
        with listening(spark, url) as listener:
            query = counted(lab, location, "mounted")
            wait_for_batch(query, 3)
            assert listener.flush(120)
            query.stop()
        history = CheckpointStore.open(root_url(url, str(query.id)))
        old = set_back(lab, url, query, directory / "old")
        for path in location.iterdir():  # a mount point stays; what is in it comes back from a backup
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(old, location, dirs_exist_ok=True)
        before, newest = contents(location), history.load_latest()
        with listening(spark, url, stale="restore"):
            behind = counted(lab, location, "mounted")
            has_ended = behind.awaitTermination(30)
            behind.stop()
    found = {
        "has_ended": has_ended,
        "batches": len(behind.recentProgress),
        "is_as_it_was": contents(location) == before,
        "was_behind": newest is not None and newest.epoch > 0,
        "aside": [path.name for path in directory.glob("location.stale-*")],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
