"""Spark 4.1.1 with Kafka, Delta and Iceberg, in processes of its own: what the tests start and compare."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.servers.hadoop import build_jar

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".tools" / "ecosystem"
PYTHON = HOME / "python" / "bin" / "python"
_JVM_LOG = re.compile(r"\[\d+[.,]\d+s\]|CodeCache:| (?:bounds|total_blobs|compilation:)")
"""How lines begin that the JVM itself writes between those of a driver."""
RUN_SECONDS = 600


def set_up() -> None:
    """Fetch Spark 4.1.1 and the connectors, unless that is done already."""
    subprocess.run([str(ROOT / "tools" / "setup_ecosystem.sh")], check=True, timeout=1800)


def spark_jars() -> list[Path]:
    """The connectors."""
    return sorted((HOME / "spark-jars").glob("*.jar"))


def environment() -> dict[str, str]:
    """What a driver and its tasks run in: this checkout, with that Python."""
    options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -XX:ReservedCodeCacheSize=240m"
    ours = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON)}
    return {**os.environ, **ours, "JDK_JAVA_OPTIONS": options.strip()}


def run_driver(module: str, wanted: Mapping[str, Any]) -> list[str]:
    """Run a driver of these tests on Spark 4.1.1 and return the lines that it prints."""
    done = subprocess.run(
        _command(module, wanted),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return [line for line in done.stdout.strip().splitlines() if not _JVM_LOG.match(line)]


def kill_driver(module: str, wanted: Mapping[str, Any], until: str) -> list[str]:
    """Run a driver until it prints ``until``, kill it then, and return what it printed before."""
    with tempfile.TemporaryFile("w+") as errors:
        driver = subprocess.Popen(
            _command(module, wanted),
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # the JVM is in its group: both are killed at once
        )
        lines = list[str]()
        try:
            assert driver.stdout is not None
            for line in driver.stdout:
                if line.strip() == until:
                    return lines
                if not _JVM_LOG.match(line):
                    lines.append(line)
            errors.seek(0)
            raise AssertionError(f"the driver ended by itself: {lines} {errors.read()[-6000:]}")
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()


def read_tables(directory: Path, *names: str) -> dict[str, list[list[Any]]]:
    """The rows of tables in the catalogs of a directory, as Spark reads them."""
    lines = run_driver("tests.ecosystem.app", {"directory": str(directory), "read": names})
    found: dict[str, list[list[Any]]] = json.loads(lines[-1])
    return found


def freezing_classes() -> str:
    """A directory with the file manager that stops at a file, compiled against Spark 4.1.1."""
    made = HOME / "classes"
    made.mkdir(exist_ok=True)
    [spark] = (HOME / "python" / "lib").glob("python*/site-packages/pyspark/jars")
    source = Path(__file__).with_name("FreezingFileManager.java")
    subprocess.run(
        ["javac", "-nowarn", "-proc:none", "-cp", f"{spark}/*", "-d", str(made), str(source)],
        check=True,
        timeout=RUN_SECONDS,
    )
    return str(made)


def driver_jars() -> list[str]:
    """The connectors and our own jar."""
    return [str(path) for path in (*spark_jars(), build_jar())]


def _command(module: str, wanted: Mapping[str, Any]) -> list[str]:
    return [str(PYTHON), "-m", module, json.dumps({"jars": driver_jars(), "conf": {}, **wanted})]


@dataclass(frozen=True)
class Pipeline:
    """A query from files of numbers to an output: its input, location and target below one directory."""

    directory: Path
    output: str
    conf: Mapping[str, str] = field(default_factory=dict)
    is_stateful: bool = False

    @property
    def location(self) -> Path:
        """The query's checkpoint location."""
        return self.directory / "location"

    @property
    def target(self) -> str:
        """Where the rows go; for Iceberg below the warehouse of its catalog."""
        if self.output == "iceberg":
            return str(self.directory / "warehouse" / "db" / "numbers")
        return str(self.directory / "target")

    def add_input(self, batch: int, rows: int = 10) -> None:
        """One more file, which is one more batch: ``rows`` numbers that no other file has."""
        source = self.directory / "input"
        source.mkdir(parents=True, exist_ok=True)
        lines = "".join(f'{{"n": {batch * rows + at}}}\n' for at in range(rows))
        part = source / f".{batch:05d}.json"
        part.write_text(lines)
        part.rename(source / f"{batch:05d}.json")

    def run(self, **more: Any) -> dict[str, Any]:
        """Process all input that is there, one file a batch, and say what the output then has."""
        wanted = {
            "directory": str(self.directory),
            "output": self.output,
            "conf": dict(self.conf),
            "stateful": self.is_stateful,
            **more,
        }
        answer: dict[str, Any] = json.loads(run_driver("tests.ecosystem.app", wanted)[-1])
        return answer
