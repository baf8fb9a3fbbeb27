"""The location of before a rollback, started again: told by the batches that it has. No Spark."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.location_status import LocationStatus
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.spark_files.location import LocationSpec
from tests.support.made_location import MadeLocation, capture, open_capture


@pytest.fixture
def old(tmp_path: Path) -> MadeLocation:
    """A location whose batches 0 to 4 are captured, and 5 is not."""
    return MadeLocation(tmp_path / "old").commit(0, 1, 2, 3, 4, 5)


def problem(path: Path, url: str, options: dict[str, str] | None = None) -> str | None:
    """What keeps a run from going on at ``path``."""
    history = CheckpointStore.open(url, options)
    newest = history.load_latest()
    status = LocationStatus.of(LocationSpec(str(path)).open())
    return status.find_problem(newest, "run") or status.find_rolled_back(history, newest, "run")


def test_the_old_location_is_noticed_before_the_new_one_has_run(old: MadeLocation, tmp_path: Path) -> None:
    """Also an older copy of it, and after starts of the new one that captured nothing."""
    url = str(tmp_path / "store")
    capture(old, url, 0, 1, 2, 3, 4)
    assert problem(old.path, url) is None, "ahead of its history, which nobody has rolled back"
    restore(url, str(tmp_path / "new"), epoch=1)
    assert problem(tmp_path / "new", url) is None
    told = problem(old.path, url) or ""
    assert "offsets/3 of checkpoint 5" in told
    assert "rolled back to batch 1" in told
    CheckpointStore.open(url, run_id="started").claim()
    CheckpointStore.open(url, run_id="started again").claim()
    assert problem(tmp_path / "new", url) is None
    assert "offsets/3" in (problem(old.path, url) or "")
    for name in ("offsets/3", "offsets/4", "offsets/5", "commits/3", "commits/4", "commits/5"):
        (old.path / name).unlink()
    assert "offsets/2" in (problem(old.path, url) or ""), "a copy of the disk of before batch 3"


def test_the_new_location_may_run_ahead_of_its_captures(old: MadeLocation, tmp_path: Path) -> None:
    """Its batches are planned at another time, whatever they read: they are not those given up."""
    url = str(tmp_path / "store")
    capture(old, url, 0, 1, 2, 3, 4)
    restore(url, str(tmp_path / "new"), epoch=1)
    new = MadeLocation(tmp_path / "unused")
    new.path = tmp_path / "new"
    new.commit(2, 3)
    for batch in (2, 3):
        log = new.path / f"offsets/{batch}"
        log.write_text(log.read_text().replace(f'"batchTimestampMs": {batch}', '"batchTimestampMs": 99'))
    assert problem(new.path, url) is None
    assert "rolled back" in (problem(old.path, url) or "")
    assert open_capture(new, url).capture(3) is not None


def test_encrypted_checkpoints_tell_it_too(old: MadeLocation, tmp_path: Path) -> None:
    """The stored digests are of other bytes."""
    url, keys = str(tmp_path / "store"), tmp_path / "keys.json"
    keys.write_text(json.dumps({"active": "a", "keys": {"a": base64.b64encode(bytes(32)).decode()}}))
    keys.chmod(0o600)
    options = {"encryptionKeyFile": str(keys)}
    capture(old, url, 0, 1, 2, options=options)
    CheckpointStore.open(url, options).rollback(1)
    assert "rolled back to batch 0" in (problem(old.path, url, options) or "")


def test_where_nothing_is_left_of_what_was_given_up_nothing_can_be_told(
    old: MadeLocation, tmp_path: Path
) -> None:
    """Damaged and pruned checkpoints prove nothing; the query runs, as it did."""
    url = str(tmp_path / "store")
    capture(old, url, 0, 1, 2)
    CheckpointStore.open(url).rollback(1)
    manifests = tmp_path / "store" / "manifests"
    shutil.copytree(manifests, tmp_path / "kept")
    for number in (2, 3):
        (manifests / f"manifest-{number:010d}.json").write_bytes(b"{}")
    assert problem(old.path, url) is None
    shutil.copytree(tmp_path / "kept", manifests, dirs_exist_ok=True)
    assert problem(old.path, url) is not None
    CheckpointStore.open(url, run_id="started").claim()
    (manifests / "manifest-0000000004.json").write_bytes(b"{}")
    assert problem(old.path, url) is not None, "what cannot be read may be a rollback: the others tell"
