"""The benchmarks of single parts of the project, with short settings: what they print is kept.

python -m benchmarks.others [--quick] [--only bench_commit]
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.part import Argument, Part, Settings, run_part, tell
from benchmarks.records import Transcript

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
LONGEST_SECONDS = 1200


def measure_all(settings: Settings) -> Iterator[Transcript]:
    """One after the other; one that fails is an error."""
    chosen = QUICK if settings.text("length") == "quick" else FULL
    for name in settings.names("only") if settings.text("only") != "all" else chosen:
        command = [sys.executable, "-m", f"benchmarks.{name}", *shlex.split(chosen.get(name, ""))]
        tell(f"{name} {chosen.get(name, '')}")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
        yield Transcript(f"python -m benchmarks.{name} {chosen.get(name, '')}".strip(), done.stdout)


ARGUMENTS = (
    Argument("only", "all", "all", "names of modules, or all"),
    Argument("length", "full", "quick", "which settings: full or quick"),
)
PART = Part("others", (__doc__ or "").partition("\n")[0], ARGUMENTS, measure_all, "benchmarks.others")

if __name__ == "__main__":
    run_part(PART, sys.argv[1:])
