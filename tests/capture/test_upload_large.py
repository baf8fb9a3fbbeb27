"""Large state files pass through a capture and a restore in pieces: memory is bounded. No Spark."""

from __future__ import annotations

import errno
import io
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_checkpoint.capture import upload as uploading
from pyspark_checkpoint.capture.upload import UploadTarget, upload_group
from pyspark_checkpoint.capture.upload_plan import UploadItem
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import put_artifact_file
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.spark_files.inventory import CapturedFile
from pyspark_checkpoint.spark_files.location import FileGone
from pyspark_checkpoint.spark_files.versions import FileFacts
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import FaultKind, FaultyStore, fault_on
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.made_location import MadeLocation, contents, needed, open_capture

MIB = 1024 * 1024
STATE = "state/0/1/2.delta"


def peak_bytes(work: Callable[[], object]) -> int:
    """How much memory of Python's ``work`` needs at most besides what there was."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_file_is_never_in_memory_whole(tmp_path: Path) -> None:
    """Neither when it is captured nor when it is restored; small ones beside it are packed as ever."""
    made = MadeLocation(tmp_path / "location").commit(0, 1)
    os.truncate(made.path / STATE, 80 * MIB)
    url = str(tmp_path / "store")
    capturer = open_capture(made, url)
    captured: list[CheckpointManifest | None] = []
    assert peak_bytes(lambda: captured.append(capturer.capture(1))) < 24 * MIB
    (manifest,) = captured
    assert manifest is not None
    assert manifest.requests.puts == 3, "the large file, a pack of other state, and one of the logs"
    assert manifest.requests.bytes > 80 * MIB
    assert peak_bytes(lambda: restore(url, str(tmp_path / "fresh"))) < 24 * MIB
    assert contents(tmp_path / "fresh") == needed(made, 1)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files of 30 kB count as large."""
    monkeypatch.setattr(uploading, "LARGE_BYTES", 30_000)
    yield


@pytest.mark.usefixtures("small_limit")
def test_a_large_file_that_the_store_has_is_referenced(tmp_path: Path) -> None:
    """By another process, which has to read it to know; and what was written again goes up again."""
    made = MadeLocation(tmp_path / "location").commit(0, 1)
    url = str(tmp_path / "store")
    first = open_capture(made, url).capture(1)
    made.commit(2)
    (made.path / STATE).write_bytes(b"x" * 40_000)
    second = open_capture(made, url).capture(2)
    assert first is not None
    assert second is not None
    assert (first.requests.puts, second.requests.puts) == (5, 4), "new, changed, and a pack of logs"
    history = CheckpointStore.open(url)
    assert list(history.verify()) == []
    restore(url, str(tmp_path / "fresh"))
    assert contents(tmp_path / "fresh") == needed(made, 2)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(("size_bytes", "sha256"), [(39_999, ""), (40_000, "0" * 64), (None, "")])
def test_a_large_file_that_is_gone_or_has_changed_is_file_gone(
    tmp_path: Path, size_bytes: int | None, sha256: str
) -> None:
    """Of another size than was listed, of another digest than was looked into, or not there any more."""
    made = MadeLocation(tmp_path / "location").commit(0, 1)
    location = open_capture(made, str(tmp_path / "store")).location
    if size_bytes is None:
        (made.path / STATE).unlink()
    facts = FileFacts(size_bytes or 40_000, 0, "")
    item = UploadItem(CapturedFile(STATE, facts, 1, is_delta=True), "0-x", 1, "2.delta", None, sha256)
    store = MemoryStore(f"memory://{tmp_path.name}")
    with pytest.raises(FileGone):
        upload_group(location, UploadTarget(store, 1), [item])
    assert list(store.list()) == []


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("late", [False, True])
def test_a_full_disk_is_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Of the temporary directory; the capture is tried again, as after every failure."""
    capturer = open_capture(MadeLocation(tmp_path / "location").commit(0), str(tmp_path / "store"))

    class Full(io.BytesIO):
        """The last bytes may be in a buffer until the file is read from its beginning."""

        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def seek(self, *_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    if late:
        monkeypatch.delattr(Full, "write")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(RefusedError, match="No space left on device") as caught:
        capturer.capture(0)
    assert "TMPDIR" in (caught.value.hint or "")


@pytest.mark.parametrize(("variables", "place"), [("TMPDIR", "chosen"), ("", "spark")])
def test_temporary_files_are_on_the_disk_that_spark_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: str, place: str
) -> None:
    """Executors often have a small root; what the user says comes first."""
    for name in ("chosen", "spark"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "chosen"))
    if variables:
        monkeypatch.setenv(variables, str(tmp_path / "chosen"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/spark,/elsewhere")
    with uploading._temporary() as file:
        link = Path(f"/proc/self/fd/{file.fileno()}")
        assert not link.exists() or link.readlink().parent.name == place


def test_a_lost_answer_is_settled_by_what_is_stored() -> None:
    """The same bytes are ours, whole; others are refused."""
    store, data = FaultyStore(MemoryStore(), fault_on("put", "a", FaultKind.LOST_RESPONSE)), b"state" * 1000
    put_artifact_file(store, "a", io.BytesIO(data), sha256_hex(data), ManualClock())
    assert store.get("a") == data
    with pytest.raises(RefusedError, match="other bytes"):
        put_artifact_file(store, "a", io.BytesIO(b"y"), sha256_hex(b"y"), ManualClock())
