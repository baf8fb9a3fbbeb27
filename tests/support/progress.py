"""Tells the runner of the lanes how far a suite is, one JSON line at a time.

``CKPT_TEST_PROGRESS`` names the file; without it nothing is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

VARIABLE = "CKPT_TEST_PROGRESS"


def _tell(**event: object) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a") as progress:
            progress.write(json.dumps(event) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say how many tests there are."""
    _tell(tests=len(session.items))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test begins."""
    _tell(begins=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say how a test ended; what fails in its set-up or its end counts as well."""
    if report.when == "call" or report.outcome != "passed":
        _tell(ends=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 2))
