"""Run suites of tests side by side, and say on the way how far they are.

    python -m tests.support.lanes test
    python -m tests.support.lanes integration --lanes 1 --only sink,capture

A suite is a pytest process of its own: Spark allows one session with one class path in each. The suites of
a target wait in one queue, the longest first, and as many run at once as there are lanes. The output of
each is kept in ``.test-results``; that of a suite with failures is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.progress import VARIABLE
from tests.support.suites import IN_MEMORY, TARGETS, Suite

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / ".test-results"
_LOOK_SECONDS = 0.2
_SAY_SECONDS = 10.0
_NO_TESTS = 5
_STOP_SECONDS = 60.0
_FAST = frozenset(suite.name for suite in IN_MEMORY)
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 2 << 30


@dataclass
class Run:
    """A suite that runs, and what is known of it so far."""

    suite: Suite
    process: subprocess.Popen[bytes]
    log: Path
    progress: Path
    began: float
    tests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    current: str = ""
    _read: int = 0

    def look(self) -> None:
        """Take in what the suite has told since the last look."""
        if not self.progress.exists():
            return
        with self.progress.open() as told:
            told.seek(self._read)
            for line in told:
                if line.endswith("\n"):
                    self._read += len(line)
                    self._take(json.loads(line))

    def _take(self, event: dict[str, object]) -> None:
        if "tests" in event:
            self.tests = int(str(event["tests"]))
        elif "begins" in event:
            self.current = str(event["begins"])
        else:
            self.outcomes[str(event["outcome"])] += 1
            if event["outcome"] == "failed":
                self.failed.append(str(event["ends"]))
                print(f"FAILED {event['ends']}", flush=True)

    @property
    def done(self) -> int:
        """How many tests are over."""
        return sum(self.outcomes.values())

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return f"{self.suite.name} {self.done}/{self.tests or '?'}"


class Lanes:
    """The queue of suites, those that run, and those that are done."""

    def __init__(self, target: str, suites: Sequence[Suite], lanes: int, arguments: Sequence[str]) -> None:
        self._target = target
        self._lanes = lanes
        self._arguments = arguments
        self._waiting = sorted(suites, key=lambda suite: -suite.seconds)
        self._running: list[Run] = []
        self._done: list[Run] = []
        self._began = time.monotonic()

    def run(self) -> int:
        """Run everything; the exit status is 0 if every suite passed."""
        LOGS.mkdir(parents=True, exist_ok=True)
        names = ", ".join(suite.name for suite in self._waiting)
        print(f"{self._target}: {len(self._waiting)} suites in {self._lanes} lanes: {names}", flush=True)
        said = time.monotonic()
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._lanes:
                    self._running.append(self._start(self._waiting.pop(0)))
                time.sleep(_LOOK_SECONDS)
                for run in list(self._running):
                    self._look(run)
                if time.monotonic() - said > _SAY_SECONDS:
                    said = time.monotonic()
                    self._say()
        finally:
            _stop([run.process for run in self._running])
        return self._close()

    def _start(self, suite: Suite) -> Run:
        log, progress, report = (
            LOGS / f"{self._target}-{suite.name}.{kind}" for kind in ("log", "jsonl", "xml")
        )
        progress.unlink(missing_ok=True)
        coverage = ["-m", "coverage", "run", "--parallel-mode"] if suite.coverage else []
        command = [sys.executable, *coverage, "-m", "pytest", "-q", f"--junitxml={report}"]
        fast = ["-p", "tests.support.garbage"] if suite.name in _FAST else []
        command += [*fast, "-m", f"({suite.markers}) and not soak", *self._arguments, *suite.paths]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **_temporary(suite), **suite.environment, VARIABLE: str(progress)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Run(suite, process, log, progress, time.monotonic())

    def _look(self, run: Run) -> None:
        status = run.process.poll()
        run.look()
        if status is None:
            return
        self._running.remove(run)
        self._done.append(run)
        passed, failed = run.outcomes["passed"], len(run.failed)
        word = "ok" if status in (0, _NO_TESTS) else "FAILED"
        counts = f"{passed:5} passed {failed:3} failed"
        print(f"{word:6} {run.suite.name:14} {counts}  {_clock(run.seconds)}", flush=True)
        if word != "ok":
            print(run.log.read_text(errors="replace")[-20_000:], flush=True)

    def _say(self) -> None:
        now = " | ".join(f"{run} ({run.current.split('::')[-1][:60]})" for run in self._running)
        done = sum(run.done for run in [*self._done, *self._running])
        print(f"{_clock(time.monotonic() - self._began)}  {done} tests done | {now}", flush=True)

    def _close(self) -> int:
        outcomes: Counter[str] = Counter()
        for run in self._done:
            outcomes += run.outcomes
        broken = [run for run in self._done if run.process.returncode not in (0, _NO_TESTS)]
        for run in broken:
            print(f"FAILED {run.suite.name}: see {run.log.relative_to(ROOT)}")
            for name in run.failed:
                print(f"  {name}")
        skipped = f", {outcomes['skipped']} skipped" if outcomes["skipped"] else ""
        print(f"{self._target}: {_clock(time.monotonic() - self._began)} in all")
        print(f"{outcomes['passed']} passed, {outcomes['failed']} failed{skipped}", flush=True)
        return 1 if broken or not outcomes["passed"] else 0


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End suites that still run, as Ctrl-C does, so that they stop the servers and drivers they started."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _temporary(suite: Suite) -> dict[str, str]:
    """Where the temporary files of the suite are: in memory if it may and there is room."""
    if suite.name not in _FAST or not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _MEMORY_BYTES:
        return {}
    return {"PYTEST_DEBUG_TEMPROOT": str(_MEMORY)}


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def main() -> int:
    """Run the target that is named on the command line; further arguments are pytest's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--only", help="suites by name, with commas between them")
    options, arguments = parser.parse_known_args()
    suites = TARGETS[options.target]
    if options.only:
        wanted = options.only.split(",")
        suites = tuple(suite for suite in suites if suite.name in wanted)
        if len(suites) != len(wanted):
            parser.error(
                f"suites of {options.target}: {', '.join(s.name for s in TARGETS[options.target])}"
            )
    return Lanes(options.target, suites, options.lanes, arguments).run()


if __name__ == "__main__":
    raise SystemExit(main())
