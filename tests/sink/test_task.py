"""What a table is made of: its artifacts in their formats, and what is opened to write and read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.sink import worker_cache
from pyspark_checkpoint.sink.query import TaskFacts
from pyspark_checkpoint.sink.table_options import parse_read_options
from pyspark_checkpoint.sink.table_reader import TableReader
from pyspark_checkpoint.sink.task import SinkTask, StagedPartition
from pyspark_checkpoint.sink.writers import BatchWriter, StreamWriter
from tests.support.sink_kit import SCHEMA, Query, read_pairs, rows_from


def stored(path: str, manifest: CheckpointManifest) -> Iterator[tuple[ArtifactRef, bytes]]:
    """The artifacts of a table's partitions with their bytes, as any other tool finds them."""
    for ref in manifest.artifacts():
        data = Path(path, ref.path or "").read_bytes()
        yield ref, data[ref.offset : ref.offset + ref.size_bytes]


@pytest.mark.parametrize(
    ("options", "codec"),
    [
        ({}, "ZSTD"),
        ({"codec": "zstd", "codecLevel": "19"}, "ZSTD"),
        ({"codec": "lz4"}, "LZ4"),
        ({"codec": "none"}, ""),
    ],
    ids=["default", "zstd-19", "lz4", "none"],
)
def test_deltas_are_arrow_and_snapshots_parquet_with_the_codec_that_was_asked_for(
    path: str, options: dict[str, str], codec: str
) -> None:
    """Both are read by pyarrow alone, without a line of ours."""
    query = Query(path, options={"maxDeltas": "2", "partitions": "1", **options})
    for batch_id in range(4):
        manifest = query.epoch(batch_id, [(key, batch_id) for key in range(2000)])
    kinds = set()
    for ref, data in stored(path, manifest):
        kinds.add(ref.is_delta)
        if ref.is_delta:
            rows = pa.ipc.open_file(pa.BufferReader(data)).read_all()
            # A compressed buffer says so in the header of its batch; the codec's frame has a magic number.
            assert (b"\x28\xb5\x2f\xfd" in data, b"\x04\x22\x4d\x18" in data) == (
                codec == "ZSTD",
                codec == "LZ4",
            )
        else:
            file = pq.ParquetFile(pa.BufferReader(data))
            assert file.metadata.row_group(0).column(0).compression == (codec or "UNCOMPRESSED")
            rows = file.read()
        assert rows.column_names == ["k", "v"]
        assert rows.num_rows == 2000
    assert kinds == {True, False}


def test_a_higher_level_of_the_codec_writes_less(path: str, tmp_path: Path) -> None:
    """So the option reaches the files."""
    sizes = []
    for level in ("1", "19"):
        table = str(tmp_path / level)
        query = Query(table, options={"codecLevel": level, "partitions": "1"})
        manifest = query.epoch(0, [(key, key * key % 1009) for key in range(20_000)])
        sizes.append(sum(ref.size_bytes for ref in manifest.artifacts()))
    assert sizes[1] < sizes[0]


def test_the_writers_are_those_that_take_arrow() -> None:
    """Spark hands whole batches of columns to them; no row becomes a Python object."""
    assert issubclass(StreamWriter, DataSourceStreamArrowWriter)
    assert issubclass(BatchWriter, DataSourceArrowWriter)


def test_nulls_in_a_column_that_had_none_when_the_query_was_made_are_an_error(path: str) -> None:
    """Spark takes what a schema says for granted, and would read a null as some value."""
    fields = [{**field, "nullable": field["name"] != "k"} for field in SCHEMA.to_json()["fields"]]
    reader = TableReader(parse_read_options({"path": path}), {"type": "struct", "fields": fields})
    query = Query(path)
    query.epoch(0, [(1, 1)])
    assert [list(reader.read(split)) for split in reader.partitions()]
    query.epoch(1, [(None, 2)])
    with pytest.raises(RefusedError, match=r"column k has nulls by now.*load the table again"):
        [list(reader.read(split)) for split in reader.partitions()]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_retried_task_skips_compaction(path: str, keyed: bool) -> None:
    """The first attempt may have died of it: the rows get through, and the chain waits for its turn."""
    query = Query(path, jar=keyed, keys="k" if keyed else "", tasks=1, options={"maxDeltas": "4"})
    for batch_id in range(4):
        query.epoch(batch_id, [(batch_id, batch_id), (9, batch_id)])
    plan, options = query.plan(batch_id=4), query.parsed()
    store = worker_cache.open_store(options.shared)

    def attempt(number: int) -> StagedPartition:
        facts = TaskFacts(0, 4, query.query_id, query.run_id, number)
        batches = rows_from([(4, 4), (9, 4)]).to_batches()
        return SinkTask(plan, facts, store, options.compression).run(iter(batches))

    assert attempt(0).rewritten is not None
    again = attempt(1)
    assert again.rewritten is None
    longer = query.commit([again], 4)
    assert len(next(iter(longer.operators["table"].partitions)).artifacts) == 5
    shorter = [query.epoch(batch_id, [(9, batch_id)]) for batch_id in range(5, 9)][-1]
    assert len(next(iter(shorter.operators["table"].partitions)).artifacts) <= 3
    assert (4, 4) in read_pairs(path)


def test_rows_that_came_to_the_wrong_partition_fail_the_batch(path: str) -> None:
    """Also when the first row is where it belongs: nobody would find the others again."""
    query = Query(path, options={"partitions": "2"})
    plan = query.plan()
    rows = rows_from([(n, n) for n in range(20)])
    own = query.split(plan, rows)[0]
    query.task(plan, 0, own, 0)
    with pytest.raises(RefusedError, match="came to partition 0"):
        query.task(plan, 0, pa.concat_tables([own, query.split(plan, rows)[1]]), 0)
