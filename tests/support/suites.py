"""What each target of the Makefile runs: directories, and which of their tests by marker.

A test is in exactly one of ``unit``, the processes and promises of ``test``, ``integration`` and ``crash``;
``test`` also runs all of ``unit``. ``tests/unit/test_suites.py`` holds that to be true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

NO_PROCESS = "not spark and not server and not crash and not process"
PROCESS = "process and not spark and not server and not crash"
PROMISE = "promise"
INTEGRATION = "(spark or server) and not crash and not promise"
CRASH = "crash and not promise"
DAILY_SCHEDULES = {"SEEDS": "10000"}
"""The commit protocol under this many random schedules; ``make unit`` has a tenth of them."""
SCHEDULES = ("tests/simulation/test_schedules.py", "tests/sink/test_settled.py")


@dataclass(frozen=True)
class Suite:
    """One pytest process: which tests, and about how long they take on an idle machine."""

    name: str
    paths: tuple[str, ...]
    markers: str
    seconds: int
    environment: Mapping[str, str] = field(default_factory=dict)
    coverage: bool = False


def _spark_suites(markers: str, seconds: Mapping[str, int]) -> tuple[Suite, ...]:
    return tuple(Suite(name, (f"tests/{name}",), markers, taken) for name, taken in seconds.items())


SIMULATION = Suite("simulation", ("tests/simulation",), NO_PROCESS, 40)
PROTOCOL = Suite("protocol", ("tests/contract", "tests/fault", "tests/sink"), NO_PROCESS, 60)
LOCATIONS = Suite("locations", ("tests/capture", "tests/coordinated"), NO_PROCESS, 50)
_ELSEWHERE = (f"--ignore={path}" for suite in (SIMULATION, PROTOCOL, LOCATIONS) for path in suite.paths)
UNIT = Suite("unit", ("tests", *_ELSEWHERE), NO_PROCESS, 70)
IN_MEMORY = (UNIT, PROTOCOL, LOCATIONS, SIMULATION)
"""Suites whose temporary files may be in memory: none of them needs the properties of a disk."""
PROCESSES = Suite("processes", ("tests",), PROCESS, 50)
PROMISES = {
    "filemanager": 60,
    "sink": 60,
    "coordinated": 60,
    "capture": 60,
    "plugin": 60,
    "cli": 30,
    "docs": 30,
    "contract": 30,
}
SPARK = {
    "filemanager": 300,
    "sink": 240,
    "coordinated": 200,
    "capture": 240,
    "plugin": 300,
    "cli": 60,
    "docs": 40,
    "contract": 90,
    "fault": 60,
    "unit": 10,
}
KILLS = {"sink": 260, "coordinated": 180, "filemanager": 150, "capture": 120, "plugin": 60}

TARGETS: Mapping[str, tuple[Suite, ...]] = {
    "unit": IN_MEMORY,
    "test": (
        *(
            replace(suite, coverage=True, seconds=2 * suite.seconds)
            for suite in (UNIT, PROTOCOL, LOCATIONS)
        ),
        SIMULATION,
        PROCESSES,
        *_spark_suites(PROMISE, PROMISES),
    ),
    "integration": (
        *_spark_suites(INTEGRATION, SPARK),
        Suite("schedules", SCHEDULES, NO_PROCESS, 70, DAILY_SCHEDULES),
    ),
    "crash": _spark_suites(CRASH, KILLS),
}
