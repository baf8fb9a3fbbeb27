"""Many small artifacts in one object: deciding where artifacts go, and the bytes of a pack.

With a request costing more than a thousand bytes do, small artifacts share an object and tiny ones
travel inside the manifest. Both are bounded, so that neither a pack nor a manifest grows without limit.

A pack can be read without any manifest, because it ends with an index of its own::

    offset      bytes  content
    0           4      "CKPK"
    4           1      version, 1
    5           3      zero
    8           ...    the parts, back to back, in the order of the index
    size-8-n    n      index: a sealed JSON object (``format.envelope``)
    size-8      4      n, big endian
    size-4      4      "KPKC"

Every byte is proved: those of the parts by their digests in the index and in the manifest, the index
by its own digest, the rest by having one value only. ``read_pack`` checks all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_checkpoint.errors import FormatError, UnknownVersion
from pyspark_checkpoint.format.artifact import (
    ArtifactRef,
    Tables,
    decode_artifact,
    encode_artifact,
    verify_integrity,
)
from pyspark_checkpoint.format.envelope import FORMAT_VERSION, check_version, decode_sealed, encode_sealed

MAX_INLINE_BYTES = 512
"""Artifacts up to this size may travel inside the manifest."""
MAX_INLINE_TOTAL_BYTES = 64 * 1024
"""All inline artifacts of one manifest together, those of its parent included."""
PACK_TARGET_BYTES = 8 * 1024 * 1024
"""The parts of one pack are at most this much together."""
MIN_ALONE_BYTES = 4 * 1024 * 1024
"""Artifacts from this size on have an object of their own."""

PACK_MAGIC = b"CKPK"
PACK_END_MAGIC = b"KPKC"
PACK_VERSION = 1
PACK_HEADER = PACK_MAGIC + bytes([PACK_VERSION, 0, 0, 0])
PACK_SUFFIX = ".pack"
_FOOTER = struct.Struct(">I4s")
FOOTER_BYTES = _FOOTER.size


@dataclass(frozen=True, slots=True)
class PackBounds:
    """Where the lines between inline, packed and alone are."""

    max_inline_bytes: int = MAX_INLINE_BYTES
    max_inline_total_bytes: int = MAX_INLINE_TOTAL_BYTES
    pack_target_bytes: int = PACK_TARGET_BYTES
    min_alone_bytes: int = MIN_ALONE_BYTES


DEFAULT_BOUNDS = PackBounds()


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Where each artifact goes, by its position in what was planned. Each position is there once."""

    inline: tuple[int, ...]
    packs: tuple[tuple[int, ...], ...]
    alone: tuple[int, ...]


def plan_packs(
    sizes: Sequence[int], *, inline_used_bytes: int = 0, bounds: PackBounds = DEFAULT_BOUNDS
) -> PackPlan:
    """Decide which artifacts are inlined, packed together, or stored alone. Pure; keeps their order.

    ``inline_used_bytes`` is what the manifest carries inline already; what would go beyond the total
    is packed instead, smallest first kept inline. A pack of one artifact would gain nothing: that
    artifact is stored alone.
    """
    inline = _plan_inline(sizes, bounds.max_inline_total_bytes - inline_used_bytes, bounds)
    alone = [at for at, size in enumerate(sizes) if size >= bounds.min_alone_bytes and at not in inline]
    packs: list[list[int]] = []
    room = 0
    for at, size in enumerate(sizes):
        if at in inline or size >= bounds.min_alone_bytes:
            continue
        if not packs or size > room:
            packs.append([])
            room = bounds.pack_target_bytes
        packs[-1].append(at)
        room -= size
    alone.extend(pack[0] for pack in packs if len(pack) == 1)
    return PackPlan(
        inline=tuple(sorted(inline)),
        packs=tuple(tuple(pack) for pack in packs if len(pack) > 1),
        alone=tuple(sorted(alone)),
    )


def _plan_inline(sizes: Sequence[int], budget_bytes: int, bounds: PackBounds) -> set[int]:
    inline: set[int] = set()
    for size, at in sorted((size, at) for at, size in enumerate(sizes) if size <= bounds.max_inline_bytes):
        if size > budget_bytes:
            break
        inline.add(at)
        budget_bytes -= size
    return inline


@dataclass(frozen=True, slots=True)
class Part:
    """An artifact that waits for a place, with its bytes (``ref.inline``), or that has one in a pack.

    ``operator`` is empty for a file that belongs to no operator.
    """

    operator: str
    partition: int
    ref: ArtifactRef

    @property
    def data(self) -> bytes:
        """The bytes to store."""
        if self.ref.inline is None:
            raise FormatError("a part without bytes cannot be packed")
        return self.ref.inline


@dataclass(frozen=True, slots=True)
class Pack:
    """The bytes of a pack, and where in it each part went, in the order that was given."""

    path: str
    data: bytes
    refs: tuple[ArtifactRef, ...]


