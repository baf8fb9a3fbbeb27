"""A real Kafka broker: offsets in checkpoints, what retention takes, and the examples that read it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_checkpoint import rewind
from pyspark_checkpoint.errors import CheckpointError, RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.inputs.check import InputQuestion, check_inputs, refuse_lost
from pyspark_checkpoint.inputs.kafka_source import BOOTSTRAP
from pyspark_checkpoint.inputs.offset_reader import InputFinding, InputState
from pyspark_checkpoint.registry.queries import resolve_root
from tests.ecosystem.kit import PYTHON, ROOT, environment, read_tables, run_driver, set_up, spark_jars
from tests.support.servers.hadoop import build_jar
from tests.support.servers.hdfs import mini_hdfs
from tests.support.servers.kafka import KafkaServer, kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash]
SECONDS = 900.0
FIRST, ALL = 1_200, 1_500


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    set_up()
    with kafka() as server:
        yield server


def test_a_location_on_hdfs_is_captured_and_restored_with_kafkas_offsets(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """Its table was a few batches ahead, and more had come since: every number is there once."""
    with mini_hdfs() as hdfs:
        wanted = {
            "directory": str(tmp_path),
            "brokers": broker.bootstrap,
            "url": str(tmp_path / "checkpoints"),
            "location": f"{hdfs.endpoint}/locations/numbers",
            "target": str(tmp_path / "target"),
        }
        answer = json.loads(run_driver("tests.ecosystem.kafka_on_hdfs", wanted)[-1])
    assert answer == {
        "is_kept_id": True,
        "is_table_ahead": True,
        "numbers": list(range(100)),
    }


def submit(job: str, place: Path, broker: KafkaServer, table: str, *words: str) -> subprocess.Popen[bytes]:
    """Start an example as its own first lines say, from ``tools/setup_ecosystem.sh``'s Spark."""
    confs = {
        "spark.jars": ",".join(map(str, (*spark_jars(), build_jar()))),
        "spark.plugins": "io.github.pysparkcheckpoint.CheckpointPlugin",
        "spark.ckpt.url": str(place / "checkpoints"),
        "spark.ckpt.restore": "missing",
        "spark.ckpt.sink": "rollback",
        "spark.ckpt.intervalSeconds": "0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(place / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    given = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    command = [str(PYTHON.with_name("spark-submit")), "--master", "local[2]", *given]
    job_words = [str(ROOT / "examples" / job), broker.bootstrap, place.name, table, str(place / "location")]
    with (place / "job.log").open("ab") as log:
        return subprocess.Popen(
            [*command, *job_words, *words],
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,
        )


def newest(place: Path) -> CheckpointManifest | None:
    """The newest checkpoint of the example's query, if there is one."""
    url = str(place / "checkpoints")
    try:
        return CheckpointStore.open(resolve_root(url, "orders", None)).load_latest()
    except CheckpointError:
        return None


def run_to_the_end(job: str, place: Path, broker: KafkaServer, table: str) -> int:
    """Run an example until it has read all that is there, and return its exit code."""
    process = submit(job, place, broker, table, "--until-caught-up")
    try:
        return process.wait(SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def played(job: str, table: str, broker: KafkaServer, place: Path) -> CheckpointManifest:
    """Run an example, kill it, lose its location, run it to the end. Returns the last checkpoint."""
    place.mkdir(parents=True)
    broker.make_topic(place.name)
    broker.produce(place.name, range(FIRST))
    job_process, log = submit(job, place, broker, table), place / "job.log"

    def is_far() -> bool:
        assert job_process.poll() is None, log.read_text(errors="replace")[-6000:]
        found = newest(place)
        return found is not None and (found.batch_id or 0) >= 4

    try:
        wait_until(is_far, "the checkpoint of batch 4", SECONDS)
    finally:
        os.killpg(job_process.pid, signal.SIGKILL)
        job_process.wait()
    shutil.rmtree(place / "location")
    broker.produce(place.name, range(FIRST, ALL))
    if run_to_the_end(job, place, broker, table) != 0:
        # Spark 4.1's connector dies after a batch that it repeats; the batch is committed (SPARK-55271).
        assert '"scala.Option.get()" is null' in log.read_text(errors="replace")
        assert run_to_the_end(job, place, broker, table) == 0, log.read_text(errors="replace")[-6000:]
    assert "is restored from checkpoint" in log.read_text(errors="replace")
    last = newest(place)
    assert last is not None
    return last


def test_the_example_to_delta_has_every_record_once_after_a_kill(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """Whether the table is a batch ahead of the checkpoints or not. Then retention takes records."""
    place = tmp_path / "to-delta"
    last = played("kafka_to_delta.py", str(place / "table"), broker, place)
    found = DeltaTable(str(place / "table")).to_pyarrow_table().column("n").to_pylist()
    assert sorted(found) == list(range(ALL))

    def asked(checkpoint: CheckpointManifest) -> InputFinding:
        [finding] = check_inputs(checkpoint, InputQuestion(str(tmp_path), {BOOTSTRAP: broker.bootstrap}))
        return finding

    history = CheckpointStore.open(resolve_root(str(place / "checkpoints"), "orders", None))
    first = history.load_by_id(history.list_ids()[0])
    assert first is not None
    assert (asked(first).state, asked(last).state) == (InputState.KEPT, InputState.KEPT)
    broker.delete_before(place.name, {0: ALL // 2 - 1})
    assert asked(last).state is InputState.KEPT
    with pytest.raises(RefusedError, match=f"to-delta-0 begins at {ALL // 2 - 1}"):
        refuse_lost([asked(first)])
    with pytest.raises(RefusedError, match=f"to-delta-0 begins at {ALL // 2 - 1}"):
        rewind(
            str(place / "checkpoints"),
            query="orders",
            at=first.checkpoint_id,
            source_options={BOOTSTRAP: broker.bootstrap},
        )
    still = newest(place)
    assert still is not None and still.checkpoint_id == last.checkpoint_id, "nothing was changed"
    broker.delete_topic(place.name)
    assert "is not there any more" in asked(last).reason


def test_the_example_to_iceberg_has_every_number_once_after_a_kill(
    broker: KafkaServer, tmp_path: Path
) -> None:
    """With state, and a catalog that only Spark knows."""
    place = tmp_path / "to-iceberg"
    played("kafka_to_iceberg.py", "lake.db.orders", broker, place)
    rows = read_tables(place, "lake.db.orders")["lake.db.orders"]
    assert sorted(row[0] for row in rows) == list(range(ALL))


def test_a_broker_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    """And never taken for kept; the client's own lines do not reach the terminal."""
    code = (
        "from pyspark_checkpoint.inputs.kafka_source import ask_kafka as a;"
        "print(a({('a', 0): 3}, {'kafka.bootstrap.servers': '127.0.0.1:1'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "UNKNOWN" in done.stdout
    assert done.stderr == ""
