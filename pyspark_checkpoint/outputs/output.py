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
from dataclasses import dataclass
from typing import ClassVar

from pyspark_checkpoint.errors import Diverged


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


class Output(abc.ABC):
    """An output that can be asked how far it is. Asking changes nothing."""

    kind: ClassVar[OutputKind]
    runs_skipped_batches: ClassVar[bool]
    """Whether Spark runs the plan of a batch that this output then drops, so that state goes on."""

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

    def __str__(self) -> str:
        return f"{self.kind.value} output {self.target}"


def check_position(output: Output, query_id: str, batch_id: int) -> OutputPosition:
    """Refuse to go on from ``batch_id`` if the output has taken later batches of the query.

    Args:
        output: Where the query's rows go.
        query_id: The id under which the query will go on.
        batch_id: The last batch that the query will take for done.

    Returns:
        Where the output stands.

    Raises:
        Diverged: The output has later batches. Nothing was changed.
    """
    found = output.position(query_id)
    if found.batch_id is None or found.batch_id <= batch_id:
        return found
    first, last = batch_id + 1, found.batch_id
    lost = f"batch {first}" if first == last else f"batches {first} to {last}"
    raise Diverged(
        f"the {output} has batch {last} of this query, and the query would go on after batch {batch_id}: "
        f"the output would drop {lost} by number, whatever rows are in it",
        hint=f"restore a checkpoint of batch {last}, take the output back to batch {batch_id} first, or "
        "write to another target",
    )
