"""Other drivers: two at once, one without the jar, one with the oldest Spark, one with packages only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.drivers.driver import Driver, DriverError
from tests.support.drivers.queries import QuerySpec, total_after
from tests.support.sink_kit import read_rows
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
ROWS = 30


def total(root: Path, name: str, batches: int = 4, **options: str) -> QuerySpec:
    """A query whose table is known without Spark."""
    return QuerySpec(
        "total",
        "total",
        f"file://{root}/{name}",
        str(root),
        batches,
        rows=ROWS,
        format="ckpt-sink",
        options={"path": str(root / "table"), "keyColumns": "key", **options},
    )


def without_keys(root: Path) -> list[QuerySpec]:
    """Append and complete mode, four batches each."""
    return [
        QuerySpec(
            name,
            kind,
            f"file://{root}/{name}-location",
            str(root),
            4,
            rows=ROWS,
            format="ckpt-sink",
            options={"path": str(root / name)},
        )
        for name, kind in (("append", "numbers"), ("complete", "total-complete"))
    ]


def check_without_keys(root: Path) -> None:
    """Their tables are what they must be."""
    assert table_of(root, 3, "complete") == total_after(3, ROWS)
    values = [row["value"] for row in read_rows(str(root / "append"), epoch="3")]
    assert sorted(values) == list(range(4 * ROWS))


def table_of(root: Path, epoch: int, name: str = "table") -> dict[int, int]:
    """The table at an epoch, each key once."""
    CACHE.forget()
    rows = read_rows(str(root / name), epoch=str(epoch))
    assert len(rows) == ROWS
    return {row["key"]: row["sum"] for row in rows}


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("inline", [{}, {"inlineTaskBytes": "0"}], ids=["inline", "python"])
def test_two_drivers_with_one_location_and_one_store(
    jar: Path, tmp_path: Path, inline: dict[str, str]
) -> None:
    """One of them, or both, stop with an error that says so; the next start goes on, each epoch once.

    Which one stops is decided by who is first: at the table's next number, or at Spark's next log file.
    """
    endless = total(tmp_path, "location", batches=10_000, retain="all", **inline)
    with (
        Driver(tmp_path / "first.log", class_path=[jar]) as first,
        Driver(tmp_path / "second.log", class_path=[jar]) as second,
    ):
        first.start(endless)
        wait_until(lambda: first.poll("total")["committed"], "a batch of the first", pause_seconds=0.1)
        second.start(endless)
        wait_until(
            lambda: not all(driver.poll("total")["active"] for driver in (first, second)), "a stop", 300
        )
        states = [driver.poll("total") for driver in (first, second)]
        first.kill()
        second.kill()
    errors = [state["error"] for state in states if not state["active"]]
    assert all("taken the store over" in e or "CONCURRENT" in e or "concurrent" in e for e in errors), (
        errors
    )
    last = max(batch for state in states for batch in state["committed"]) + 2
    with Driver(tmp_path / "third.log", class_path=[jar]) as third:
        third.run(total(tmp_path, "location", batches=last + 1, retain="all", **inline))
    for epoch in range(last + 1):
        assert table_of(tmp_path, epoch) == total_after(epoch, ROWS)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_without_the_jar_append_and_complete_work_and_the_rest_says_which_jar(tmp_path: Path) -> None:
    """Python alone: found by Spark's own registration, with offsets from the location's directory."""
    with Driver(tmp_path / "driver.log") as driver:
        driver.run(*without_keys(tmp_path))
        check_without_keys(tmp_path)
        options = {"path": str(tmp_path / "complete")}
        found = driver.call("read", format="ckpt-sink", options=options, conf={})
        assert len(found) == ROWS
        with pytest.raises(DriverError, match=r"a table with keys needs the jar.*ckpt-spark_2\.13"):
            driver.run(
                QuerySpec(
                    "keyed",
                    "numbers",
                    f"file://{tmp_path}/keyed",
                    str(tmp_path),
                    2,
                    rows=ROWS,
                    format="ckpt-sink",
                    options={"path": str(tmp_path / "keyed-table"), "keyColumns": "key"},
                )
            )


@pytest.mark.timeout(900)
def test_the_oldest_supported_spark(jar: Path, tmp_path: Path) -> None:
    """Spark 4.1: every output mode through the same jar, reading, and the stream of changes."""
    subprocess.run([str(ROOT / "tools" / "setup_spark_oldest.sh")], check=True, timeout=600)
    python = str(ROOT / ".tools" / "spark-4.1" / "bin" / "python")
    with Driver(tmp_path / "driver.log", class_path=[jar], python=python) as driver:
        assert driver.versions["spark"].startswith("4.1.")
        driver.run(total(tmp_path, "location"), *without_keys(tmp_path))
        assert table_of(tmp_path, 3) == total_after(3, ROWS)
        check_without_keys(tmp_path)
        options = {"path": str(tmp_path / "table"), "epoch": "2"}
        assert len(driver.call("read", format="ckpt-sink", options=options, conf={})) == ROWS
        changes = QuerySpec(
            "changes",
            "changes",
            f"file://{tmp_path}/changes-location",
            str(tmp_path),
            1,
            format="ckpt-sink",
            conf={"harness.input": str(tmp_path / "table")},
            options={"path": str(tmp_path / "changes")},
        )
        driver.run(changes)
        assert {row["_change_type"] for row in read_rows(str(tmp_path / "changes"))} == {"upsert"}


@pytest.mark.timeout(600)
def test_packages_alone_are_enough(jar: Path, tmp_path: Path) -> None:
    """spark-submit with the coordinates and nothing else: no pip install, no registration, no path."""
    repository = tmp_path / "repository"
    layout = repository / "io/github/pyspark-checkpoint/ckpt-spark_2.13/0.1.0"
    layout.mkdir(parents=True)
    (layout / jar.name).write_bytes(jar.read_bytes())
    (layout / "ckpt-spark_2.13-0.1.0.pom").write_bytes((ROOT / "jvm-shim" / "pom.xml").read_bytes())
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        f'<ivysettings><settings defaultResolver="own"/><resolvers><ibiblio name="own" m2compatible="true" '
        f'root="file://{repository}/"/></resolvers></ivysettings>'
    )
    python = _python_without_the_package(tmp_path / "python")
    script = tmp_path / "app.py"
    script.write_text(_APP)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-submit")),
            "--master",
            "local[2]",
            "--packages",
            "io.github.pyspark-checkpoint:ckpt-spark_2.13:0.1.0",
            "--conf",
            f"spark.jars.ivy={tmp_path}/ivy",
            "--conf",
            f"spark.jars.ivySettings={settings}",
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            f"spark.pyspark.python={python}",
            str(script),
            str(tmp_path / "table"),
            str(tmp_path / "location"),
        ],
        cwd=tmp_path,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "PYTHON", "SPARK"))},
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "ROWS 7 TRUE" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


_APP = """
import importlib.util, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
counts = source.groupBy((source.value % 7).alias("k")).count()
query = counts.writeStream.format("ckpt-sink").outputMode("update").option("keyColumns", "k")
query = query.option("checkpointLocation", sys.argv[2]).start(sys.argv[1])
while not query.lastProgress or query.lastProgress["batchId"] < 2:
    assert query.exception() is None, query.exception()
query.stop()
rows = spark.read.format("ckpt-sink").load(sys.argv[1]).count()
from_jar = "ckpt-spark" in importlib.util.find_spec("pyspark_checkpoint").origin
print("ROWS", rows, str(from_jar).upper())
"""


def _python_without_the_package(directory: Path) -> Path:
    """A Python with everything that is installed here but this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    site = next(directory.glob("lib/python*/site-packages"))
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "others.pth").write_text(ours + "\n")
    return directory / "bin" / "python"
