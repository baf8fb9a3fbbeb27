"""What the benchmarks find, as values: one class a kind of row, and files of them under ``results``.

A part of the benchmark measures and saves; the report and the plot are made of what was saved, so that
parts can run one after the other, on other days, and nothing is shown that was not measured.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Cell:
    """What one way of checkpointing did in one situation, over all rounds of a run."""

    way: str
    query: str
    partitions: int
    provider: str
    delay_ms: int
    batches: int
    batch_ms: tuple[int, ...]
    phases_ms: Mapping[str, float]
    """The median of each of Spark's own phases of a batch."""
    requests: Mapping[str, int]
    bytes_out: int
    bytes_in: int
    lag_seconds: tuple[float, ...] = ()
    """From a batch's commit to its manifest, where something else than Spark makes it durable."""
    captures: int = 0
    watched_batches: int = 0
    """How many batches, the warm-up included, those captures cover."""

    @property
    def situation(self) -> tuple[str, int, str, int]:
        """What all ways are compared in."""
        return self.query, self.partitions, self.provider, self.delay_ms

    @property
    def p50(self) -> float:
        return statistics.median(self.batch_ms)

    @property
    def p99(self) -> float:
        return quantile(self.batch_ms, 0.99)

    @property
    def per_batch(self) -> float:
        """Requests a batch."""
        return sum(self.requests.values()) / max(1, self.batches)


@dataclass(frozen=True)
class Copied:
    """One copy of a running query's checkpoint, and what became of a query that was started on it."""

    how: str
    seconds: float
    requests: int
    size_bytes: int
    objects: int
    exit_code: int
    outcome: str
    """``goes on``, ``wrong results``, ``begins anew`` or ``does not start``."""
    detail: str = ""


@dataclass(frozen=True)
class Restored:
    """How long one way to get a checkpoint back took, round by round."""

    how: str
    size_bytes: int
    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Started:
    """A query started by a driver that knows nothing of it: seconds until its first batch was done."""

    way: str
    provider: str
    delay_ms: int
    restore_seconds: float
    seconds: tuple[float, ...]
    requests: int


@dataclass(frozen=True)
class Stretch:
    """Some epochs in a row of one long run."""

    way: str
    first_epoch: int
    last_epoch: int
    batch_ms: float
    requests_per_epoch: float


@dataclass(frozen=True)
class CommitSize:
    """What a commit costs with so many partitions."""

    store: str
    partitions: int
    manifest_bytes: int
    commit_ms: float
    bare_ms: float
    """The same requests with nothing around them."""
    puts: int


@dataclass(frozen=True)
class Contest:
    """Two drivers on one location."""

    way: str
    run_by_both: tuple[int, ...]
    committed_by_both: tuple[int, ...]
    stopped: int
    wrong_batches: int
    other_errors: tuple[str, ...] = ()
    """Why drivers ended that did not say that there was another one."""


@dataclass(frozen=True)
class Transcript:
    """What another benchmark printed."""

    name: str
    text: str


Row = Cell | Copied | Restored | Started | Stretch | CommitSize | Contest | Transcript
KINDS: dict[str, type[Row]] = {
    kind.__name__: kind
    for kind in (Cell, Copied, Restored, Started, Stretch, CommitSize, Contest, Transcript)
}


@dataclass(frozen=True)
class Run:
    """One run of one part: with what it was run, where, and what it found."""

    part: str
    command: str
    started: str
    seconds: float
    machine: Mapping[str, str]
    settings: Mapping[str, str]
    rows: tuple[Row, ...]
    label: str = ""
    failed: str = ""
    """Why it ended before all was measured."""

    @property
    def name(self) -> str:
        return f"{self.part}-{self.label}" if self.label else self.part


Kind = TypeVar("Kind", bound=Row)


@dataclass(frozen=True)
class Runs:
    """Everything that was saved."""

    all: tuple[Run, ...] = field(default_factory=tuple)

    def of(self, part: str) -> list[Run]:
        """The runs of a part, oldest first."""
        return sorted((run for run in self.all if run.part == part), key=lambda run: run.started)

    def rows(self, part: str, kind: type[Kind]) -> list[Kind]:
        """The rows of one kind in all runs of a part."""
        return [row for run in self.of(part) for row in run.rows if isinstance(row, kind)]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed; with few values this is the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * share) - 1)]


def encode_run(run: Run) -> str:
    """A run as JSON; each row says what it is."""
    fields = asdict(run)
    fields["rows"] = [{"kind": type(row).__name__, **asdict(row)} for row in run.rows]
    return json.dumps(fields, indent=1, sort_keys=True) + "\n"


def decode_run(text: str) -> Run:
    """The reverse of ``encode_run``."""
    fields = json.loads(text)
    fields["rows"] = tuple(_decode_row(row) for row in fields["rows"])
    return Run(**fields)


def _decode_row(fields: dict[str, Any]) -> Row:
    kind = KINDS[fields["kind"]]
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
        if name != "kind"
    }
    return kind(**values)


def save_run(run: Run, directory: Path = RESULTS) -> Path:
    """Write a run; one of the same part and label is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{run.name}.json"
    path.write_text(encode_run(run))
    return path


def load_runs(directory: Path = RESULTS) -> Runs:
    """Everything that was saved."""
    paths: Iterable[Path] = sorted(directory.glob("*.json"))
    return Runs(tuple(decode_run(path.read_text()) for path in paths))
