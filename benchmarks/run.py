"""Everything in one go: each part in a process of its own, then RESULTS.md and the plot.

    python -m benchmarks.run [--quick] [--parts side-by-side,restore] [--fresh]

A part that fails is told, and the others run all the same; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import report
from benchmarks.frame import RESULTS, load_runs, tell

ALONE = ("file-manager", report.PEERS)
"""Run by themselves only: the side by side has the ways of the first, the second takes hours."""
MODULES = {name: f"benchmarks.{name.replace('-', '_')}" for name in (*report.PARTS, report.PEERS)}


def plan(parts: Sequence[str], *, quick: bool) -> list[list[str]]:
    """The commands to run, in the order of the report. Pure."""
    unknown = [part for part in parts if part not in MODULES]
    if unknown:
        raise SystemExit(f"no such part: {', '.join(unknown)}; choose from {', '.join(MODULES)}")
    chosen = parts or [part for part in MODULES if part not in ALONE or (quick and part == report.PEERS)]
    return [["-m", MODULES[part], *(["--quick"] if quick else [])] for part in MODULES if part in chosen]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="minutes instead of an hour, and noisier")
    parser.add_argument("--parts", default="", help=f"some of {', '.join(MODULES)}; all by default")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have saved")
    chosen = parser.parse_args()
    for run in load_runs().all if chosen.fresh else ():
        if run.part not in ALONE:
            (RESULTS / f"{run.name}.json").unlink()
    failed = []
    for command in plan([part for part in chosen.parts.split(",") if part], quick=chosen.quick):
        tell(f"python {' '.join(command)}")
        if subprocess.run([sys.executable, *command], check=False).returncode != 0:
            failed.append(command[1])
        try:
            report.main()
        except Exception as error:  # noqa: BLE001 - what the other parts measure is not lost with the page
            failed.append(f"benchmarks.report: {error}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
