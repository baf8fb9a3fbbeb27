"""Which tests start what: markers that follow from fixtures, and a guard that finds the missing ones.

``spark``: starts a JVM. ``process``: starts the command, a shell or another Python. ``server``: starts
another program, such as a cloud's stand-in or a browser, or listens on a port itself. ``crash``: kills
drivers or lets two of them meet. ``promise``: shows a feature's main promise, so that ``make test`` runs
it. A test without any of these may start nothing and may not listen: the guard refuses it, and the test
fails. The children of a test without ``spark`` find a Java that says so,
and ``check_announced`` knows the markers of the test.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.announced import VARIABLE, MissingMarkerError

StrOrBytes = str | bytes | Path
Command = StrOrBytes | Sequence[StrOrBytes]

SPARK_FIXTURES = frozenset({"spark", "jar", "jvm", "workbench", "repository", "submitter"})
SERVER_FIXTURES = frozenset(
    {"s3_server", "gs_server", "az_server", "rclone_server", "browser", "strict_server"}
)
SERVER_PARAMETERS = frozenset({"s3", "gs", "az"})
"""Values of a parameter for which a fixture or a test starts the server of that name."""

_JAVA = frozenset({"java", "javac", "mvn", "mvn.sh", "pyspark"})
_SMALL_TOOLS = frozenset({"ckpt", "bash", "sh", "git", "ps", "mount", "unshare"})
_OF_PYTHON = frozenset({"uname", "ldconfig"})
"""What Python's own library starts to learn about the machine."""
_MORE_THAN = {"process": ("server", "spark")}
"""Markers that allow what this one allows."""
_NO_JAVA = Path(__file__).with_name("no-java")


class Guard:
    """Looks at every program that one test starts."""

    def __init__(self, markers: frozenset[str]) -> None:
        self._markers = markers
        self.missing: list[str] = []
        """What the test started without announcing it."""

    def check(self, command: Command, executable: StrOrBytes | None = None) -> None:
        """Refuse a program that the test does not announce."""
        first = command if isinstance(command, str | bytes | Path) else next(iter(command))
        program = os.fsdecode(executable or first)
        needed = marker_for(program)
        if needed is not None and not {needed, *_MORE_THAN.get(needed, ())} & self._markers:
            self.missing.append(f"@pytest.mark.{needed} is missing: the test starts {program}")
            raise MissingMarkerError(self.missing[-1])

    def listening(self, listen: Callable[..., None]) -> Callable[..., None]:
        """``socket.listen``, for tests that announce a server or a JVM, which is called back."""

        @functools.wraps(listen)
        def watched(connection: socket.socket, *backlog: int) -> None:
            if not {"server", "spark"} & self._markers and connection.family != socket.AF_UNIX:
                self.missing.append("@pytest.mark.server is missing: the test listens on a port")
                raise MissingMarkerError(self.missing[-1])
            listen(connection, *backlog)

        return watched

    def watching(self, start: Callable[..., None]) -> Callable[..., None]:
        """The constructor of ``Popen``, with a look at its program first."""

        @functools.wraps(start)
        def watched(process: object, args: Command, *rest: Any, **settings: Any) -> None:
            if not settings.get("shell"):
                self.check(args, settings.get("executable"))
            start(process, args, *rest, **settings)

        return watched


def marker_for(program: str) -> str | None:
    """The marker that a test needs to start ``program``; None if it needs none."""
    name = Path(program).name
    if name in _JAVA or name.startswith("spark-"):
        return "spark"
    if name in _OF_PYTHON:
        return None
    is_small = name in _SMALL_TOOLS or name.endswith(".sh")
    is_python = name.startswith("python") or program == sys.executable
    return "process" if is_small or is_python else "server"


def markers_of_fixtures(names: Sequence[str], parameters: Sequence[object]) -> set[str]:
    """The markers of a test that asks for these fixtures, with these parameters."""
    found = set()
    if SPARK_FIXTURES & set(names):
        found.add("spark")
    served = {value for value in parameters if isinstance(value, str)} & SERVER_PARAMETERS
    if served or SERVER_FIXTURES & set(names):
        found.add("server")
    return found


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
    item.stash[_GUARD] = guard = Guard(markers)
    with pytest.MonkeyPatch.context() as patch:
        if "spark" not in markers:
            patch.setenv("JAVA_HOME", str(_NO_JAVA))
        patch.setenv(VARIABLE, " ".join(sorted(markers)))
        patch.setattr(subprocess.Popen, "__init__", guard.watching(subprocess.Popen.__init__))
        patch.setattr(socket.socket, "listen", guard.listening(socket.socket.listen))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that swallowed the guard's error."""
    result = yield
    if item.stash[_GUARD].missing:
        pytest.fail(item.stash[_GUARD].missing[0])
    return result


_GUARD = pytest.StashKey[Guard]()
