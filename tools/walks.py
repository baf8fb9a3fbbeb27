"""How many files one has to read to follow a batch: four walks through the package, counted as they run.

``python -m tools.walks`` prints the table, with ``--files`` the files too. ``tests/test_house.py`` holds
the numbers. A walk is one thing that the package does, in this process and without Spark. Counted are the
files of the upper half (everything above ``history/``) in which a function was called, and the calls that
go from one package to another. What was needed once (imports, a first batch) is done before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType

import pyspark_checkpoint
from pyspark_checkpoint.cli.main import main as ckpt
from tests.support.made_location import MadeLocation, capture, open_capture
from tests.support.made_stream import MadeStream

PACKAGE = Path(pyspark_checkpoint.__file__).parent
UPPER = frozenset(
    ("cli", "plugin", "session", "sink", "listener", "restorer", "spark", "inputs", "outputs", "capture")
) | {"registry", "spark_files"}
"""The packages and modules above ``history/``, and what they read of Spark's files."""


@dataclass
class Walk:
    """What was entered while something was done."""

    files: set[str] = field(default_factory=set)
    """Every file of the package, relative to it."""
    changes: int = 0
    """Calls from one package into another."""

    @property
    def upper(self) -> list[str]:
        """The files of the upper half."""
        return sorted(name for name in self.files if _package(name) in UPPER)


class Tracer:
    """Counts calls of functions of the package, on every thread that is started meanwhile."""

    def __init__(self) -> None:
        self.walk = Walk()
        self._lock = threading.Lock()
        self._names: dict[CodeType, str | None] = {}

    @contextmanager
    def running(self) -> Iterator[Walk]:
        """Count inside the block."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield self.walk
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        name = self._name(frame.f_code)
        if name is None:
            return
        caller = frame.f_back
        while caller is not None and self._name(caller.f_code) is None:
            caller = caller.f_back
        before = None if caller is None else self._name(caller.f_code)
        with self._lock:
            self.walk.files.add(name)
            self.walk.changes += before is not None and _package(before) != _package(name)

    def _name(self, code: CodeType) -> str | None:
        """The file of a function of the package; None for everything else, and for what an import runs."""
        if code not in self._names:
            path = Path(code.co_filename)
            is_ours = path.is_relative_to(PACKAGE) and code.co_name != "<module>"
            self._names[code] = path.relative_to(PACKAGE).as_posix() if is_ours else None
        return self._names[code]


def _package(name: str) -> str:
    return name.split("/", 1)[0].removesuffix(".py")


def walk_epoch(root: Path) -> Walk:
    """One epoch of a sink that commits rows and state: plan, tasks, commit."""
    stream = MadeStream(root)
    stream.run(2)
    with Tracer().running() as walk:
        stream.batch()
    return walk


def walk_capture(root: Path) -> Walk:
    """One capture of a location by the listener's core."""
    location = MadeLocation(root / "location").commit(0)
    capturer = open_capture(location, str(root / "history"))
    capturer.capture(0)
    location.commit(1)
    with Tracer().running() as walk:
        capturer.capture(1)
    return walk


def walk_restore(root: Path) -> Walk:
    """One restore of a captured checkpoint into a fresh location, as a program calls it."""
    url = str(root / "history")
    capture(MadeLocation(root / "location").commit(0, 1), url, 0, 1)
    with Tracer().running() as walk:
        pyspark_checkpoint.restore(url, str(root / "fresh"))
    return walk


def walk_verify(root: Path) -> Walk:
    """``ckpt verify`` of a history."""
    url = str(root / "history")
    capture(MadeLocation(root / "location").commit(0, 1), url, 0, 1)
    with redirect_stdout(StringIO()), Tracer().running() as walk:
        status = ckpt(["verify", url])
    assert status == 0
    return walk


WALKS: dict[str, Callable[[Path], Walk]] = {
    "epoch": walk_epoch,
    "capture": walk_capture,
    "restore": walk_restore,
    "verify": walk_verify,
}


def count(name: str) -> Walk:
    """Do one walk twice, in fresh places, and count the second time: by then everything is imported."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as place:
            walk = WALKS[name](Path(place))
    return walk


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="name the files")
    args = parser.parse_args()
    print(f"{'walk':<10}{'upper half':>12}{'all files':>12}{'changes':>10}")
    for name in WALKS:
        walk = count(name)
        print(f"{name:<10}{len(walk.upper):>12}{len(walk.files):>12}{walk.changes:>10}")
        for file in walk.upper if args.files else ():
            print(f"  {file}")


if __name__ == "__main__":
    main()
