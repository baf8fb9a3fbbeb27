"""One setting in one JVM: scalatest's Runner, watched by what its reporter tells."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from tests.spark_suites.events import Event, parse_event
from tests.spark_suites.jars import HERE, SparkTests
from tests.spark_suites.results import Case, SuiteResult, describe
from tests.spark_suites.suites import PLUGIN, Suite
from tests.support.servers.hadoop import FILE_MANAGER
from tests.support.servers.process import LOOPBACK

STALL_SECONDS = 600.0
"""A JVM that tells nothing for so long is ended. Spark's own limit for one wait is a tenth of it."""
HEARTBEAT_SECONDS = 60.0

_MANAGER_CONF = "spark.sql.streaming.checkpointFileManagerClass"
_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
_OUTCOMES = ("passed", "failed", "ignored", "canceled")

# What Spark's own build gives to the JVM of its tests (extraJavaTestArgs and the scalatest plugin).
_JVM = (
    "-ea",
    "-Xss4m",
    "-XX:MaxMetaspaceSize=1g",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES),
)
_PROPERTIES = {
    "jdk.reflect.useDirectMethodHandle": "false",
    "io.netty.tryReflectionSetAccessible": "true",
    "io.netty.allocator.type": "pooled",
    "derby.system.durability": "test",
    "java.awt.headless": "true",
    "spark.testing": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.unsafe.exceptionOnMemoryLeak": "true",
    "spark.hadoop.hadoop.caller.context.enabled": "true",
}
_PLUGIN_PROPERTIES = {
    "spark.plugins": "io.github.pysparkcheckpoint.CheckpointPlugin",
    "spark.ckpt.stale": "warn",  # some tests take a location back on purpose, which would be refused
    "spark.ckpt.stopTimeoutSeconds": "20",
    "spark.sql.streaming.streamingQueryListeners": "io.github.pysparkcheckpoint.suites.QueryStarts",
}


@dataclass(frozen=True)
class Settings:
    """What all JVMs of a run share."""

    tests: SparkTests
    jar: Path
    heap: str
    hadoop_conf: Mapping[str, str]
    bucket: str
    say: Callable[[str], None]


