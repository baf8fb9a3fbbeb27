"""Which epochs a stream of changes serves next. Pure: plans from what the manifests say.

An epoch is served only when it is final: a later epoch exists, or nobody can run it again (sealed, or
written by a batch job). Until then it may be replaced. A rollback takes epochs back: those not yet
served are left out; if one was served already, the consumer has seen what never happened, and only
it can decide what to do, so that is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import ManifestKind


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """One manifest of the history."""

    checkpoint_id: int
    epoch: int
    kind: ManifestKind
    final: bool = False
    """Whether no run can commit this epoch again, even while it is the newest."""


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """How far a consumer is: the last epoch that it was given and the checkpoint that it came from."""

    checkpoint_id: int
    epoch: int


_NEW_ROWS = (ManifestKind.REPLACEMENT, ManifestKind.EPOCH)
NOTHING_SERVED = FeedPosition(0, -1)
PRUNED_HINT = (
    "start the consumer over with a new checkpoint location, and keep more epochs with the option retain "
    "of the writing query"
)


def plan_feed(
    history: Sequence[FeedEntry], after: FeedPosition, *, oldest_left: bool = False
) -> tuple[FeedEntry, ...]:
    """Return the final epochs after ``after``, oldest first, each by the checkpoint that holds it.

    ``history`` is every manifest above ``after.checkpoint_id`` that still exists, in order. A consumer
    that has not asked for the ``oldest_left`` must be given the epoch that follows, or an error.
    """
    if history and not oldest_left:
        _refuse_gap(history[0], after)
    surviving: list[FeedEntry] = []
    for entry in history:
        if entry.epoch < after.epoch:
            raise RefusedError(
                f"the table was rolled back to epoch {entry.epoch} by checkpoint {entry.checkpoint_id}, "
                f"but this stream has already been given epoch {after.epoch}",
                hint="start the consumer over with a new checkpoint location",
            )
        while surviving and surviving[-1].epoch > entry.epoch:
            surviving.pop()
        if entry.epoch == after.epoch:
            _refuse_other_rows(entry)
            continue
        if not surviving or surviving[-1].epoch < entry.epoch:
            surviving.append(entry)
        elif entry.kind in _NEW_ROWS or surviving[-1].kind is ManifestKind.TOMBSTONE:
            surviving[-1] = entry
    if surviving and not any(e.final and e.epoch == surviving[-1].epoch for e in history):
        surviving.pop()
    return tuple(surviving)


def _refuse_other_rows(entry: FeedEntry) -> None:
    """An epoch that was final ran again all the same: a restore to before it was asked for."""
    if entry.kind is ManifestKind.REPLACEMENT:
        raise RefusedError(
            f"epoch {entry.epoch} was run again by checkpoint {entry.checkpoint_id}, after this stream had "
            "been given it",
            hint="start the consumer over with a new checkpoint location",
        )


def _refuse_gap(first: FeedEntry, after: FeedPosition) -> None:
    if first.checkpoint_id > after.checkpoint_id + 1 and first.epoch > after.epoch + 1:
        raise RefusedError(
            f"epoch {after.epoch + 1} was pruned: the oldest one left is epoch {first.epoch} "
            f"(checkpoint {first.checkpoint_id})",
            hint=PRUNED_HINT,
        )
