"""Spark 4.1.1 with Kafka, Delta and Iceberg, in processes of its own: what the tests start and compare."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.jvms import archive_options
from tests.support.servers.hadoop import build_jar

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".tools" / "ecosystem"
PYTHON = HOME / "python" / "bin" / "python"
_JVM_LOG = re.compile(r"\[\d+[.,]\d+s\]|CodeCache:| (?:bounds|total_blobs|compilation:)")
"""How lines begin that the JVM itself writes between those of a driver."""
ARCHIVE = HOME / "spark.jsa"
RUN_SECONDS = 1500
"""Until a driver is given up: many times what it takes on an idle machine."""
FEW_TASKS = {"spark.databricks.delta.snapshotPartitions": "2"}
"""Delta reads the log of a small table in fifty tasks otherwise."""


def lake_confs(warehouse: str) -> dict[str, str]:
    """What a session with Delta and an Iceberg catalog needs."""
    delta, iceberg = "io.delta.sql.Delta", "org.apache.iceberg.spark.extensions.Iceberg"
    return {
        "spark.sql.extensions": f"{delta}SparkSessionExtension,{iceberg}SparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": warehouse,
    }


def set_up() -> None:
    """Fetch Spark 4.1.1 and the connectors, unless that is done already."""
    subprocess.run([str(ROOT / "tools" / "setup_ecosystem.sh")], check=True, timeout=1800)


def spark_jars() -> list[Path]:
    """The connectors."""
    return sorted((HOME / "spark-jars").glob("*.jar"))


def environment(classes: str = "") -> dict[str, str]:
    """What a driver and its tasks run in: this checkout, that Python, and ``classes`` behind Spark's."""
    options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -XX:ReservedCodeCacheSize=240m"
    ours = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON)}
    java = {"JDK_JAVA_OPTIONS": options.strip(), "SPARK_SUBMIT_OPTS": archive_options(ARCHIVE)}
    return {**os.environ, **ours, **java, "SPARK_DIST_CLASSPATH": classes}


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
            env=environment(wanted.get("classes", "")),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # the JVM is in its group: both are killed at once
        )
        lines, hung = list[str](), threading.Timer(RUN_SECONDS, driver.kill)
        hung.start()
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
            hung.cancel()
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


@dataclass(frozen=True)
class Driver:
    """A driver that does one thing after the other, and answers each with a line."""

    process: subprocess.Popen[str]
    log: Path

    def ask(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Let it do something, and return what it says."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(wanted)}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise AssertionError(f"the driver ended: {self.log.read_text(errors='replace')[-6000:]}")


@contextlib.contextmanager
def serving_driver(
    directory: Path, module: str = "tests.ecosystem.app", seconds: float = RUN_SECONDS
) -> Iterator[Driver]:
    """One session of Spark 4.1.1 for all that is asked; its catalog is below ``directory``."""
    log = directory / "driver.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            _command(module, {"directory": str(directory), "conf": FEW_TASKS}),
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    hung = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    hung.start()
    try:
        yield Driver(process, log)
    finally:
        hung.cancel()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _command(module: str, wanted: Mapping[str, Any]) -> list[str]:
    return [str(PYTHON), "-m", module, json.dumps({"jars": driver_jars(), "conf": {}, **wanted})]


@dataclass(frozen=True)
class Pipeline:
    """A query from files of numbers to an output: its input, location and target below one directory."""

    driver: Driver
    directory: Path
    output: str

    @property
    def location(self) -> Path:
        """The query's checkpoint location."""
        return self.directory / "location"

    @property
    def target(self) -> str:
        """Where the rows go; for Iceberg below the warehouse of its catalog."""
        if self.output == "iceberg":
            return str(self.driver.log.parent / "warehouse" / "db" / self.directory.name)
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
        return self.driver.ask({"directory": str(self.directory), "output": self.output, **more})