@dataclass
class Outcome:
    """What one JVM, and those that took its place, have left."""

    results: list[SuiteResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    queries: set[str] = field(default_factory=set)
    """The ids of the queries that were started, where the plugin is on."""
    store: Path | None = None


@dataclass
class _Progress:
    """The suite that a JVM is in."""

    name: str = ""
    began: float = 0.0
    cases: list[Case] = field(default_factory=list)
    last_test: str = ""
    is_over: bool = False
    """Whether the JVM has told that its run is complete, or cannot be done at all."""


def run_suites(suites: Sequence[Suite], home: Path, settings: Settings) -> Outcome:
    """Run suites of one setting, each once; a JVM that ends too early is followed by another."""
    outcome = Outcome(store=home / "checkpoints" if suites[0].setting == PLUGIN else None)
    left = list(suites)
    turn = 0
    while left:
        turn += 1
        is_over = _run_jvm(left, home / str(turn), settings, outcome)
        done = {result.name for result in outcome.results}
        left = [suite for suite in left if suite.name not in done]
        if left and is_over:
            names = ", ".join(suite.name for suite in left)
            outcome.problems.append(f"no result of {names}; see {home / str(turn)}")
            break
    return outcome


def _run_jvm(suites: Sequence[Suite], home: Path, settings: Settings, outcome: Outcome) -> bool:
    """Run one JVM to its end. False if it was cut short: then one more suite has a result, a bad one."""
    home.mkdir(parents=True)
    progress = _Progress()
    with _jvm(suites, home, settings, outcome.store) as (process, lines):
        for event in _events(process, lines, home, lambda: _say_alive(progress, settings)):
            _take(event, suites, progress, outcome, settings)
        status = process.poll()
    if not progress.is_over:
        done = {result.name for result in outcome.results}
        name = progress.name or next((suite.name for suite in suites if suite.name not in done), "no suite")
        how = "told nothing for a long time" if status is None else f"ended with status {status}"
        problem = f"the JVM {how}, in {progress.last_test or 'no test'}; see {home}"
        _end_suite(name, suites, progress, outcome, settings, problem)
    return progress.is_over


def _take(
    event: Event, suites: Sequence[Suite], progress: _Progress, outcome: Outcome, settings: Settings
) -> None:
    name = event.suite.rpartition(".")[2]
    if event.kind == "suite-starting":
        progress.name, progress.began, progress.cases = name, time.monotonic(), []
    elif event.kind == "test-starting":
        progress.last_test = event.test
    elif event.kind in _OUTCOMES:
        progress.cases.append(Case(event.test, event.kind, event.message))
    elif event.kind == "suite-completed":
        _end_suite(name, suites, progress, outcome, settings, "")
    elif event.kind == "suite-aborted":
        _end_suite(name, suites, progress, outcome, settings, f"aborted: {event.message}")
    elif event.kind == "query-started":
        outcome.queries.add(event.query)
    elif event.kind == "run-aborted":
        progress.is_over = True
        outcome.problems.append(f"the run was aborted: {event.message}")
    elif event.kind == "run-completed":
        progress.is_over = True
        _check_loaded(event.message.split(), suites, outcome)


def _check_loaded(loaded: Sequence[str], suites: Sequence[Suite], outcome: Outcome) -> None:
    """Suites that never came to our classes would prove nothing about them."""
    needed = {"filemanager.LocalFileManager"}
    if suites[0].setting == PLUGIN:
        needed.add("plugin.CheckpointDriver")
    for name in sorted(needed - set(loaded)):
        names = ", ".join(suite.name for suite in suites)
        outcome.problems.append(f"{name} was never used by {names}: the settings did not arrive")


def _end_suite(
    name: str,
    suites: Sequence[Suite],
    progress: _Progress,
    outcome: Outcome,
    settings: Settings,
    problem: str,
) -> None:
    seconds = time.monotonic() - progress.began if progress.name else 0.0
    result = SuiteResult(name, suites[0].setting, seconds, tuple(progress.cases), problem)
    outcome.results.append(result)
    settings.say(describe(result))
    progress.name, progress.cases, progress.last_test = "", [], ""


def _say_alive(progress: _Progress, settings: Settings) -> None:
    if progress.name:
        seconds = time.monotonic() - progress.began
        settings.say(f"  {progress.name}: {len(progress.cases)} tests so far, {seconds:.0f} s")


@contextlib.contextmanager
def _jvm(
    suites: Sequence[Suite], home: Path, settings: Settings, store: Path | None
) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str | None]]]:
    command = _command(suites, home, settings, store)
    with (home / "errors.log").open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=_environment(settings.tests),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        reader.join(timeout=60)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _events(
    process: subprocess.Popen[str], lines: queue.Queue[str | None], home: Path, alive: Callable[[], None]
) -> Iterator[Event]:
    """Events until the JVM's output ends, or nothing comes for too long."""
    quiet_since = said = time.monotonic()
    with (home / "output.log").open("w") as output:
        while time.monotonic() - quiet_since < STALL_SECONDS:
            with contextlib.suppress(queue.Empty):
                line = lines.get(timeout=1.0)
                if line is None:
                    process.wait(timeout=60)
                    return
                event = parse_event(line)
                if event is None:
                    output.write(line)
                else:
                    quiet_since = time.monotonic()
                    said = quiet_since if event.kind == "suite-starting" else said
                    yield event
            if time.monotonic() - said > HEARTBEAT_SECONDS:
                said = time.monotonic()
                alive()


def _command(suites: Sequence[Suite], home: Path, settings: Settings, store: Path | None) -> list[str]:
    temporary, conf = home / "tmp", home / "conf"
    temporary.mkdir()
    conf.mkdir()
    site = {**settings.hadoop_conf, _MANAGER_CONF: FILE_MANAGER}
    (conf / "core-site.xml").write_text(_core_site(site))
    properties = {
        **_PROPERTIES,
        "spark.test.home": str(settings.tests.test_home),
        "java.io.tmpdir": str(temporary),
        "log4j.configurationFile": (HERE / "log4j2.properties").as_uri(),
        "ckpt.suites.log": str(home / "spark.log"),
        "ckpt.suites.bucket": settings.bucket,
        _MANAGER_CONF: FILE_MANAGER,
    }
    if store is not None:
        properties |= {**_PLUGIN_PROPERTIES, "spark.ckpt.url": str(store)}
    java_home = os.environ.get("JAVA_HOME")
    return [
        str(Path(java_home) / "bin" / "java") if java_home else "java",
        f"-Xmx{settings.heap}",
        *_JVM,
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp",
        settings.tests.class_path(conf, settings.jar),
        "org.scalatest.tools.Runner",
        "-oW",
        "-C",
        "io.github.pysparkcheckpoint.suites.EventReporter",
        *(argument for suite in suites for argument in ("-s", suite.class_name)),
    ]


def _environment(tests: SparkTests) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "HADOOP_", "PYSPARK_"))
    }
    return kept | {
        "SPARK_HOME": str(tests.spark_home),
        "SPARK_TESTING": "1",
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": str(tests.python),
        "PYTHONPATH": str(HERE.parents[1]),
    }


def _core_site(values: Mapping[str, str]) -> str:
    properties = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in values.items()
    )
    return f"<configuration>\n{properties}</configuration>\n"
