"""Every benchmark by its name; without one, everything: each part in a process of its own.

    python -m benchmarks [--quick] | report | parts | PART [--help]

A part that fails is told, and the others run all the same; then the exit code is 1.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from benchmarks import report
from benchmarks.frame import PARTS, load_part, tell


def plan(*, quick: bool) -> list[list[str]]:
    """The arguments of every part of a whole run, in the order of the report. Pure."""
    chosen = [name for name in PARTS if "alone" not in PARTS[name] or (quick and name == "peers")]
    return [[name, "--fresh", *(["--quick"] if quick else [])] for name in chosen]


def main(argv: Sequence[str]) -> int:
    """Run one part and show what it found, or all of them; write the pages."""
    if argv and argv[0] in PARTS:
        part = load_part(argv[0])
        part.parse(argv[1:])  # --help and what is wrong end here, before the pages are touched
        try:
            print(report.show(part, part.run(argv[1:])))
        finally:
            report.write_pages()
        return 0
    if argv not in ([], ["--quick"], ["report"]):
        parts = (f"{name:14} {(load_part(name).doc or '').partition(chr(10))[0]}" for name in PARTS)
        print("\n".join([__doc__ or "", *parts]), file=sys.stderr)
        return 0 if {"parts", "--help"} & {*argv} else 2
    failed = []
    for arguments in [] if argv == ["report"] else plan(quick="--quick" in argv):
        tell(f"python -m benchmarks {' '.join(arguments)}")
        if subprocess.run([sys.executable, "-m", "benchmarks", *arguments], check=False).returncode != 0:
            failed.append(arguments[0])
    report.write_pages()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
