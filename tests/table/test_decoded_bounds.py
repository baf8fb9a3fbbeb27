"""A few stored bytes that would become many: no reader decodes more than the manifest says."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.sink.chain import ChainReader
from pyspark_checkpoint.sink.table_options import parse_read_options
from pyspark_checkpoint.sink.table_reader import read_table
from pyspark_checkpoint.spark_files import logs
from pyspark_checkpoint.table.codec import (
    Compression,
    decode_rows,
    decoded_size,
    encode_delta,
    encode_snapshot,
    recorded_size,
)
from pyspark_checkpoint.table.ipc import batch_bytes
from pyspark_checkpoint.table.schema import TableSchema
from tests.support.sink_kit import Query

Encode = Callable[[pa.Table, Compression], bytes]
ZEROS = pa.table({"x": pa.array([0] * 4_000_000, pa.int64()), "y": ["a" * 20] * 4_000_000})
NOTHING = pa.table({"x": pa.nulls(4_000_000)})
MIXED = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int32()),
        "text": ["a", "bb", None],
        "flag": [True, False, None],
        "list": [[1, 2], None, []],
        "struct": [{"a": 1}, {"a": None}, None],
        "none": pa.nulls(3),
    }
)
FORMS = pytest.mark.parametrize("encode", [encode_delta, encode_snapshot], ids=["arrow", "parquet"])
CODECS = pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])


@FORMS
@CODECS
@pytest.mark.parametrize("rows", [MIXED, MIXED.slice(1), MIXED.slice(0, 0), NOTHING], ids=str)
def test_what_was_written_is_read_with_the_size_that_was_recorded(
    encode: Encode, codec: str, rows: pa.Table
) -> None:
    """All kinds of columns, compressed or not; the recorded size is always enough."""
    data = encode(rows, Compression(codec, None))
    assert decode_rows(data, "x", recorded_size(data, rows)).equals(rows)


@FORMS
def test_rows_that_take_more_than_the_manifest_says_are_not_decoded(encode: Encode) -> None:
    """Kilobytes that would take 130 MB: refused, and the memory that it takes to know stays small."""
    data = encode(ZEROS, Compression())
    assert len(data) < decoded_size(ZEROS) // 8
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        with pytest.raises(FormatError, match="more than its manifest says"):
            decode_rows(data, "x", 1_000_000)
        assert (counted.max_memory() or 0) < 40_000_000
    finally:
        pa.set_memory_pool(usual)
    assert decode_rows(data, "x", decoded_size(ZEROS)).num_rows == ZEROS.num_rows


@FORMS
def test_rows_without_bytes_are_bounded_as_well(encode: Encode) -> None:
    """A column of nulls takes no memory in Arrow; what is made of it row by row does."""
    data = encode(NOTHING, Compression())
    with pytest.raises(FormatError, match="more than its manifest says"):
        decode_rows(data, "x", 1000)


def test_one_huge_batch_is_refused_by_what_its_header_says() -> None:
    """Not the batches of our writer, but a single one of all rows."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, ZEROS.schema, options=options) as writer:
        writer.write_batch(ZEROS.combine_chunks().to_batches()[0])
    with pytest.raises(FormatError, match="more than its manifest says"):
        decode_rows(sink.getvalue(), "x", 1_000_000)


def test_dictionaries_which_no_delta_has_are_refused() -> None:
    """A column that is one text and as many references to it."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), ["a" * 1000])
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, pa.schema([("x", column.type)])) as writer:
        writer.write_table(pa.table({"x": column}))
    with pytest.raises(FormatError, match="which no delta has"):
        decode_rows(sink.getvalue(), "x", 10**6)


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_no_header_of_a_message_raises_a_foreign_exception(header: bytes, body: bytes) -> None:
    """Whatever the bytes are, the answer is a size or damage."""
    with contextlib.suppress(FormatError):
        assert batch_bytes(pa.py_buffer(header), pa.py_buffer(body)) >= 0


@given(st.data())
def test_no_changed_byte_of_a_delta_raises_a_foreign_exception(data: st.DataObject) -> None:
    """A digest would have found it; a writer that means harm makes the digest fit."""
    good = encode_delta(MIXED, Compression())
    at = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        decode_rows(bytes(changed), "x", decoded_size(MIXED))


def test_sizes_before_the_beginning_are_damage() -> None:
    """Offsets of a flatbuffer may be negative."""
    header = struct.pack("<Ii", 4, 1000) + bytes(40)
    with pytest.raises(FormatError, match="nothing sensible"):
        batch_bytes(pa.py_buffer(header), pa.py_buffer(b""))


def test_a_snapshot_of_rocksdb_that_says_far_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A zip of some kilobytes whose metadata would be huge."""
    monkeypatch.setattr(logs, "MAX_ZIP_METADATA_BYTES", 1_000_000)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", b"v1\n" + b" " * 30_000_000)
    with pytest.raises(FormatError, match="over 1000000 bytes"):
        logs.decode_rocksdb_zip(sink.getvalue(), "1.zip")


