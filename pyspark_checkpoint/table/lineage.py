"""Which rows an epoch follows on: by this a stream of changes knows that the table is still what it read.

Numbers alone do not say so. After a rollback the same epochs come again, with other rows, and once the
rollback is pruned nothing else tells the two apart. So each epoch of a table has a digest over its rows and
over all epochs before it, and records the digest of the epoch that it follows on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.manifest import COURSE_FIELD
from pyspark_checkpoint.table.feed import FeedPosition

_DIGEST_LETTERS = 32


@dataclass(frozen=True, slots=True)
class Course:
    """The place of an epoch among those of its table; claims and rollbacks repeat it with the rows.

    ``position`` names the checkpoint that wrote the rows. ``before`` is the epoch that they follow on,
    None for the first one, and for one that follows on what an older release has written.
    """

    position: FeedPosition
    before: FeedPosition | None = None

    def to_json(self) -> dict[str, Any]:
        """What goes into the manifest."""
        before = None if self.before is None else _to_json(self.before)
        return {**_to_json(self.position), "before": before}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Course:
        """Read back what ``to_json`` gave."""
        try:
            before = fields["before"]
            return Course(_from_json(fields), None if before is None else _from_json(before))
        except (KeyError, TypeError, ValueError):
            raise FormatError("the course of a table lacks a field, or has one of another type") from None


def find_course(table: Mapping[str, Any] | None) -> Course | None:
    """The course in the table of a manifest; None for one of an older release, and for a tombstone."""
    return read_course(None if table is None else table.get(COURSE_FIELD))


def read_course(fields: Mapping[str, Any] | None) -> Course | None:
    """The same from that field alone."""
    return None if fields is None else Course.from_json(fields)


def next_course(
    parent: Course | None,
    checkpoint_id: int,
    epoch: int,
    rows: Sequence[tuple[int, str]],
    *,
    replaces: bool,
) -> Course:
    """The course of an epoch with these ``rows``, which are partitions and digests, on top of ``parent``.

    The parent's epoch again takes its place. If its rows are the same, so is its course.
    """
    again = parent is not None and parent.position.epoch == epoch
    before = None if parent is None else parent.before if again else parent.position
    content = [before.course if before is not None else "", epoch, replaces, sorted(rows)]
    digest = sha256_hex(orjson.dumps(content))[:_DIGEST_LETTERS]
    if parent is not None and again and parent.position.course == digest:
        return parent
    return Course(FeedPosition(checkpoint_id, epoch, digest), before)


def _to_json(position: FeedPosition) -> dict[str, Any]:
    return {
        "checkpoint_id": position.checkpoint_id,
        "epoch": position.epoch,
        "digest": position.course,
    }


def _from_json(fields: Mapping[str, Any]) -> FeedPosition:
    return FeedPosition(int(fields["checkpoint_id"]), int(fields["epoch"]), str(fields["digest"]))
