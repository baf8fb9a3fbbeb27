"""What every output of a query can be asked. One module an output; nobody else knows its format.

A sink remembers the newest batch that it has taken from a query, and drops a batch with the same or a
lower number without looking at its rows. So after a restore to batch N the batches above N are lost, in
silence, if the output already has them. Whoever restores or starts a query asks the output first:

1. The output has N: the query goes on.
2. It has more than N: refused, and nothing is changed, unless the output goes back too.
3. It cannot be asked: said so; what may come twice is named by its offsets.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pyspark_checkpoint.errors import Unsupported

_MAX_NAMED = 5


class OutputKind(enum.Enum):
    """What a query writes to, as a manifest names it."""

    CKPT_SINK = "ckpt-sink"
    FILE = "file"
    DELTA = "delta"
    ICEBERG = "iceberg"
    KAFKA = "kafka"
    FOREACH_BATCH = "foreach-batch"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """How far an output is.

    Attributes:
        batch_id: The newest batch that it has of the query; None if it has none, or if that is not known.
        version: What the output itself calls its present state, such as the version of a Delta table.
        is_known: False if the output no longer says what it has of the query, such as an Iceberg table
            whose older snapshots have expired.
    """

    batch_id: int | None
    version: str = ""
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class RollBackPlan:
    """How an output goes back to the batch at which its query goes on. A dry run prints it.

    Attributes:
        kind: What the output is.
        target: Where it is, without credentials.
        query_id: The query whose batches go.
        batch_id: The newest batch of the query that stays; -1: none of them does.
        from_version: What the output itself calls its present state.
        to_version: What it calls the state to which it goes back.
        dropped: What goes, a line each, such as the batch and version of each commit, newest first.
        others: Commits that somebody else made since, a line each. They would go too, so that a plan with
            any is not carried out unless the caller was told to.
        details: What the adapter needs to carry the plan out, by names of its own.
    """

    kind: OutputKind
    target: str
    query_id: str
    batch_id: int
    from_version: str
    to_version: str
    dropped: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputPin:
    """What keeps an output's state for a savepoint.

    Attributes:
        version: What the output calls that state.
        is_kept: Whether it is kept until it is unpinned; otherwise the output's own clean-up removes it.
        until: Until when it can be had if it is not kept, in words.
    """

    version: str
    is_kept: bool
    until: str = ""


class Output(abc.ABC):
    """An output that can be asked how far it is and can go back. Asking and planning change nothing."""

    kind: ClassVar[OutputKind]
    runs_skipped_batches: ClassVar[bool]
    """Whether Spark runs the plan of a batch that this output then drops, so that state goes on."""
    records_every_batch: ClassVar[bool] = False
    """Whether batches without rows are recorded too: one that is not there was never written."""

    def __init__(self, target: str) -> None:
        """``target`` is where the rows go, as people write it; never with credentials."""
        self.target = target

    @abc.abstractmethod
    def position(self, query_id: str) -> OutputPosition:
        """Find the newest batch that the output has of a query.

        Raises:
            StoreError: The output cannot be reached.
            FormatError: Its own records cannot be read.
        """

    def plan_roll_back(self, query_id: str, batch_id: int) -> RollBackPlan | None:
        """Plan how the output drops what it has of a query after ``batch_id``.

        Returns:
            The plan; None if the output has nothing after ``batch_id`` and nothing half done.

        Raises:
            Diverged: It no longer has the state of that batch; the hint names the ways that are left.
            Unsupported: This kind of table cannot go back from here; the hint names the way that can.
            StoreError: The output cannot be reached.
            FormatError: Its own records cannot be read.
        """
        raise self._cannot_go_back(query_id, batch_id)

    def roll_back(self, plan: RollBackPlan) -> None:
        """Carry a plan out. Killed anywhere, planning and carrying out again finishes it.

        Raises:
            StaleAttempt: Somebody committed to the output since it was planned. Nothing was changed.
            StoreError: The output cannot be reached.
        """
        raise self._cannot_go_back(plan.query_id, plan.batch_id)

    def begin(self, batch_id: int) -> None:  # noqa: B027 - most outputs begin with any batch
        """Let a new output take the batch after ``batch_id`` as its first, if it can begin with that.

        Killed anywhere, repeating finishes it.
        """

    def can_begin(self, batch_id: int) -> bool:  # noqa: ARG002
        """Whether ``begin`` has something to do: the output is new, or was begun and not finished."""
        return False

    def pin(self, name: str, query_id: str, batch_id: int) -> OutputPin | None:  # noqa: ARG002
        """Keep the state of a batch for the savepoint ``name``; None if the output cannot.

        Repeating it changes nothing.
        """
        return None

    def unpin(self, name: str) -> None:  # noqa: B027 - an output that pins nothing has nothing to do
        """Let go of what ``pin`` keeps under the name. One that is not there is no error."""

    def _cannot_go_back(self, query_id: str, batch_id: int) -> Unsupported:
        return Unsupported(
            f"the {self} cannot go back to batch {batch_id} of query {query_id}",
            hint="let the query write to another target, or restore the newest checkpoint",
        )

    def __str__(self) -> str:
        return f"{self.kind.value} output {self.target}"


def listed(names: Sequence[str]) -> str:
    """Some of them, for a message."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(name[:200] for name in names[:_MAX_NAMED])}{more}"
