"""A streaming job on a local directory is killed, loses its checkpoint location, and continues.

``make demo`` runs this. The job is ``examples/word_count_job.py``; it is submitted with the same command
each time, under the plugin. The exit status is 0 only if the table at the end has every word of every
file exactly once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pyspark_checkpoint import CheckpointStore, __version__
from pyspark_checkpoint.jar import find_jar

FILES = 12
LINES = 200
WORDS = ["state", "sink", "source", "epoch", "batch", "offset", "manifest", "commit", "savepoint", "replay"]
HERE = Path(__file__).parent
BEGAN = time.monotonic()


def say(text: str = "") -> None:
    print(text, flush=True)


def seconds() -> str:
    return f"{time.monotonic() - BEGAN:.0f} s"


def write_input(directory: Path) -> Counter[str]:
    """Make the input, and count its words without Spark."""
    chance = random.Random(7)
    counts: Counter[str] = Counter()
    directory.mkdir(parents=True)
    for number in range(FILES):
        lines = [" ".join(chance.choices(WORDS, k=8)) for _ in range(LINES)]
        (directory / f"{number:03d}.txt").write_text("\n".join(lines))
        counts.update(word for line in lines for word in line.split())
    return counts


def command(directory: Path) -> list[str]:
    """What a person would type. The job itself needs no line of code for it."""
    confs = {
        "spark.plugins": "io.github.pysparkcheckpoint.CheckpointPlugin",
        "spark.ckpt.url": f"{directory}/checkpoints",
        "spark.ckpt.restore": "missing",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    given = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    job = str(HERE / "word_count_job.py")
    submit = str(Path(sys.executable).with_name("spark-submit"))
    return [
        submit,
        "--master",
        "local[2]",
        "--jars",
        str(find_jar(__version__)),
        *given,
        job,
        str(directory),
    ]


def start_job(directory: Path) -> subprocess.Popen[bytes]:
    with (directory / "job.log").open("ab") as log:
        return subprocess.Popen(command(directory), stdout=log, stderr=log, start_new_session=True)


def epochs(url: Path) -> int:
    """How many epochs the table has."""
    newest = CheckpointStore.open(str(url)).load_latest()
    return 0 if newest is None else newest.epoch + 1


def kill_at(job: subprocess.Popen[bytes], table: Path, wanted: int) -> int:
    """Kill the job, its JVM and its Python processes once the table has ``wanted`` epochs."""
    while job.poll() is None and epochs(table) < wanted:
        time.sleep(0.05)
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    return epochs(table)


def read_table(table: Path) -> Counter[str]:
    """Read the table back, with Spark, in a process of its own."""
    ckpt = [sys.executable, "-m", "pyspark_checkpoint", "read", str(table), "--limit", "0", "--json"]
    rows = subprocess.run(ckpt, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return Counter({row["word"]: row["count"] for row in json.loads(rows)})


def main() -> int:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    directory = Path(tempfile.mkdtemp(prefix="ckpt-demo-"))
    expected = write_input(directory / "input")
    table = directory / "table"
    say(f"{FILES} files, {sum(expected.values())} words, {len(expected)} different ones. One file a batch.")
    say("The job is plain PySpark; the plugin is three --conf lines:\n")
    say(f"  {' '.join(command(directory))}\n")

    say("1. The job counts words into a table. It is killed with SIGKILL half way.")
    done = kill_at(start_job(directory), table, FILES // 2)
    say(f"   killed after {done} batches, {seconds()}")

    say("2. Its checkpoint location is destroyed. Spark alone would start over now, and count twice.")
    shutil.rmtree(directory / "location")

    say("3. The same command again. The plugin restores what is missing, and the job runs to the end.")
    status = start_job(directory).wait()
    log = (directory / "job.log").read_text(errors="replace").splitlines()
    for line in log:
        if "is restored from checkpoint" in line:
            say(f"   {line[line.index('query ') :].replace(str(directory), '...')}")
    found = read_table(table)
    say(f"   finished with status {status} after {epochs(table)} batches, {seconds()}")

    say(f"\n{'word':<12}{'expected':>10}{'table':>10}")
    for word in sorted(expected):
        note = "" if expected[word] == found[word] else "   WRONG"
        say(f"{word:<12}{expected[word]:>10}{found[word]:>10}{note}")
    ok = status == 0 and found == expected
    say("\nNothing lost, no duplicates." if ok else f"\nFAILED: see {directory / 'job.log'}")
    if ok:
        shutil.rmtree(directory)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
