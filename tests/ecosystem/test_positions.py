"""What real tables say of a query, read without Spark, against what the query did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_checkpoint import restore
from pyspark_checkpoint.errors import Diverged
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.outputs.iceberg_table import IcebergOutput
from pyspark_checkpoint.outputs.output import Output
from pyspark_checkpoint.store.open import open_object_store
from tests.ecosystem.kit import Driver, Pipeline, serving_driver, set_up

pytestmark = pytest.mark.spark
OUTPUTS: dict[str, type[FileSinkOutput | DeltaOutput | IcebergOutput]] = {
    "file": FileSinkOutput,
    "delta": DeltaOutput,
    "iceberg": IcebergOutput,
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One for all pipelines."""
    set_up()
    with serving_driver(tmp_path_factory.mktemp("positions")) as driver:
        yield driver


def asked(pipeline: Pipeline) -> Output:
    """The output of a pipeline, as a restore asks it."""
    return OUTPUTS[pipeline.output](pipeline.target, open_object_store(pipeline.target))


@pytest.mark.parametrize("output", sorted(OUTPUTS))
def test_an_output_says_the_newest_batch_that_it_has(output: str, driver: Driver, tmp_path: Path) -> None:
    """Past a compaction of the file sink's log and a checkpoint of Delta's."""
    pipeline = Pipeline(driver, tmp_path, output)
    for batch in range(13):
        pipeline.add_input(batch)
    done = pipeline.run()
    assert done["numbers"] == list(range(130))
    found = asked(pipeline).position(done["query_id"])
    assert found.batch_id == done["batch"] == 12
    assert found.is_known


@pytest.mark.parametrize("output", sorted(OUTPUTS))
def test_a_location_that_goes_back_alone_loses_rows_in_silence(
    output: str, driver: Driver, tmp_path: Path
) -> None:
    """The fault itself, made by hand: every output drops batches by their numbers. So it must be asked."""
    pipeline = Pipeline(driver, tmp_path, output)
    for batch in range(6):
        pipeline.add_input(batch)
    done = pipeline.run()
    for log in ("offsets", "commits", "sources/0"):
        for path in (pipeline.location / log).iterdir():
            if int(path.name.strip(".").split(".")[0]) > 2:
                path.unlink()
    pipeline.add_input(6)
    again = pipeline.run(files_per_trigger=100)
    assert again["query_id"] == done["query_id"]
    assert set(again["numbers"]) == set(range(60)), "the rows of the seventh file are nowhere"
    assert asked(pipeline).position(done["query_id"]).batch_id == 5


@pytest.mark.parametrize("output", ["delta", "file"])
def test_a_restore_is_refused_while_the_output_is_ahead(
    output: str, driver: Driver, tmp_path: Path
) -> None:
    """Captured by the listener from what Spark says of its sink; refused by the restore from the table."""
    pipeline, url = Pipeline(driver, tmp_path, output), str(tmp_path / "checkpoints")
    for batch in range(3):
        pipeline.add_input(batch)
    done = pipeline.run(checkpoint_url=url)
    newest = CheckpointStore.open(f"{url}/{done['query_id']}").load_latest()
    assert newest is not None
    assert (newest.batch_id, newest.sinks[0].kind) == (2, output)
    pipeline.add_input(3)
    pipeline.run()
    with pytest.raises(Diverged, match="drop batch 3"):
        restore(url, str(tmp_path / "fresh"), query="numbers")
    assert not (tmp_path / "fresh").exists()
    assert restore(url, str(tmp_path / "fresh"), query="numbers", sink="warn").batch_id == 2
