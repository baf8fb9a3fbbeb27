"""Whether a query may go on while its output has later batches of it. Pure: the rule, and nothing else.

N is the batch after which the query goes on, M the newest batch that the output has of it. The output drops
what the query writes as N + 1 to M, by number. That does no harm to the one batch N + 1 if Spark repeats it
with the offsets that it had: the rows are there already. But Spark does not run the plan of a batch that
files and Delta drop, so that the state of a stateful query must be there already too; and state of format 2
is not found without the commit of its batch. docs/outputs.md has what was measured.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pyspark_checkpoint.outputs.output import OutputPosition
from pyspark_checkpoint.spark_files.listing import CheckpointListing, has_format_2

FAIL, ROLLBACK, WARN = OUTPUT_CHOICES = ("fail", "rollback", "warn")
"""What happens if an output has batches that the query would write again."""


class OutputVerdict(enum.Enum):
    """What is done about one output."""

    GO_ON = "go on"
    ROLL_BACK = "roll back"
    REFUSE = "refuse"
    WARN = "warn"
    UNKNOWN = "unknown"
    """The output does not say what it has: that is said, and nothing more."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a query goes on, and with what in hand.

    Attributes:
        query_id: The id under which outputs know it.
        done_batch: The newest batch that it takes for done; -1: none.
        is_planned: Whether the offsets of the batch after it are known, with the log entries of sources.
        is_stateful: Whether the query has state.
        has_next_state: Whether the state of the batch after it is there too.
        state_format: Spark's version of the state's format.
        goes_back: Whether somebody chose the batch: what came after it is not wanted.
        is_clone: Whether it goes on under another id, by which no output knows it: nothing is dropped, and
            what the output has of ``query_id``, whose clone it is, comes twice.
        left_at: The last batch that it shares with the lineage that outputs have by now, where the query
            was taken back and went on otherwise; None if it is of that lineage.
    """

    query_id: str
    done_batch: int
    is_planned: bool = False
    is_stateful: bool = False
    has_next_state: bool = False
    state_format: int = 1
    goes_back: bool = False
    is_clone: bool = False
    left_at: int | None = None

    @staticmethod
    def of_location(listing: CheckpointListing, query_id: str) -> Resumption:
        """Where a query goes on from a checkpoint location that it has run in."""
        newest = listing.newest_committed
        done = -1 if newest is None else newest
        versions = [{file.version for file in files} for files in listing.state.values()]
        kept = [found for found in versions if done < 0 or max(found, default=0) > done]
        return Resumption(
            query_id,
            done,
            is_planned=done + 1 in listing.offsets,
            is_stateful=bool(listing.state),
            has_next_state=bool(kept) and all(done + 2 in found for found in kept),
            state_format=2 if has_format_2(listing.facts) else 1,
        )

    @property
    def is_left(self) -> bool:
        """Whether outputs have other batches under the numbers of those that it takes for done, or none."""
        return self.left_at is not None and self.left_at < self.done_batch

    def repeats(self, batch_id: int, *, runs_skipped_batches: bool) -> bool:
        """Whether an output that has ``batch_id`` may drop it without a loss: it is the same batch."""
        if self.is_clone or batch_id != self.done_batch + 1 or not self.is_planned:
            return False
        keeps_state = self.has_next_state and self.state_format == 1
        return runs_skipped_batches or not self.is_stateful or keeps_state


def decide(
    resumption: Resumption, position: OutputPosition, *, runs_skipped_batches: bool, choice: str
) -> OutputVerdict:
    """Decide about one output.

    Who goes back on purpose, and lets outputs be rolled back, wants the rows of batch N + 1 gone, also
    where repeating it would be exact.
    """
    if not position.is_known:
        return OutputVerdict.UNKNOWN
    newest = position.batch_id
    if newest is None or (newest <= resumption.done_batch and not resumption.is_left):
        return OutputVerdict.GO_ON
    if resumption.is_left:
        return OutputVerdict.WARN if choice == WARN else OutputVerdict.REFUSE
    is_wanted = choice != ROLLBACK or not resumption.goes_back
    if is_wanted and resumption.repeats(newest, runs_skipped_batches=runs_skipped_batches):
        return OutputVerdict.GO_ON
    return {
        FAIL: OutputVerdict.REFUSE,
        ROLLBACK: OutputVerdict.ROLL_BACK,
        WARN: OutputVerdict.WARN,
    }[choice]
