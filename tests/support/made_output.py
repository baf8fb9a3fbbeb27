"""An output in memory, as Delta and Iceberg are: commits, each of a writer; a rollback is one step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_checkpoint.errors import StaleAttempt
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.outputs import ask
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.outputs.output import Output, OutputKind, OutputPosition, RollBackPlan


class MadeOutput(Output):
    """A table that everybody may commit to.

    ``commits`` are (who, batch), the oldest first; ``steps`` what was done to it; ``change`` how a change
    is made: a test may let the process die before or after it.
    """

    kind = OutputKind.DELTA

    def __init__(self, *commits: tuple[str, int], runs_skipped: bool = False) -> None:
        super().__init__("made")
        self.runs_skipped, self.commits, self.version = runs_skipped, list(commits), len(commits)
        self.steps: list[str] = []
        self.change: Callable[[Callable[[], None]], None] = lambda work: work()

    @property
    def runs_skipped_batches(self) -> bool:  # type: ignore[override]
        """As the test wants it."""
        return self.runs_skipped

    def write(self, who: str, batch_id: int) -> None:
        """Commit a batch, or drop it by its number as such sinks do."""
        if batch_id > (self.position(who).batch_id or -1):
            self.commits.append((who, batch_id))
            self.version += 1

    def position(self, query_id: str) -> OutputPosition:
        """The newest batch of the query."""
        found = [batch for who, batch in self.commits if who == query_id]
        return OutputPosition(max(found, default=None), str(self.version))

    def plan_roll_back(self, query_id: str, batch_id: int) -> RollBackPlan | None:
        """Everything after the query's last commit up to ``batch_id`` goes."""
        kept = [at for at, (who, batch) in enumerate(self.commits) if who == query_id and batch <= batch_id]
        gone = self.commits[max(kept, default=-1) + 1 :]
        if not any(who == query_id for who, _ in gone):
            return None
        return RollBackPlan(
            self.kind,
            self.target,
            query_id,
            batch_id,
            str(self.version),
            str(len(self.commits) - len(gone)),
            tuple(f"batch {batch}" for who, batch in reversed(gone) if who == query_id),
            tuple(f"batch {batch} of {who}" for who, batch in gone if who != query_id),
        )

    def roll_back(self, plan: RollBackPlan) -> None:
        """One commit, or none at all."""
        if str(self.version) != plan.from_version:
            raise StaleAttempt("somebody committed meanwhile", hint="plan again")

        def work() -> None:
            del self.commits[int(plan.to_version) :]
            self.version += 1
            self.steps.append(f"rolled back to {plan.batch_id}")

        self.change(work)


def use_output(monkeypatch: pytest.MonkeyPatch, output: MadeOutput) -> MadeOutput:
    """Let every sink that a checkpoint names be this one."""

    def opened(_question: OutputQuestion, _sink: SinkRecord) -> Output:
        return output

    monkeypatch.setattr(ask, "can_be_asked", lambda _sink: True)
    monkeypatch.setattr(OutputQuestion, "open", opened)
    return output
