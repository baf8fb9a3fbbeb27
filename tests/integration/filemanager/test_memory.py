"""Memory: bounded over all streams of a JVM, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from tests.integration.filemanager.jvm import Jvm

MEGABYTE = 1 << 20


def test_sixty_four_streams_share_one_bound(jvm: Jvm, s3_root: str, tmp_path: Path) -> None:
    """64 tasks of one executor, 192 KB each, hold at most 2 MB; the files are whole all the same."""
    manager = jvm.manager(
        s3_root,
        {"ckpt.fileManager.memoryBytes": "2m", "ckpt.fileManager.spoolDirectory": str(tmp_path / "spool")},
    )
    streams = [manager.create(f"{number}.delta", overwrite=True) for number in range(64)]
    pieces = [bytes([number]) * (MEGABYTE // 16) for number in range(64)]
    for _ in range(3):
        for stream, piece in zip(streams, pieces, strict=True):
            stream.write(bytearray(piece))
            assert jvm.access.reservedBytes() <= 2 * MEGABYTE
    for stream in streams[2:]:
        stream.cancel()
    for stream in streams[:2]:
        stream.close()
    assert jvm.access.reservedBytes() == 0
    assert manager.read("0.delta") == pieces[0] * 3
    assert manager.read("1.delta") == pieces[1] * 3
    assert sorted(manager.names()) == ["0.delta", "1.delta"]


def test_what_waits_on_disk_has_no_name(jvm: Jvm, s3_root: str, tmp_path: Path) -> None:
    """A killed process leaves no file behind, because there is none to see while it lives."""
    manager = jvm.manager(
        s3_root, {"ckpt.fileManager.memoryBytes": "0", "ckpt.fileManager.spoolDirectory": str(tmp_path)}
    )
    stream = manager.create("1.delta", overwrite=True)
    stream.write(bytearray(b"x" * MEGABYTE))
    assert list(tmp_path.iterdir()) == []
    assert jvm.access.reservedBytes() == 0
    stream.close()
    assert manager.read("1.delta") == b"x" * MEGABYTE


def test_a_disk_that_cannot_take_the_rest_fails_the_write(jvm: Jvm, s3_root: str, tmp_path: Path) -> None:
    """Nothing is published, and neither memory nor a file is left behind."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the directory should be")
    manager = jvm.manager(
        s3_root, {"ckpt.fileManager.memoryBytes": "1m", "ckpt.fileManager.spoolDirectory": str(blocked)}
    )
    with pytest.raises(Py4JJavaError):
        manager.write("1.delta", b"x" * MEGABYTE, overwrite=True)
    assert jvm.access.reservedBytes() == 0
    assert list(tmp_path.iterdir()) == [blocked]
    assert not manager.exists("1.delta")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_stream_whose_write_failed_publishes_nothing(
    jvm: Jvm, s3_root: str, tmp_path: Path, overwrite: bool
) -> None:
    """Java closes what lies below a stream also when its flush has failed; half a file must not appear.

    Nor may the disk's coming back make a file with a hole of it.
    """
    spool = tmp_path / "spool"
    spool.write_text("a file where the directory should be")
    manager = jvm.manager(
        s3_root, {"ckpt.fileManager.memoryBytes": "1m", "ckpt.fileManager.spoolDirectory": str(spool)}
    )
    stream = manager.create("1.delta", overwrite=overwrite)
    stream.write(bytearray(b"x" * 1000))
    with pytest.raises(Py4JJavaError):
        stream.write(bytearray(b"y" * MEGABYTE))
    spool.unlink()
    with pytest.raises(Py4JJavaError, match="an earlier write failed"):
        stream.write(bytearray(b"z"))
    with pytest.raises(Py4JJavaError, match="an earlier write failed"):
        stream.close()
    stream.cancel()
    stream.close()
    assert jvm.access.reservedBytes() == 0
    assert not manager.exists("1.delta")
