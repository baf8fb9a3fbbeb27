"""A stale location and the restored one that takes its place: both renames, or none. Needs no Spark."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer.replace_stale import LocationRestorer
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.local.local_store import LocalStore
from tests.support.drivers.driver import ROOT
from tests.support.made_location import MadeLocation, capture, contents, needed
from tests.support.mounts import IN_NAMESPACE, need_namespaces

replace_location = LocationRestorer().replace_location


@pytest.fixture
def stale(tmp_path: Path) -> MadeLocation:
    """A location two batches behind its history."""
    made = MadeLocation(tmp_path / "whole").commit(0)
    shutil.copytree(made.path, tmp_path / "location")
    capture(made.commit(1, 2), str(tmp_path / "store"), 0, 1, 2)
    return MadeLocation(tmp_path / "location")


@dataclass
class Disk:
    """A file system that only Hadoop reaches, on the local disk; some renames fail."""

    failing: tuple[int, ...] = ()
    renames: list[tuple[str, str]] = field(default_factory=list)

    def spec(self, path: Path) -> LocationSpec:
        """A location on it."""
        return LocationSpec(f"disk:{path}", opener=lambda url: DiskStore(self, url))


class DiskStore(LocalStore):
    """A directory of a ``Disk``."""

    def __init__(self, disk: Disk, url: str) -> None:
        super().__init__(Path(url.removeprefix("disk:")))
        self._disk = disk

    def rename_directory(self, source_url: str, target_url: str) -> None:
        """Rename, unless this is one of those that fail."""
        names = (source_url.removeprefix("disk:"), target_url.removeprefix("disk:"))
        self._disk.renames.append(names)
        if len(self._disk.renames) in self._disk.failing:
            raise RefusedError(f"{source_url} could not be renamed: {os.strerror(errno.EIO)}")
        Path(names[0]).rename(names[1])


def beside(location: Path, word: str) -> list[Path]:
    """What lies beside a location, of this kind."""
    return list(location.parent.glob(f"{location.name}.{word}-*"))


def test_a_stale_location_is_replaced_and_kept(stale: MadeLocation, tmp_path: Path) -> None:
    """Two renames; what was there is beside it, to the byte."""
    before = contents(stale.path)
    done = replace_location(str(tmp_path / "store"), LocationSpec(str(stale.path)), None)
    assert contents(stale.path) == needed(MadeLocation(tmp_path / "whole"), 2)
    assert contents(Path(done.set_aside)) == before
    assert beside(stale.path, "restored") == []


def test_nothing_is_renamed_once_the_query_has_stopped_waiting(stale: MadeLocation, tmp_path: Path) -> None:
    """It is asked when all is restored, right before the first rename; the message has both paths."""
    before = contents(stale.path)
    seen: list[dict[str, bytes]] = []

    def may_replace() -> bool:
        seen.extend(contents(path) for path in beside(stale.path, "restored"))
        return False

    with pytest.raises(RefusedError, match="has not waited") as refused:
        replace_location(
            str(tmp_path / "store"), LocationSpec(str(stale.path)), None, may_replace=may_replace
        )
    assert seen == [needed(MadeLocation(tmp_path / "whole"), 2)], "all was restored when it was asked"
    assert contents(stale.path) == before
    assert beside(stale.path, "stale") == []
    (kept,) = beside(stale.path, "restored")
    assert str(kept) in str(refused.value) and str(stale.path) in str(refused.value)


def test_a_second_rename_that_fails_undoes_the_first(stale: MadeLocation, tmp_path: Path) -> None:
    """A query that is started there finds the location, and not nothing."""
    before, disk = contents(stale.path), Disk(failing=(2,))
    with pytest.raises(RefusedError, match="could not be renamed"):
        replace_location(str(tmp_path / "store"), disk.spec(stale.path), None)
    assert contents(stale.path) == before
    assert len(disk.renames) == 3 and disk.renames[2] == tuple(reversed(disk.renames[0]))
    assert beside(stale.path, "stale") == []


def test_a_rename_that_cannot_be_undone_says_where_the_location_is(
    stale: MadeLocation, tmp_path: Path
) -> None:
    """Nothing is lost, and somebody must rename it."""
    before, disk = contents(stale.path), Disk(failing=(2, 3))
    with pytest.raises(RefusedError, match="could not be put back") as refused:
        replace_location(str(tmp_path / "store"), disk.spec(stale.path), None)
    (kept,) = beside(stale.path, "stale")
    assert str(kept) in refused.value.message and str(stale.path) in (refused.value.hint or "")
    assert contents(kept) == before


@pytest.mark.process
@pytest.mark.parametrize("mount", ["tmpfs", "bind"])
def test_a_mount_point_is_refused_with_an_error_of_ours(tmp_path: Path, mount: str) -> None:
    """A file system of its own is told before anything is restored; a bind mount only by the rename."""
    need_namespaces()
    script = (
        "import sys; from pathlib import Path; "
        "from tests.restorer.test_replace_stale import replace_mounted; replace_mounted(Path(sys.argv[1]))"
    )
    (tmp_path / "location").mkdir()
    done = subprocess.run(
        [*IN_NAMESPACE[mount], str(tmp_path / "location"), sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("mounted there" if mount == "tmpfs" else "could not be renamed") in done.stdout


def replace_mounted(directory: Path) -> None:
    """In a process of its own, which alone sees the mount."""
    location, url = directory / "location", str(directory / "store")
    made = MadeLocation(directory / "whole").commit(0)
    shutil.copytree(made.path, location, dirs_exist_ok=True)
    before = contents(location)
    capture(made.commit(1, 2), url, 0, 1, 2)
    head = CheckpointStore.open(url).load_latest()
    with pytest.raises(RefusedError) as refused:
        replace_location(url, LocationSpec(str(location)), None)
    assert contents(location) == before
    assert beside(location, "stale") == []
    if "mounted there" in refused.value.message:
        assert CheckpointStore.open(url).load_latest() == head, "the history was taken over"
        assert beside(location, "restored") == []
    print(refused.value)
