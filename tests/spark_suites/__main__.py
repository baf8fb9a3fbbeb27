"""``python -m tests.spark_suites``: run them, say how they go, and exit with 1 if anything is wrong."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from tests.spark_suites.checks import verify_histories
from tests.spark_suites.jars import prepare
from tests.spark_suites.results import judge
from tests.spark_suites.runner import Outcome, Settings, run_suites
from tests.spark_suites.suites import S3A_CONTRACT, Suite, choose, deal
from tests.support.servers.hadoop import ROOT, build_jar, s3a_conf
from tests.support.servers.s3 import seaweedfs

WORK = ROOT / ".test-results" / "spark-tests"
"""Logs and, where something failed, what the suites have left. Begun anew by each run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 0 if everything passed that is not excepted."""
    args = _parser().parse_args(argv)
    try:
        suites = choose([name for name in args.suites.split(",") if name], quick=args.quick)
    except ValueError as error:
        print(f"spark tests: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    say = _Speaker()
    began = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        say(f"Spark's own tests: {len(suites)} suites; logs in {WORK.relative_to(ROOT)}")
        jar = build_jar(WORK / "jar")
        tests = prepare(WORK / "classes", jar)
        server = stack.enter_context(seaweedfs()) if any(s.name == S3A_CONTRACT for s in suites) else None
        settings = Settings(
            tests=tests,
            jar=jar,
            heap=args.heap,
            hadoop_conf=s3a_conf(server.endpoint) if server else {},
            bucket=server.bucket if server else "",
            say=say,
        )
        say(f"set up, {time.monotonic() - began:.0f} s")
        outcomes = _run_all(suites, args.lanes, settings)
    return _conclude(outcomes, say, began)


def _run_all(suites: Sequence[Suite], lanes: int, settings: Settings) -> list[Outcome]:
    shares = deal(suites, lanes)
    with ThreadPoolExecutor(max_workers=lanes) as pool:
        homes = [WORK / f"{share[0].setting}-{number}" for number, share in enumerate(shares)]
        return list(pool.map(lambda share, home: run_suites(share, home, settings), shares, homes))


def _conclude(outcomes: Sequence[Outcome], say: _Speaker, began: float) -> int:
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    for outcome in outcomes:
        if outcome.store is not None:
            histories = verify_histories(outcome.store, outcome.queries)
            say(histories.line)
            problems += histories.findings
    results = [result for outcome in outcomes for result in outcome.results]
    verdict = judge(results, problems, as_root=os.geteuid() == 0)
    for text in verdict.excepted:
        say(f"excepted: {text}")
    for text in verdict.surprises:
        say(f"passed, though excepted: {text}")
    for text in verdict.failures:
        say(f"FAILED {text}")
    say(f"{verdict.summary}, in {time.monotonic() - began:.0f} s")
    if not verdict.failures:
        _tidy()
    return 1 if verdict.failures else 0


def _tidy() -> None:
    """Keep the logs, not what the suites have left."""
    for pattern in ("*/*/tmp", "*/*/spark-warehouse", "*/checkpoints"):
        for path in WORK.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


class _Speaker:
    """Lines for people, whole ones, from any lane."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.spark_suites", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="the suites nearest to the file manager: 4 minutes"
    )
    parser.add_argument("--suites", default="", metavar="A,B", help="only these, in each of their settings")
    parser.add_argument("--lanes", type=int, default=1, choices=(1, 2), help="how many at a time (1)")
    parser.add_argument("--heap", default="3g", metavar="SIZE", help="of each JVM (3g)")
    return parser


def _stop(_number: int, _frame: FrameType | None) -> None:
    """End as by Ctrl-C: the JVMs and the server end with their blocks."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
