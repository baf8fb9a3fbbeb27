"""Reading many artifacts with few requests: which ranges to ask for, and how to cut them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.artifact import ArtifactRef, verify_integrity

MAX_GAP_BYTES = 256 * 1024
"""Unwanted bytes up to this many are cheaper than one more request."""
MAX_RANGE_BYTES = 16 * 1024 * 1024
"""What one request may ask for, unless a single artifact is larger."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """One request: the bytes ``[start, end)`` of an object, and the artifacts that lie in them."""

    path: str
    start: int
    end: int
    refs: tuple[ArtifactRef, ...]


def coalesce_ranges(
    refs: Iterable[ArtifactRef],
    max_gap_bytes: int = MAX_GAP_BYTES,
    max_range_bytes: int = MAX_RANGE_BYTES,
) -> tuple[ReadRange, ...]:
    """Plan the requests that read ``refs``: pure, each artifact in exactly one range.

    Neighbours in one object are read together when at most ``max_gap_bytes`` lie between them and the
    range stays within ``max_range_bytes``. Inline artifacts need no request and are not in the plan.
    """
    groups: list[list[ArtifactRef]] = []
    path, start, end = "", 0, 0
    for ref in sorted((ref for ref in refs if ref.path is not None), key=_place):
        ref_end = ref.offset + ref.size_bytes
        joins = (
            ref.path == path
            and ref.offset - end <= max_gap_bytes
            and max(ref_end, end) - start <= max_range_bytes
        )
        if groups and joins:
            groups[-1].append(ref)
            end = max(ref_end, end)
        else:
            groups.append([ref])
            path, start, end = ref.path or "", ref.offset, ref_end
    return tuple(_range_of(group) for group in groups)


def _place(ref: ArtifactRef) -> tuple[str, int, int]:
    return ref.path or "", ref.offset, ref.size_bytes


def _range_of(group: list[ArtifactRef]) -> ReadRange:
    end = max(ref.offset + ref.size_bytes for ref in group)
    return ReadRange(group[0].path or "", group[0].offset, end, tuple(group))


def cut_range(read: ReadRange, data: bytes) -> Iterator[tuple[ArtifactRef, bytes]]:
    """Yield each artifact of a range that was read, after checking its size and its digest."""
    if len(data) != read.end - read.start:
        raise FormatError(
            f"{read.path} is shorter than recorded: bytes {read.start} to {read.end} are not all there"
        )
    for ref in read.refs:
        begin = ref.offset - read.start
        part = data[begin : begin + ref.size_bytes]
        verify_integrity(f"{read.path}@{ref.offset}", part, ref.sha256)
        yield ref, part
