"""A streaming job on a local directory is killed, loses its checkpoint location, and goes on.

``make demo`` runs this. The job is ``examples/word_count_job.py``, unchanged in every act. The exit
status is 0 only if the table at the end has every word of every file exactly once.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_checkpoint import CheckpointStore, restore

FILES = 16
LINES = 200
WORDS = ["state", "sink", "source", "epoch", "batch", "offset", "manifest", "commit", "savepoint", "replay"]
HERE = Path(__file__).parent
JAR = HERE.parent / f"jvm-shim/target/ckpt-spark_2.13-{version('pyspark-checkpoint')}.jar"


def say(text: str = "") -> None:
    print(text, flush=True)


def write_input(directory: Path) -> Counter[str]:
    """Make the input, and count its words without Spark."""
    chance, counts = random.Random(7), Counter()
    directory.mkdir(parents=True)
    for number in range(FILES):
        lines = [" ".join(chance.choices(WORDS, k=8)) for _ in range(LINES)]
        (directory / f"{number:03d}.txt").write_text("\n".join(lines))
        counts.update(word for line in lines for word in line.split())
    return counts


def start_job(directory: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    log = (directory / "job.log").open("ab")
    command = [sys.executable, str(HERE / "word_count_job.py"), str(directory)]
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def epochs(url: Path) -> int:
    """How many epochs the table has."""
    newest = CheckpointStore.open(str(url)).load_latest()
    return 0 if newest is None else newest.epoch + 1


def kill_at(job: subprocess.Popen[bytes], table: Path, wanted: int) -> int:
    """Kill the job, its JVM and its Python workers once the table has ``wanted`` epochs."""
    while job.poll() is None and epochs(table) < wanted:
        time.sleep(0.05)
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    return epochs(table)


def read_table(table: Path) -> Counter[str]:
    """Read the table back with Spark."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.extraClassPath", str(JAR)).getOrCreate()
    rows = spark.read.format("ckpt-sink").load(str(table)).collect()
    spark.stop()
    return Counter({row["word"]: row["count"] for row in rows})


def main() -> int:
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="ckpt-demo-"))
    expected = write_input(directory / "input")
    table = directory / "table"
    say(f"{FILES} files, {sum(expected.values())} words, {len(expected)} different ones. One file a batch.")

    say("\n1. The job counts words into a table. It is killed with SIGKILL half way.")
    done = kill_at(start_job(directory), table, FILES // 3)
    say(f"   killed after {done} batches, {time.monotonic() - began:.0f} s")

    say("2. The same job again. Spark goes on from its checkpoint location. Killed again.")
    done = kill_at(start_job(directory), table, 2 * FILES // 3)
    say(f"   killed after {done} batches, {time.monotonic() - began:.0f} s")

    say("3. The checkpoint location is destroyed. Spark alone would start over now, and count twice.")
    shutil.rmtree(directory / "location")
    report = restore(str(directory / "checkpoints"), str(directory / "location"), rollback_sink=True)
    say(f"   restored to batch {report.epoch} from {directory / 'checkpoints'}; table rolled back with it")

    say("4. The same job a third time, to the end of the input.")
    status = start_job(directory).wait()
    found = read_table(table)
    say(f"   finished with status {status} after {epochs(table)} batches, {time.monotonic() - began:.0f} s")

    say(f"\n{'word':<12}{'expected':>10}{'table':>10}")
    for word in sorted(expected):
        note = "" if expected[word] == found[word] else "   WRONG"
        say(f"{word:<12}{expected[word]:>10}{found[word]:>10}{note}")
    ok = status == 0 and found == expected
    say("\nNothing lost, nothing doubled." if ok else f"\nFAILED: see {directory / 'job.log'}")
    if ok:
        shutil.rmtree(directory)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
