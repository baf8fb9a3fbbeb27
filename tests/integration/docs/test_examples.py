"""The Python examples of README and docs, run as they stand but for the places they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[3]
PLACES = {
    "s3://bucket": "bucket",
    "s3a://other": "other",
    "/data": "data",
    "/local": "local",
    "/fresh": "fresh",
    "/elsewhere": "elsewhere",
}


def example(page: str, number: int = 0) -> str:
    """A page's Python example, by its place among them."""
    found: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    return found[number]


def run(code: str, directory: Path) -> str:
    """Run an example in a process of its own, and return what it printed."""
    for typed, name in PLACES.items():
        code = code.replace(f'"{typed}', f'"{directory}/{name}')
    return call([sys.executable, "-W", "ignore", "-c", code], directory)


def call(command: list[str], directory: Path) -> str:
    """Run a command as a person would who has this environment, and return what it printed."""
    person = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    ran = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **person},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return ran.stdout


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Two files with words, where the examples look for them."""
    place = tmp_path / "data" / "lines"
    place.mkdir(parents=True)
    (place / "1.txt").write_text("state sink\nstate")
    (place / "2.txt").write_text("sink state offset")
    return tmp_path


@pytest.mark.promise
@pytest.mark.timeout(600)
def test_the_twenty_lines_of_the_readme(lines: Path) -> None:
    """A table, a savepoint of rows and state, and a location that is restored from it."""
    printed = run(example("README.md"), lines)
    assert re.search(r"state\|\s+3\|", printed)
    restored = lines / "fresh" / "disk" / "wc"
    assert {"metadata", "offsets", "commits", "state"} <= {path.name for path in restored.iterdir()}


@pytest.mark.timeout(600)
def test_a_join_that_loses_its_location_moves_to_another_store(tmp_path: Path) -> None:
    """The pairs are those of a join of all files; then table and state go to another store."""
    join = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "windowed_join.py"), str(tmp_path)]
    assert "80 pairs, 80 expected: equal" in call(join, tmp_path)
    move = str(ROOT / "examples" / "move_to_another_store.sh")
    moved = call([move, f"{tmp_path}/table", f"{tmp_path}/copy", f"{tmp_path}/moved"], tmp_path)
    assert "restored" in moved
    assert (tmp_path / "moved" / "metadata").exists()


@pytest.mark.timeout(600)
def test_state_of_ones_own_goes_back_to_a_savepoint(tmp_path: Path) -> None:
    """The program itself says whether table and state went back together."""
    program = str(ROOT / "examples" / "transform_with_state.py")
    printed = call([sys.executable, "-W", "ignore", program, str(tmp_path)], tmp_path)
    assert "'a': 999999" in printed
    assert "without it: {'a': 4, 'b': 5}" in printed


COUNTS = """
from pyspark.sql import functions as F
from pyspark_checkpoint import restore
lines = spark.readStream.option("maxFilesPerTrigger", 1).text("/data/lines")
counts = totals = lines.groupBy(F.col("value").alias("word")).count()
"""


@pytest.mark.timeout(600)
def test_the_examples_of_plugin_sink_and_rows_with_state(lines: Path) -> None:
    """One application: configured, a table written and read three ways, then restored twice."""
    plugin, sink = example("docs/plugin.md"), example("docs/sink.md")
    write, reads = sink.split("\n\n", 1)
    again, restores = example("docs/coordinated.md").split("\n\n", 1)
    steps = [
        plugin,
        COUNTS,
        f"first = {write}",
        "first.processAllAvailable(); first.stop()",
        *(f"print({line.partition('  #')[0]}.schema.names)" for line in reads.splitlines() if line),
        again,
        "query.processAllAvailable(); query.stop()",
        restores,
        "spark.stop()",
    ]
    printed = run("\n".join(steps).replace("41)", "0)"), lines)
    assert printed.count("'word', 'count'") == 3
    assert (lines / "elsewhere" / "location" / "metadata").exists()
    assert (lines / "elsewhere" / "earlier" / "metadata").exists()


@pytest.mark.timeout(600)
def test_the_example_of_capture(lines: Path) -> None:
    """A query with a sink of its own is saved under a name and restored to another place."""
    begin, rest = example("docs/capture.md").split("listener.flush", 1)
    steps = [
        "from pyspark.sql import SparkSession",
        "spark = SparkSession.builder.getOrCreate()",
        begin,
        COUNTS,
        'started = counts.writeStream.format("noop").outputMode("update").queryName("orders")',
        'started = started.option("checkpointLocation", "/local/orders").start()',
        "started.processAllAvailable()",
        f"listener.flush{rest}",
        "listener.close(); spark.stop()",
    ]
    run("\n".join(steps), lines)
    assert (lines / "other" / "location" / "metadata").exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("restore_elsewhere.py", "every batch is that of an undisturbed run"),
        ("word_count_sink.py", "what changed:"),
    ],
)
def test_the_programs_that_take_no_directory(program: str, says: str, tmp_path: Path) -> None:
    """A query that goes on elsewhere; a table read now, as it was, and as changes."""
    assert says in call([sys.executable, "-W", "ignore", str(ROOT / "examples" / program)], tmp_path)
