"""Lists of settled parts: what a manifest need not name one by one any more.

A table that is only appended to has ever more parts, and most of them never change again. Named in every
manifest they would make each commit dearer than the one before. So they move to lists: small objects that
are created once, under a name with their digest, and never change. A list of level 0 names parts; one of
level n names lists of level n - 1. The manifest names the few lists at the top, and what each of them
holds, so that nothing is read to add one.

A list is neither encrypted nor authenticated by itself: like a manifest it has names, sizes and digests,
and the manifest, which is authenticated, has its digest. So whoever cleans up needs no key to know what is
in use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_checkpoint.errors import FormatError, IntegrityError
from pyspark_checkpoint.format.artifact import (
    ArtifactRef,
    Tables,
    decode_artifact,
    decode_digest,
    encode_artifact,
    encode_digest,
)
from pyspark_checkpoint.format.envelope import (
    FORMAT_VERSION,
    check_version,
    decode_sealed,
    encode_sealed,
    sha256_hex,
)
from pyspark_checkpoint.format.keys import (
    CheckpointId,
    CheckpointPaths,
    check_artifact_path,
    number_of,
)

LIST_PARTS = 512
"""How many parts one list has."""
LIST_LISTS = 64
"""How many lists a list of a higher level has; a manifest has fewer than this of each level."""
MAX_LIST_BYTES = 1024 * 1024
MAX_LEVEL = 8
"""Enough for 10**17 parts."""
LIST_NAME = "settled"
"""The name of a list among the artifacts of a checkpoint."""


@dataclass(frozen=True, slots=True)
class ListRef:
    """A list and what holds of all that is below it, so that most questions need no look into it.

    ``part_count`` and ``below_bytes`` count all parts below, and the stored bytes of parts and lists below.
    ``oldest`` and ``newest`` are the numbers of the checkpoints that made what is below, ``epoch`` is the
    newest epoch of a part.
    """

    path: str
    size_bytes: int
    sha256: str
    level: int
    part_count: int
    below_bytes: int
    oldest: int
    newest: int
    epoch: int

    @property
    def total_bytes(self) -> int:
        """Stored bytes of the list and of everything below it."""
        return self.size_bytes + self.below_bytes

    def artifact(self) -> ArtifactRef:
        """The list itself as an artifact, to be checked and copied like all others."""
        return ArtifactRef(self.path, self.size_bytes, self.sha256, False, self.epoch, name=LIST_NAME)


@dataclass(frozen=True, slots=True)
class SettledPart:
    """A part of a table that never changes again, and its partition."""

    partition: int
    ref: ArtifactRef

    @property
    def path(self) -> str:
        """Its object. A part inside a manifest is never settled."""
        if self.ref.path is None:
            raise FormatError("a part that has no object cannot be in a list")
        return self.ref.path


@dataclass(frozen=True, slots=True)
class SettledList:
    """The content of a list: parts at level 0, lists above."""

    parts: tuple[SettledPart, ...] = ()
    lists: tuple[ListRef, ...] = ()

    def paths(self) -> frozenset[str]:
        """The objects that it names."""
        return frozenset([part.path for part in self.parts] + [ref.path for ref in self.lists])


@dataclass(frozen=True, slots=True)
class NewList:
    """A list that is to be created."""

    ref: ListRef
    data: bytes


def build_list(attempt: CheckpointId, content: SettledList) -> NewList:
    """The list with this content, to be created under the name that its bytes give it."""
    tables = Tables()
    rows: dict[str, Any] = {"parts": [], "lists": []}
    for part in content.parts:
        rows["parts"].append([part.partition, *encode_artifact(part.ref, tables)])
    for ref in content.lists:
        rows["lists"].append(encode_list_ref(ref, tables))
    level = 1 + max((ref.level for ref in content.lists), default=-1)
    fields = {
        "version": FORMAT_VERSION,
        "level": level,
        "objects": tables.objects(),
        "data_keys": tables.data_keys(),
        **rows,
    }
    data = encode_sealed(fields, max_bytes=MAX_LIST_BYTES)
    digest = sha256_hex(data)
    return NewList(_summary(CheckpointPaths.settled(attempt, digest), data, digest, level, content), data)


def read_list_bytes(ref: ListRef, data: bytes) -> SettledList:
    """The content of the list that ``ref`` names; anything else than it says of it is damage."""
    digest = sha256_hex(data)
    if digest != ref.sha256:
        raise IntegrityError(ref.path, ref.sha256, digest)
    fields = decode_sealed(data, ref.path, max_bytes=MAX_LIST_BYTES)
    check_version(fields, ref.path)
    try:
        objects = [check_artifact_path(path) for path in fields["objects"]]
        data_keys = [str(key) for key in fields["data_keys"]]
        parts = [_decode_part(row, objects, data_keys) for row in fields["parts"]]
        lists = [decode_list_ref(row, objects) for row in fields["lists"]]
        level = fields["level"]
    except FormatError as error:
        raise FormatError(f"{ref.path}: {error.message}", hint=error.own_hint) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(f"{ref.path} lacks a field, or has one of another type") from None
    content = SettledList(tuple(parts), tuple(lists))
    if any(child.level != ref.level - 1 for child in lists) or (ref.level > 0) == bool(parts):
        raise FormatError(f"{ref.path} has something else in it than a list of level {ref.level}")
    if len({child.path for child in lists}) != len(lists):
        raise FormatError(f"{ref.path} names a list twice")
    if level != ref.level or _summary(ref.path, data, digest, ref.level, content) != ref:
        raise FormatError(f"{ref.path} holds something else than is recorded of it")
    return content


def encode_list_ref(ref: ListRef, tables: Tables) -> list[Any]:
    """The row of a list; ``decode_list_ref`` reads it back."""
    row = [
        tables.object_row(ref.path),
        ref.size_bytes,
        encode_digest(ref.sha256),
        ref.level,
        ref.part_count,
        ref.below_bytes,
        ref.oldest,
        ref.newest,
        ref.epoch,
    ]
    decode_list_ref(row, tables.objects())
    return row


def decode_list_ref(row: Any, objects: Sequence[str]) -> ListRef:
    """Read the row of a list; refuses what ``encode_list_ref`` cannot have written."""
    if type(row) is not list or len(row) != 9:
        raise FormatError("the row of a list is damaged")
    where, size_bytes, digest, *numbers = row
    if any(type(number) is not int or number < 0 for number in (where, size_bytes, *numbers)):
        raise FormatError("the row of a list is damaged")
    level, part_count, below_bytes, oldest, newest, epoch = numbers
    if where >= len(objects) or level > MAX_LEVEL or size_bytes > MAX_LIST_BYTES:
        raise FormatError("the row of a list is damaged")
    path, sha256 = objects[where], decode_digest(digest)
    if not path.endswith(f"/list-{sha256}.json"):
        raise FormatError("a list does not have the name of its digest")
    return ListRef(path, size_bytes, sha256, level, part_count, below_bytes, oldest, newest, epoch)


def _decode_part(row: Any, objects: list[str], data_keys: list[str]) -> SettledPart:
    if type(row) is not list or len(row) < 2 or type(row[0]) is not int or row[0] < 0:
        raise FormatError("the row of a part is damaged")
    part = SettledPart(row[0], decode_artifact(row[1:], objects, data_keys))
    _ = part.path
    return part


def _summary(path: str, data: bytes, digest: str, level: int, content: SettledList) -> ListRef:
    parts, lists = content.parts, content.lists
    made = [number_of(path) for path in content.paths()]
    return ListRef(
        path=path,
        size_bytes=len(data),
        sha256=digest,
        level=level,
        part_count=len(parts) + sum(ref.part_count for ref in lists),
        below_bytes=sum(part.ref.size_bytes for part in parts) + sum(ref.total_bytes for ref in lists),
        oldest=min([*made, *(ref.oldest for ref in lists)], default=0),
        newest=max([*made, *(ref.newest for ref in lists)], default=0),
        epoch=max([part.ref.epoch for part in parts] + [ref.epoch for ref in lists], default=0),
    )


def may_hold(ref: ListRef, numbers: Sequence[int]) -> bool:
    """Whether something that one of these checkpoints, which are sorted, made can be below a list."""
    at = bisect_left(numbers, ref.oldest)
    return at < len(numbers) and numbers[at] <= ref.newest
