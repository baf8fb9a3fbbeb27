"""The bytes of an upload: read from any offset, never more in memory than asked for, never short."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import Invalid
from pyspark_checkpoint.store.azure.azure_transfer import block_ranges
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.gcs.gcs_transfer import part_step
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.meter import MeteredStore

DATA = bytes(range(256)) * 40


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "file"])
def test_every_kind_of_body_reads_the_same(kind: str, tmp_path: Path) -> None:
    """Whole, by range, by pieces, and again."""
    path = tmp_path / "body"
    path.write_bytes(b"before" + DATA)
    with path.open("rb") as file:
        file.seek(6)
        bodies = {"bytes": DATA, "bytearray": bytearray(DATA), "memoryview": memoryview(DATA), "file": file}
        body = UploadBody(bodies[kind])  # type: ignore[arg-type]
        assert body.size_bytes == len(DATA)
        for _ in range(2):
            assert body.read(0, len(DATA)) == DATA
            assert body.read(10, 20) == DATA[10:20]
            assert b"".join(body.pieces(5, 5000, 999)) == DATA[5:5000]
        assert list(body.pieces(0, 0)) == []


def test_bytes_are_not_copied_when_read_whole() -> None:
    """A large body in memory is sent as it is; a slice of it is its own."""
    assert UploadBody(DATA).read(0, len(DATA)) is DATA
    assert UploadBody(memoryview(DATA)[1:]).read(0, len(DATA) - 1) == DATA[1:]


def test_wide_items_count_as_bytes() -> None:
    """A memoryview of numbers is as long as its bytes."""
    assert UploadBody(memoryview(DATA).cast("I")).size_bytes == len(DATA)


def test_a_file_that_became_shorter_is_invalid(tmp_path: Path) -> None:
    """The size is promised to the server before the bytes are read."""
    path = tmp_path / "body"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        body = UploadBody(file)
        path.write_bytes(DATA[:100])
        with pytest.raises(Invalid):
            body.read(0, len(DATA))


class BrokenDisk(io.BytesIO):
    """A file whose disk fails."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(5, "Input/output error")


class NoEnd(io.BytesIO):
    """A file that says it can be rewound, and cannot tell where it ends, as those of /proc."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END:
            raise OSError(22, "Invalid argument")
        return super().seek(offset, whence)


def test_a_file_that_cannot_be_measured_is_invalid() -> None:
    """On every store alike, and behind a meter, whatever error the file has."""
    for store in (MemoryStore(), MeteredStore(MemoryStore())):
        with pytest.raises(Invalid, match="Invalid argument"):
            store.put("k", NoEnd(DATA))


def test_a_read_error_is_not_a_broken_connection() -> None:
    """An OSError of the file must not look like one of the network, which would be retried."""
    with pytest.raises(Invalid, match="Input/output error"):
        UploadBody(BrokenDisk(DATA)).read(0, 10)


def test_a_file_beyond_its_end_is_empty() -> None:
    """Seeking past the end leaves nothing to send."""
    file = io.BytesIO(DATA)
    file.seek(len(DATA) + 5)
    assert UploadBody(file).size_bytes == 0


@pytest.mark.parametrize(
    ("size_bytes", "part_bytes", "step"),
    [
        (10, 1, 256 * 1024),
        (2**20, 2**18, 2**18),
        (2**20, 2**18 + 1, 2**19),
        (2**30, 2**24, 2**26),
        (2**30, 2**28, 2**28),
        (2**30 + 1, 2**24, 2**26 + 2**18),
    ],
)
def test_parts_are_whole_multiples_and_few(size_bytes: int, part_bytes: int, step: int) -> None:
    """Google wants multiples of 256 KiB; each part costs a round trip."""
    assert part_step(size_bytes, part_bytes) == step


@pytest.mark.parametrize(
    ("size_bytes", "part_bytes", "blocks"),
    [
        (1, 10, 1),
        (10, 10, 1),
        (11, 10, 2),
        (500_000, 10, 50_000),
        (500_001, 10, 45_455),
        (2**41, 2**24, 50_000),
    ],
)
def test_blocks_cover_the_body_and_are_not_too_many(size_bytes: int, part_bytes: int, blocks: int) -> None:
    """Every byte once, in order, in at most 50,000 blocks."""
    ranges = block_ranges(size_bytes, part_bytes)
    assert len(ranges) <= 50_000
    assert len(ranges) == blocks
    assert ranges[0][0] == 0 and ranges[-1][1] == size_bytes
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
