"""Which tests start what: markers that follow from fixtures, and a guard that finds the missing ones.

``spark``: starts a JVM. ``server``: starts another program, such as a cloud's stand-in or a browser.
``crash``: kills drivers or lets two of them meet. ``promise``: shows a feature's main promise, so that
``make test`` runs it. A test without ``spark`` and ``server`` may start nothing but Python: the guard
refuses the rest, and the test fails. The children of a test without ``spark`` find a Java that says so,
and ``check_announced`` knows the markers of the test.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.announced import VARIABLE, MissingMarkerError

SPARK_FIXTURES = frozenset({"spark", "jar", "jvm", "workbench", "repository", "submitter"})
SERVER_FIXTURES = frozenset({"s3_server", "gs_server", "az_server", "rclone_server", "browser"})
SERVER_PARAMETERS = frozenset({"s3", "gs", "az"})
"""Values of a parameter for which a fixture or a test starts the server of that name."""

_JAVA = frozenset({"java", "javac", "mvn", "mvn.sh", "pyspark"})
_SMALL_TOOLS = frozenset({"ckpt", "bash", "sh", "git", "ps", "mount", "unshare", "uname", "ldconfig"})
_NO_JAVA = Path(__file__).with_name("no-java")


class Guard:
    """Looks at every program that this process starts, and knows which test is running."""

    def __init__(self) -> None:
        self._allowed: frozenset[str] | None = None
        self._missing: list[str] = []

    def listen(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: refuse a program that the running test does not announce."""
        if self._allowed is None or event not in ("subprocess.Popen", "os.posix_spawn", "os.system"):
            return
        needed = marker_for(_program(event, arguments))
        if needed is not None and needed not in self._allowed:
            program = _program(event, arguments)
            self._missing.append(f"@pytest.mark.{needed} is missing: the test starts {program}")
            raise MissingMarkerError(self._missing[-1])

    def begin(self, markers: frozenset[str]) -> None:
        """A test with these markers begins."""
        self._allowed = markers
        self._missing = []

    def end(self) -> None:
        """The test is over."""
        self._allowed = None

    @property
    def missing(self) -> list[str]:
        """What the running test started without announcing it."""
        return self._missing


def marker_for(program: str) -> str | None:
    """The marker that a test needs to start ``program``; None if it needs none."""
    name = Path(program).name
    if name in _JAVA or name.startswith("spark-"):
        return "spark"
    is_small = name in _SMALL_TOOLS or name.endswith(".sh")
    is_python = name.startswith("python") or program == sys.executable
    return None if is_small or is_python else "server"


def _program(event: str, arguments: tuple[Any, ...]) -> str:
    if event == "os.system":
        return "sh"
    program = arguments[0]
    if program is None:
        command = arguments[1]
        program = command if isinstance(command, str | bytes | Path) else command[0]
    return program.decode() if isinstance(program, bytes) else str(program)


def markers_of_fixtures(names: Sequence[str], parameters: Sequence[object]) -> set[str]:
    """The markers of a test that asks for these fixtures, with these parameters."""
    found = set()
    if SPARK_FIXTURES & set(names):
        found.add("spark")
    served = {value for value in parameters if isinstance(value, str)} & SERVER_PARAMETERS
    if served or SERVER_FIXTURES & set(names):
        found.add("server")
    return found


_guard = Guard()
sys.addaudithook(_guard.listen)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test the markers that follow from its fixtures."""
    for item in items:
        if isinstance(item, pytest.Function):
            parameters = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
            for name in sorted(markers_of_fixtures(item.fixturenames, parameters)):
                item.add_marker(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a test from its set-up to its end."""
    markers = frozenset(marker.name for marker in item.iter_markers())
    with pytest.MonkeyPatch.context() as patch:
        if "spark" not in markers:
            patch.setenv("JAVA_HOME", str(_NO_JAVA))
        patch.setenv(VARIABLE, " ".join(sorted(markers)))
        _guard.begin(markers)
        try:
            return (yield)
        finally:
            _guard.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that swallowed the guard's error."""
    del item
    result = yield
    if _guard.missing:
        pytest.fail(_guard.missing[0])
    return result
