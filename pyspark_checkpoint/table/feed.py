"""Which epochs a stream of changes serves next. Pure: plans from what the manifests say.

An epoch is served only when it is final: a later epoch was committed after it, or nobody can run it
again (sealed, or written by a batch job). Until then it may be replaced. What is final stays final, also
when the later epoch is taken back; so the end of a stream never moves back.

A rollback takes epochs back: those not yet served are left out; if one was served already, the consumer
has seen what never happened, and only it can decide what to do, so that is an error. If checkpoints after
what was served are pruned, there may have been a rollback among them: then the first one that is left must
follow on the very rows that were served, by its lineage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.manifest_parts import FeedPosition


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """One manifest of the history."""

    checkpoint_id: int
    epoch: int
    kind: ManifestKind
    final: bool = False
    """Whether no run can commit this epoch again, even while it is the newest."""
    lineage: str = ""
    """The digest of its rows and of all epochs before; empty if nobody has said."""
    before: FeedPosition | None = None
    """The epoch that it follows on, if that is recorded."""


_NEW_ROWS = (ManifestKind.REPLACEMENT, ManifestKind.EPOCH)
NOTHING_SERVED = FeedPosition(0, -1)
START_OVER = "start the consumer over with a new checkpoint location"
PRUNED_HINT = f"{START_OVER}, and keep more epochs with the option retain of the writing query"


def find_newest(history: Sequence[FeedEntry]) -> FeedPosition:
    """The newest final epoch, or ``NOTHING_SERVED``."""
    served = plan_feed(history, NOTHING_SERVED, oldest_left=True)
    if not served:
        return NOTHING_SERVED
    newest = served[-1]
    return FeedPosition(newest.checkpoint_id, newest.epoch, newest.lineage)


def find_newest_backwards(newest_first: Iterable[FeedEntry]) -> FeedPosition:
    """The same from a history that is read from its end, no further than to the rows that are served."""
    history: list[FeedEntry] = []
    newest = NOTHING_SERVED
    for entry in newest_first:
        history.insert(0, entry)
        newest = find_newest(history)
        if newest.checkpoint_id == entry.checkpoint_id and entry.kind in _NEW_ROWS:
            break
    return newest


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
        _refuse_gap(history, after)
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
    rows: dict[str, FeedEntry] = {}
    for entry in history:
        if entry.epoch <= after.epoch and after.checkpoint_id:
            _refuse_other_lineage(entry, after)
        while surviving and surviving[-1].epoch > entry.epoch:
            surviving.pop()
        if entry.epoch <= after.epoch:
            continue
        if not surviving or surviving[-1].epoch < entry.epoch:
            if entry.kind is ManifestKind.ROLLBACK and entry.before is not None:
                surviving = _followed(entry, rows, after)
            surviving.append(entry)
        elif _has_other_rows(entry, surviving[-1]):
            surviving[-1] = entry
        if entry.lineage:
            rows[entry.lineage] = entry
    return surviving


def _followed(entry: FeedEntry, rows: Mapping[str, FeedEntry], after: FeedPosition) -> list[FeedEntry]:
    """The epochs that a rollback's rows follow on: one that undoes another brings epochs back."""
    found: list[FeedEntry] = []
    before = entry.before
    while before is not None and before.epoch > after.epoch and before.lineage in rows:
        found.insert(0, rows[before.lineage])
        before = found[0].before
    known = bool(before and before.lineage and after.lineage)
    if (
        before is not None
        and after != NOTHING_SERVED
        and (before.epoch > after.epoch or (known and before.lineage != after.lineage))
    ):
        raise RefusedError(
            f"the table was rolled back to epoch {entry.epoch} by checkpoint {entry.checkpoint_id}, which "
            f"does not follow on epoch {after.epoch} as this stream knows it",
            hint=START_OVER,
        )
    return found


def _has_other_rows(entry: FeedEntry, earlier: FeedEntry) -> bool:
    """Whether ``entry`` counts for its epoch: its rows are new, of another lineage, or all that is left."""
    if entry.kind in _NEW_ROWS or earlier.kind is ManifestKind.TOMBSTONE:
        return True
    return bool(entry.lineage and earlier.lineage) and entry.lineage != earlier.lineage


def _is_final(entry: FeedEntry, history: Sequence[FeedEntry]) -> bool:
    return any(
        other.epoch > entry.epoch or (other.final and other.epoch == entry.epoch)
        for other in history
        if other.checkpoint_id >= entry.checkpoint_id
    )


def _refuse_other_lineage(entry: FeedEntry, after: FeedPosition) -> None:
    """What was served is not what the table has: it went back, or ran a final epoch again all the same."""
    known = bool(entry.lineage and after.lineage)
    if known and entry.epoch == after.epoch and entry.lineage == after.lineage:
        return
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
    if known:
        raise RefusedError(
            f"the table was rolled back to other rows of epoch {entry.epoch} (checkpoint "
            f"{entry.checkpoint_id}) than this stream has been given",
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


def _refuse_gap(history: Sequence[FeedEntry], after: FeedPosition) -> None:
    """What was pruned after ``after`` must have been nothing that the consumer would have to know."""
    first = history[0]
    if first.checkpoint_id <= after.checkpoint_id + 1 or _follows(history, after):
        return
    if first.epoch > after.epoch + 1:
        raise RefusedError(
            f"epoch {after.epoch + 1} was pruned: the oldest one left is epoch {first.epoch} "
            f"(checkpoint {first.checkpoint_id})",
            hint=PRUNED_HINT,
        )
    told = first.epoch < after.epoch or (first.epoch == after.epoch and first.kind in _NEW_ROWS)
    if after.checkpoint_id and not told:  # else the entry itself says what has happened
        known = bool(after.lineage and (first.lineage if first.epoch == after.epoch else first.before))
        what = "the table was rolled back since, and the rollback is pruned"
        unsure = "nothing says whether the table was rolled back since: what was between is pruned"
        raise RefusedError(
            f"this stream has been given epoch {after.epoch} (checkpoint {after.checkpoint_id}), the "
            f"oldest one left is epoch {first.epoch} (checkpoint {first.checkpoint_id}), and "
            f"{what if known else unsure}",
            hint=PRUNED_HINT,
        )


def _follows(history: Sequence[FeedEntry], after: FeedPosition) -> bool:
    """Whether the oldest rows that are left are those of ``after``, or follow on them."""
    oldest = next((entry for entry in history if entry.kind is not ManifestKind.TOMBSTONE), None)
    if oldest is None or not after.lineage:
        return False
    if oldest.epoch == after.epoch:
        return oldest.lineage == after.lineage
    return oldest.before is not None and oldest.before.lineage == after.lineage
