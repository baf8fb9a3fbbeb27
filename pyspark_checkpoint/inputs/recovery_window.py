"""How far back a query can go: the oldest checkpoint of which input, state and output can all still be had.

State is there for as long as its checkpoint. Input and output go away beside it: topics expire, tables are
vacuumed. What can be had at one checkpoint can be had at every newer one of the same lineage, so that only
some are asked; an older one that a savepoint has pinned is asked by itself. What does not answer is told as
unknown, and never taken for lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_checkpoint.errors import CheckpointError, Diverged, FormatError, Unsupported
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import Entry, readable
from pyspark_checkpoint.inputs.check import InputQuestion, check_inputs
from pyspark_checkpoint.inputs.offset_reader import InputState
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.outputs.pins import find_outputs


@dataclass(frozen=True, slots=True)
class Reach:
    """Why a query can no longer go back to one checkpoint, and what is not known of that."""

    lost: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputNow:
    """How far an output is that the newest checkpoint names. ``version`` is what it calls that itself."""

    kind: str
    target: str
    batch_id: int | None
    version: str


@dataclass(frozen=True, slots=True)
class RecoveryWindow:
    """How far back a query can go.

    Attributes:
        oldest: The oldest checkpoint from which every one of its lineage can be had; None if none can.
        newest: The newest checkpoint.
        pinned: Older checkpoints of savepoints that can be had.
        older: Those of the lineage that cannot.
        limits: Why the next older one cannot be had.
        unknown: What did not answer, or cannot be asked.
        outputs: How far those outputs are that answered.
    """

    oldest: int | None = None
    newest: int | None = None
    pinned: tuple[int, ...] = ()
    older: frozenset[int] = frozenset()
    limits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    outputs: tuple[OutputNow, ...] = ()

    def has(self, number: int) -> bool | None:
        """Whether a checkpoint can be had; None if it was not asked, being of another lineage."""
        if number in self.pinned:
            return True
        if number in self.older:
            return False
        is_within = self.oldest is not None and self.newest is not None
        return True if is_within and self.oldest <= number <= self.newest else None  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class WindowQuestion:
    """How to reach inputs and outputs of a query."""

    outputs: OutputQuestion
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def ask(self, history: CheckpointStore, manifest: CheckpointManifest) -> Reach:
        """Ask every source and output of one checkpoint. Whatever is wrong with one hides no other."""
        where, lost, unknown = self.outputs, list[str](), list[str]()
        question = InputQuestion(where.typed_url, self.source_options, where.options, history)
        try:
            for finding in check_inputs(manifest, question):
                if finding.state is not InputState.KEPT:
                    (lost if finding.state is InputState.LOST else unknown).append(f"input {finding}")
        except CheckpointError as error:
            unknown.append(f"input: {error.message}")
        for found in find_outputs(manifest, where):
            told = f"output {found.sink.kind} {found.sink.target}".strip()
            if found.output is None or manifest.batch_id is None:
                unknown.append(f"{told}: {found.problem or 'the checkpoint is of no batch'}")
                continue
            try:
                found.output.plan_roll_back(
                    found.sink.application_id or manifest.query.id, manifest.batch_id
                )
            except (Diverged, Unsupported) as error:
                lost.append(f"{told}: {error.message}")
            except CheckpointError as error:
                unknown.append(f"{told}: {error.message}")
        return Reach(tuple(lost), tuple(unknown))

    def positions(self, manifest: CheckpointManifest) -> Iterator[OutputNow]:
        """How far each output of a checkpoint is; what gives no answer is left out."""
        for found in find_outputs(manifest, self.outputs):
            if found.output is not None:
                with contextlib.suppress(CheckpointError):
                    at = found.output.position(found.sink.application_id or manifest.query.id)
                    if at.is_known:
                        yield OutputNow(found.sink.kind, found.sink.target, at.batch_id, at.version)


def ask_window(
    history: CheckpointStore, entries: Sequence[Entry], question: WindowQuestion
) -> RecoveryWindow:
    """Ask as few checkpoints of a history as say how far back its query can go."""

    def reach(number: int) -> Reach:
        try:
            manifest = history.load_by_id(number)
        except FormatError as error:
            return Reach(lost=(f"checkpoint {number}: {error.message}",))
        return (
            Reach((f"checkpoint {number} is gone",))
            if manifest is None
            else question.ask(history, manifest)
        )

    window = find_window(lineage_of(entries), reach)
    try:
        newest = None if window.newest is None else history.load_by_id(window.newest)
    except FormatError:
        newest = None
    return window if newest is None else replace(window, outputs=tuple(question.positions(newest)))


def find_window(lineage: Sequence[Entry], reach: Callable[[int], Reach]) -> RecoveryWindow:
    """The window within the checkpoints of one lineage, ascending. Pure but for what ``reach`` asks."""
    asked: dict[int, Reach] = {}

    def is_lost(at: int) -> bool:
        number = lineage[at].number
        if number not in asked:
            asked[number] = reach(number)
        return bool(asked[number].lost)

    first, last = 0, len(lineage)
    while first < last:  # from ``first`` on some may be had; those from ``last`` on can be
        middle = (first + last) // 2
        if is_lost(middle):
            first = middle + 1
        else:
            last = middle
    pinned = tuple(
        entry.number for at, entry in enumerate(lineage[:first]) if entry.savepoints and not is_lost(at)
    )
    return RecoveryWindow(
        oldest=lineage[first].number if first < len(lineage) else None,
        newest=lineage[-1].number if lineage else None,
        pinned=pinned,
        older=frozenset(entry.number for entry in lineage[:first]) - set(pinned),
        limits=asked[lineage[first - 1].number].lost if first > 0 else (),
        unknown=tuple(dict.fromkeys(text for found in asked.values() for text in found.unknown)),
    )


def lineage_of(entries: Sequence[Entry]) -> list[Entry]:
    """The checkpoints on which the newest one builds, ascending: what was rolled back is left out. Pure."""
    found, most = list[Entry](), None
    for entry in reversed(readable(entries)):
        if most is not None and entry.number > most:
            continue
        found.append(entry)
        most = entry.number if entry.rollback_of is None else entry.rollback_of
    return found[::-1]
