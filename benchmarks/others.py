"""The benchmarks of single parts of the project, with short settings: what they print is kept.

python -m benchmarks.others [--quick] [--only bench_commit]
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.frame import Argument, Part, Settings, Transcript, tell

FULL = {
    "bench_stores": "--rounds 2 --sizes 10KB,1MB",
    "bench_commit": "--commits 10 --rounds 2 --history 500",
    "bench_sink": "--rows 100000 --rounds 1 --batches 4 --epochs 0",
    "bench_coordinated": "--rounds 2 --batches 4",
}
QUICK = {
    "bench_commit": "--commits 5 --rounds 2 --history 200",
    "bench_coordinated": "--rounds 1 --batches 4",
}


def measure_all(settings: Settings) -> Iterator[Transcript]:
    """One after the other; one that fails is an error."""
    chosen = QUICK if settings["length"] == "quick" else FULL
    for name in settings.names("only") if settings["only"] != "all" else chosen:
        typed = f"-m benchmarks.{name} {chosen.get(name, '')}".strip()
        tell(typed)
        command = [sys.executable, *shlex.split(typed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
        yield Transcript(f"python {typed}", done.stdout)


ARGUMENTS = (
    Argument("only", "all", "all", "names of modules, or all"),
    Argument("length", "full", "quick", "which settings: full or quick"),
)
PART = Part("others", __doc__, measure_all, ARGUMENTS)

if __name__ == "__main__":
    PART.run(sys.argv[1:])