def build_pack(path: str, parts: Sequence[Part]) -> Pack:
    """Lay parts out in one object that will be stored at ``path``; equal parts give equal bytes."""
    offset = len(PACK_HEADER)
    refs: list[ArtifactRef] = []
    for part in parts:
        refs.append(part.ref.moved(path, offset))
        offset += len(part.data)
    index = _encode_index(parts, refs)
    footer = _FOOTER.pack(len(index), PACK_END_MAGIC)
    data = b"".join([PACK_HEADER, *(part.data for part in parts), index, footer])
    return Pack(path, data, tuple(refs))


def read_pack(path: str, data: bytes) -> tuple[Part, ...]:
    """Return what is in a pack after checking each of its bytes. ``IntegrityError`` names the damage."""
    entries = read_pack_index(path, data[: len(PACK_HEADER)], data)
    view = memoryview(data)
    for entry in entries:
        ref = entry.ref
        verify_integrity(f"{path}@{ref.offset}", view[ref.offset : ref.offset + ref.size_bytes], ref.sha256)
    return entries


def read_pack_index(
    path: str, head: bytes, tail: bytes, *, object_size_bytes: int | None = None
) -> tuple[Part, ...]:
    """Return what a pack's index says, from the object's first 8 bytes and enough of its end.

    ``tail`` must hold the index (``pack_tail_bytes`` says how much); the whole object will do. With
    the size of the whole object, checks as well that the parts fill it without a gap.
    """
    _check_header(path, head)
    index = _cut_index(path, tail)
    fields = decode_sealed(index, path)
    check_version(fields, path)
    entries = _decode_index(path, fields)
    size_bytes = len(tail) if object_size_bytes is None else object_size_bytes
    offset = len(PACK_HEADER)
    for entry in entries:
        if entry.ref.offset != offset:
            raise FormatError(f"{path}: the parts are not back to back")
        offset += entry.ref.size_bytes
    if offset + len(index) + _FOOTER.size != size_bytes:
        raise FormatError(f"{path} has bytes that its index does not know")
    return entries


def pack_tail_bytes(path: str, footer: bytes) -> int:
    """How many bytes from the end of a pack hold index and footer, by the last 8 bytes of the pack."""
    if len(footer) < _FOOTER.size:
        raise FormatError(f"{path} is torn: it is shorter than a pack's end")
    index_bytes, magic = _FOOTER.unpack(footer[-_FOOTER.size :])
    if magic != PACK_END_MAGIC:
        raise FormatError(f"{path} is torn or damaged: it does not end as a pack does")
    return int(index_bytes) + _FOOTER.size


def _check_header(path: str, head: bytes) -> None:
    if head[:4] != PACK_MAGIC or len(head) < len(PACK_HEADER):
        raise FormatError(f"{path} is not a pack")
    if head[4] != PACK_VERSION:
        raise UnknownVersion(f"{path} has pack version {head[4]}, this package reads {PACK_VERSION}")
    if head[: len(PACK_HEADER)] != PACK_HEADER:
        raise FormatError(f"{path} has a damaged header")


def _cut_index(path: str, tail: bytes) -> bytes:
    tail_bytes = pack_tail_bytes(path, tail)
    if tail_bytes > len(tail):
        raise FormatError(f"{path} is torn or damaged: its index is longer than itself")
    return tail[len(tail) - tail_bytes : len(tail) - _FOOTER.size]


def _encode_index(parts: Sequence[Part], refs: Sequence[ArtifactRef]) -> bytes:
    tables, operators = Tables(), dict[str, int]()
    rows: list[list[Any]] = []
    for part, ref in zip(parts, refs, strict=True):
        operator = operators.setdefault(part.operator, len(operators))
        rows.append([operator, part.partition, *encode_artifact(replace(ref, bounds=()), tables)[1:]])
    return encode_sealed(
        {
            "version": FORMAT_VERSION,
            "operators": list(operators),
            "data_keys": tables.data_keys(),
            "parts": rows,
        }
    )


def _decode_index(path: str, fields: dict[str, Any]) -> tuple[Part, ...]:
    entries: list[Part] = []
    try:
        operators, data_keys = list(fields["operators"]), list(fields["data_keys"])
        for operator, partition, *row in fields["parts"]:
            ref = decode_artifact([0, *row], [path], data_keys)
            if type(operator) is not int or type(partition) is not int or operator < 0:
                raise FormatError("a row is damaged")
            entries.append(Part(str(operators[operator]), partition, ref))
    except FormatError as error:
        raise FormatError(f"{path}: {error.message}", hint=error.own_hint) from None
    except (KeyError, TypeError, ValueError, IndexError):
        raise FormatError(f"{path}: its index lacks a field, or has one of another type") from None
    return tuple(entries)
