"""A part of the benchmark: settings for a full and a quick run, and rows that are saved as they come."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import machine_facts, now_text
from benchmarks.records import RESULTS, Row, Run, save_run


@dataclass(frozen=True)
class Argument:
    """A setting of a part: what it is by default, and what it is with ``--quick``."""

    name: str
    full: str
    quick: str
    meaning: str

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")


class Settings:
    """The chosen values by name; a number or a list is read where it is needed."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        return self._values[name]

    def number(self, name: str) -> int:
        return int(self._values[name])

    def names(self, name: str) -> list[str]:
        return [value for value in self._values[name].split(",") if value]

    def numbers(self, name: str) -> list[int]:
        return [int(value) for value in self.names(name)]

    def as_dict(self) -> dict[str, str]:
        return dict(self._values)


@dataclass(frozen=True)
class Part:
    """One benchmark that can be run alone. ``measure`` gives its rows one after the other."""

    name: str
    summary: str
    arguments: tuple[Argument, ...]
    measure: Callable[[Settings], Iterable[Row]]
    module: str

    def parse(self, argv: Sequence[str]) -> tuple[Settings, str, Path]:
        """The settings, the label, and where to save."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.summary)
        parser.add_argument("--quick", action="store_true", help="few batches: minutes, and noisier")
        parser.add_argument("--label", default="", help="keep this run beside others of this part")
        parser.add_argument("--results", type=Path, default=RESULTS, help="where to save what was found")
        for argument in self.arguments:
            text = f"{argument.meaning} ({argument.full}; quick {argument.quick or 'none'})"
            parser.add_argument(f"--{argument.name}", help=text)
        chosen = parser.parse_args(argv)
        values = {}
        for argument in self.arguments:
            given: str | None = getattr(chosen, argument.attribute)
            values[argument.name] = given or (argument.quick if chosen.quick else argument.full)
        return Settings(values), chosen.label, chosen.results


def run_part(part: Part, argv: Sequence[str]) -> Run:
    """Measure, and save after every row, so that what was measured survives an interruption."""
    settings, label, directory = part.parse(argv)
    machine, began, started = machine_facts(), time.monotonic(), now_text()
    command = shlex.join(["python", "-m", part.module, *argv])
    rows: list[Row] = []

    def current(failed: str = "") -> Run:
        seconds = round(time.monotonic() - began, 1)
        values = settings.as_dict()
        return Run(part.name, command, started, seconds, machine, values, tuple(rows), label, failed)

    try:
        for row in part.measure(settings):
            rows.append(row)
            save_run(current(), directory)
    except Exception as error:
        save_run(current(f"{type(error).__name__}: {error}".partition("\n")[0]), directory)
        raise
    run = current()
    path = save_run(run, directory)
    print(f"{part.name}: {len(rows)} rows in {run.seconds:.0f} s, saved as {path.name}", file=sys.stderr)
    return run


def tell(text: str) -> None:
    """A line for whoever watches."""
    print(f"  {text}", file=sys.stderr, flush=True)
