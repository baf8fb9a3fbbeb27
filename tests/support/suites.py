"""What each target of the Makefile runs: directories, and which of their tests by marker.

A test is in exactly one of ``unit``, the processes and promises of ``test``, ``integration`` and ``crash``;
``test`` also runs all of ``unit``. ``tests/test_suites.py`` holds that to be true.
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
ELSEWHERE = "elsewhere"
"""Tests with a server that stand beside the fast ones of their package."""
SCHEDULES = (
    "tests/protocol/simulation/test_schedules.py",
    "tests/protocol/test_crash_every_step.py",
    "tests/sink/test_settled.py",
    "tests/sink/test_state_crash_points.py",
)


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
    return tuple(Suite(name, _directories(name), markers, taken) for name, taken in seconds.items())


def _directories(name: str) -> tuple[str, ...]:
    if name == ELSEWHERE:
        return (
            "tests",
            "--ignore=tests/integration",
            "--ignore=tests/contract",
            "--ignore=tests/ecosystem",
        )
    return (f"tests/{name}" if name == "contract" else f"tests/integration/{name}",)


_SIMULATION = "tests/protocol/simulation"
_PROTOCOL = ("tests/contract", "tests/format", "tests/protocol")
_FEATURES = tuple(
    f"tests/{room}" for room in ("capture", "inputs", "listener", "outputs", "registry", "restorer", "sink")
)
SIMULATION = Suite("simulation", (_SIMULATION,), NO_PROCESS, 40)
PROTOCOL = Suite("protocol", (*_PROTOCOL, f"--ignore={_SIMULATION}"), NO_PROCESS, 55)
FEATURES = Suite("features", _FEATURES, NO_PROCESS, 60)
UNIT = Suite("unit", ("tests", *(f"--ignore={path}" for path in (*_PROTOCOL, *_FEATURES))), NO_PROCESS, 60)
IN_MEMORY = (UNIT, PROTOCOL, FEATURES, SIMULATION)
"""Suites whose temporary files may be in memory: none of them needs the properties of a disk."""
PROCESSES = Suite("processes", ("tests",), PROCESS, 50)
PROMISES = {
    "filemanager": 60,
    "sink": 60,
    "coordinated": 60,
    "listener": 60,
    "outputs": 40,
    "plugin": 60,
    "cli": 30,
    "docs": 30,
    "contract": 30,
}
SPARK = {
    "filemanager": 300,
    "sink": 240,
    "coordinated": 200,
    "listener": 240,
    "outputs": 120,
    "plugin": 300,
    "cli": 60,
    "docs": 40,
    "contract": 300,
    ELSEWHERE: 60,
}
KILLS = {"sink": 260, "coordinated": 180, "filemanager": 150, "listener": 120, "plugin": 60}

TARGETS: Mapping[str, tuple[Suite, ...]] = {
    "unit": IN_MEMORY,
    "test": (
        *(replace(suite, coverage=True, seconds=2 * suite.seconds) for suite in (UNIT, PROTOCOL, FEATURES)),
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
