"""Which epochs a stream of changes serves next. Pure: plans from what the manifests say.

An epoch is served only when it is final: a later epoch was committed after it, or nobody can run it
again (sealed, or written by a batch job). Until then it may be replaced. What is final stays final, also
when the later epoch is taken back; so the end of a stream never moves back.

A rollback takes epochs back: those not yet served are left out; if one was served already, the consumer
has seen what never happened, and only it can decide what to do, so that is an error.
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
    """How far a consumer is: the last epoch that it was given and the checkpoint that it came from.

    Without a checkpoint it was given nothing, and does not want the epochs up to ``epoch``.
    """

    checkpoint_id: int
    epoch: int

    def is_behind(self, other: FeedPosition) -> bool:
        """Whether a consumer that went from ``other`` to here would go back."""
        return self.epoch < other.epoch or self.checkpoint_id < other.checkpoint_id


_NEW_ROWS = (ManifestKind.REPLACEMENT, ManifestKind.EPOCH)
NOTHING_SERVED = FeedPosition(0, -1)
START_OVER = "start the consumer over with a new checkpoint location"
PRUNED_HINT = f"{START_OVER}, and keep more epochs with the option retain of the writing query"


def find_newest(history: Sequence[FeedEntry]) -> FeedPosition:
    """The newest final epoch, or ``NOTHING_SERVED``."""
    served = plan_feed(history, NOTHING_SERVED, oldest_left=True)
    return FeedPosition(served[-1].checkpoint_id, served[-1].epoch) if served else NOTHING_SERVED


def plan_feed(
    history: Sequence[FeedEntry],
    after: FeedPosition,
    upto: FeedPosition | None = None,
    *,
    oldest_left: bool = False,
) -> tuple[FeedEntry, ...]:
    """Return the final epochs after ``after``, oldest first, each by the checkpoint that holds it.

    ``history`` is every manifest above ``after.checkpoint_id`` that still exists, in order. A consumer
    that has not asked for the ``oldest_left`` must be given the epoch that follows, or an error.

    ``upto`` was the newest final epoch at some time: all of it is given, whatever came later, so that a
    batch that runs again is the same batch.
    """
    if upto is not None:
        _refuse_going_back(history, after, upto)
    if history and not oldest_left:
        _refuse_gap(history[0], after)
    if upto is None:
        surviving = _survivors(history, after)
        return tuple(surviving[:-1] if surviving and not _is_final(surviving[-1], history) else surviving)
    past = [entry for entry in history if entry.checkpoint_id <= upto.checkpoint_id]
    surviving = _survivors(past, after)
    if upto.epoch > after.epoch and (not surviving or surviving[-1].epoch != upto.epoch):
        raise RefusedError(f"epoch {upto.epoch} was pruned", hint=PRUNED_HINT)
    return tuple(surviving)


def _survivors(history: Sequence[FeedEntry], after: FeedPosition) -> list[FeedEntry]:
    """The epochs after ``after`` that were not taken back, each by the last manifest with rows of it."""
    surviving: list[FeedEntry] = []
    for entry in history:
        if entry.epoch <= after.epoch and after.checkpoint_id:
            _refuse_other_course(entry, after)
        while surviving and surviving[-1].epoch > entry.epoch:
            surviving.pop()
        if entry.epoch <= after.epoch:
            continue
        if not surviving or surviving[-1].epoch < entry.epoch:
            surviving.append(entry)
        elif entry.kind in _NEW_ROWS or surviving[-1].kind is ManifestKind.TOMBSTONE:
            surviving[-1] = entry
    return surviving


def _is_final(entry: FeedEntry, history: Sequence[FeedEntry]) -> bool:
    return any(
        other.epoch > entry.epoch or (other.final and other.epoch == entry.epoch)
        for other in history
        if other.checkpoint_id >= entry.checkpoint_id
    )


def _refuse_other_course(entry: FeedEntry, after: FeedPosition) -> None:
    """What was served is not what the table has: it went back, or ran a final epoch again all the same."""
    if entry.epoch < after.epoch:
        raise RefusedError(
            f"the table was rolled back to epoch {entry.epoch} by checkpoint {entry.checkpoint_id}, "
            f"but this stream has already been given epoch {after.epoch}",
            hint=START_OVER,
        )
    if entry.kind in _NEW_ROWS:
        raise RefusedError(
            f"epoch {entry.epoch} was run again by checkpoint {entry.checkpoint_id}, after this stream had "
            "been given it",
            hint=START_OVER,
        )


def _refuse_going_back(history: Sequence[FeedEntry], after: FeedPosition, upto: FeedPosition) -> None:
    """A stream that went back would be given epochs twice."""
    if not upto.is_behind(after):
        return
    _survivors(history, after)  # says what has happened to the table, if that is why
    raise RefusedError(
        f"this stream has been given epoch {after.epoch} (checkpoint {after.checkpoint_id}), and now it "
        f"would end with epoch {upto.epoch} (checkpoint {upto.checkpoint_id})",
        hint=PRUNED_HINT,
    )


def _refuse_gap(first: FeedEntry, after: FeedPosition) -> None:
    if first.checkpoint_id > after.checkpoint_id + 1 and first.epoch > after.epoch + 1:
        raise RefusedError(
            f"epoch {after.epoch + 1} was pruned: the oldest one left is epoch {first.epoch} "
            f"(checkpoint {first.checkpoint_id})",
            hint=PRUNED_HINT,
        )