@pytest.mark.parametrize("with_jar", [True, False])
def test_every_artifact_of_a_table_has_its_decoded_size(tmp_path: Path, with_jar: bool) -> None:
    """Deltas, joins and snapshots; what was recorded is what the rows take, within a factor of two."""
    query = Query(
        str(tmp_path / "table"), jar=with_jar, keys="k" if with_jar else "", options={"maxDeltas": "2"}
    )
    for epoch in range(8):
        manifest = query.epoch(epoch, [(n, epoch) for n in range(50)])
        for ref in manifest.artifacts():
            data = (tmp_path / "table" / (ref.path or "")).read_bytes()
            data = data[ref.offset : ref.offset + ref.size_bytes]
            kind = pa.ipc.open_file if data[:5] == b"ARROW" else pq.read_table
            rows = kind(pa.BufferReader(data))
            rows = rows.read_all() if data[:5] == b"ARROW" else rows
            assert 0 < ref.decoded_bytes <= decoded_size(rows) <= 2 * ref.decoded_bytes


FLAGS = TableSchema.from_json(
    {
        "type": "struct",
        "fields": [
            {"name": "k", "type": "long", "nullable": True, "metadata": {}},
            {"name": "n", "type": "long", "nullable": True, "metadata": {}},
            {
                "name": "a",
                "type": {
                    "type": "array",
                    "elementType": {
                        "type": "struct",
                        "fields": [{"name": "flag", "type": "boolean", "nullable": True, "metadata": {}}],
                    },
                    "containsNull": True,
                },
                "nullable": True,
                "metadata": {},
            },
            {"name": "none", "type": {"type": "struct", "fields": []}, "nullable": True, "metadata": {}},
        ],
    }
)


def flags(schema: TableSchema, first: int, count: int, *, nulls: bool) -> pa.Table:
    """Rows of many flags each: a batch with nulls at every level, or one without any."""
    size = count * 8000
    values = pa.array([None if nulls and at == 0 else at % 3 == 0 for at in range(size)])
    mask = pa.array([at == 1 for at in range(size)]) if nulls else None
    columns = {
        "k": pa.array(range(first, first + count), pa.int64()),
        "n": pa.array(range(first, first + count), pa.int64()),
        "a": pa.ListArray.from_arrays(
            pa.array(range(0, size + 1, 8000), pa.int32()),
            pa.StructArray.from_arrays([values], ["flag"], mask=mask),
        ),
        "none": pa.array([{}] * count, pa.struct([])),
    }
    return pa.table([columns[name] for name in schema.names], names=list(schema.names))


@pytest.mark.parametrize("no_parquet", [False, True], ids=["parquet", "arrow"])
@pytest.mark.parametrize("mode", ["stream", "whole", "replaced"])
def test_rows_with_few_nulls_in_many_batches_are_read_again(
    tmp_path: Path, mode: str, no_parquet: bool
) -> None:
    """A batch without nulls has no bitmap of them; the artifact that it becomes a part of has."""
    schema = FLAGS if no_parquet else TableSchema(FLAGS.fields[:-1])
    path = str(tmp_path / "table")
    rows = pa.concat_tables([flags(schema, 0, 200, nulls=False), flags(schema, 200, 1, nulls=True)])
    options = {"maxDeltas": "2", **({"sequenceColumn": "n"} if mode == "whole" else {})}
    keys = "k" if mode == "whole" else ""
    query = Query(path, jar=mode == "whole", keys=keys, options=options, schema=schema, tasks=1)
    for epoch in range(3):
        plan = query.plan(overwrite=mode == "replaced", batch_id=epoch)
        query.commit([query.task(plan, epoch, rows, 0)], epoch)
    found = read_table(parse_read_options({"path": path}))
    reader = ChainReader(ArtifactReader(found.opened.store, store_id=found.opened.store_id), found.table)
    count = sum(reader.rows(chain).num_rows for chain in found.chains())
    assert count == rows.num_rows * (3 if mode == "stream" else 1)


@FORMS
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_nulls_at_every_level_of_a_struct_are_counted(encode: Encode, depth: int) -> None:
    """A bitmap a level, beside one bit of value: the size that is recorded counts them all."""
    count = 130_000
    column: pa.Array = pa.array([None, *[True] * (count - 1)])
    for level in range(depth):
        mask = pa.array([at == level + 1 for at in range(count)])
        column = pa.StructArray.from_arrays([column], ["inner"], mask=mask)
    rows = pa.table({f"c{at}": column for at in range(20)})
    data = encode(rows, Compression())
    assert decode_rows(data, "x", recorded_size(data, rows)).num_rows == count
