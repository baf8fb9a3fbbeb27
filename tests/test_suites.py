"""Every test runs in exactly one target, and what starts a program says so."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.support.announced import MissingMarkerError
from tests.support.markers import Guard, marker_for, markers_of_fixtures
from tests.support.suites import CRASH, ELSEWHERE, INTEGRATION, KILLS, NO_PROCESS, PROCESS, PROMISE, SPARK

TESTS = Path(__file__).parents[0]


def matches(expression: str, markers: set[str]) -> bool:
    """Whether a test with these markers is chosen."""

    def is_set(name: str, /, **_: str | int | bool | None) -> bool:
        return name in markers

    return Expression.compile(expression).evaluate(is_set)


def test_a_test_is_in_exactly_one_target() -> None:
    """Whatever its markers are, as long as a promise has real parts."""
    names = ("spark", "server", "crash", "promise", "process")
    for size in range(len(names) + 1):
        for markers in map(set, itertools.combinations(names, size)):
            if "promise" in markers and not markers & {"spark", "server"}:
                continue
            if "crash" in markers and not markers & {"spark", "server"}:
                continue
            chosen = [
                name
                for name in (NO_PROCESS, PROCESS, PROMISE, INTEGRATION, CRASH)
                if matches(name, markers)
            ]
            assert len(chosen) == 1, f"{markers}: {chosen}"


def test_every_directory_of_tests_is_in_a_target() -> None:
    """A new directory must be given its place."""
    integration = TESTS / "integration"
    directories = {path.parent.relative_to(integration).parts[0] for path in integration.rglob("test_*.py")}
    assert directories | {"contract", ELSEWHERE} == SPARK.keys()
    assert KILLS.keys() <= SPARK.keys()


@pytest.mark.parametrize(
    ("program", "marker"),
    [
        ("/usr/bin/java", "spark"),
        ("tools/mvn.sh", "spark"),
        ("pyspark/bin/spark-submit", "spark"),
        ("/opt/weed", "server"),
        ("node", "server"),
        (sys.executable, "process"),
        ("git", "process"),
        ("uname", None),
    ],
)
def test_a_program_needs_its_marker(program: str, marker: str | None) -> None:
    assert marker_for(program) == marker


def test_the_guard_refuses_what_a_test_has_not_announced() -> None:
    """And remembers it, in case the test swallows the error."""
    guard = Guard(frozenset({"server"}))
    guard.check(["node"])
    with pytest.raises(MissingMarkerError, match=r"mark\.spark is missing"):
        guard.check("java")
    assert len(guard.missing) == 1


@pytest.mark.process
def test_an_unannounced_program_fails_its_test_even_if_the_error_is_swallowed(tmp_path: Path) -> None:
    """Shown with a pytest of its own."""
    (tmp_path / "test_sly.py").write_text(
        "import contextlib, subprocess\n"
        "def test_sly():\n"
        "    with contextlib.suppress(Exception):\n"
        "        subprocess.run(['weed', 'server'])\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.markers", str(tmp_path)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "@pytest.mark.server is missing: the test starts weed" in done.stdout


@pytest.mark.process
def test_the_children_of_a_test_without_spark_find_no_java() -> None:
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    done = subprocess.run(["sh", str(java)], capture_output=True, text=True, check=False)
    assert done.returncode == 97
    assert "pytest.mark.spark" in done.stderr


def test_fixtures_and_parameters_give_markers() -> None:
    assert markers_of_fixtures(["tmp_path", "spark"], []) == {"spark"}
    assert markers_of_fixtures(["place"], ["s3"]) == {"server"}
    assert markers_of_fixtures(["place"], ["file", 3]) == set()
