"""Reading a table at one checkpoint: partitions in parallel, as Arrow, pruned by keys where possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_checkpoint.errors import FormatError, RefusedError, SettingsError, UnknownVersion
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.store_cipher import DataKeyCipher
from pyspark_checkpoint.sink.filters import wanted_keys
from pyspark_checkpoint.sink.partition import Chain, ChainReader, rows_of_vnodes
from pyspark_checkpoint.sink.table_lookup import FoundTable, read_table
from pyspark_checkpoint.sink.table_options import ReadOptions, SharedOptions
from pyspark_checkpoint.sink.worker_cache import open_store
from pyspark_checkpoint.table.conform import conform
from pyspark_checkpoint.table.info import TableInfo, TableMode
from pyspark_checkpoint.table.schema import raw_arrow_schema
from pyspark_checkpoint.table.vnode import parse_vnodes, vnodes_of

ROWS_PER_BATCH = 65_536
BYTES_PER_SPLIT = 64 * 1024 * 1024
DECODED_BYTES_PER_SPLIT = 256 * 1024 * 1024


@dataclass
class TableSplit(InputPartition):
    """What one task reads: a part of the table, and what it needs to open it."""

    chain: Chain
    table: TableInfo
    store_id: str
    cipher: DataKeyCipher | None
    vnodes: tuple[int, ...] | None


class TableReader(DataSourceReader):
    """Reads the table that the options choose, as it was when the reader was planned."""

    def __init__(self, options: ReadOptions, schema: Mapping[str, Any]) -> None:
        self._shared = options.shared
        self._vnodes = options.vnodes
        self._options = options
        self._schema = dict(schema)
        self._filters: tuple[Filter, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        """One split per partition of a keyed table; others are split by size."""
        found = read_table(self._options)
        wanted = self._wanted_vnodes(found.table)
        return list(table_splits(found, wanted)) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if not isinstance(partition, TableSplit):
            return iter(())
        rows = read_split(self._shared, partition)
        return iter(as_batches(rows, raw_arrow_schema(self._schema)))

    def _wanted_vnodes(self, table: TableInfo) -> tuple[int, ...] | None:
        wanted = None
        if self._vnodes is not None:
            if not table.routed:
                raise SettingsError("option vnodes needs a table with keys, written with the jar")
            wanted = parse_vnodes(self._vnodes, table.vnodes)
        keys = wanted_keys(self._filters, table) if table.routed else None
        if keys is None:
            return wanted
        found = set(vnodes_of(keys.columns, table.vnodes).tolist()) if keys.num_rows else set()
        return tuple(sorted(found if wanted is None else found & set(wanted)))


class FilteringTableReader(TableReader):
    """The same reader for the process in which Spark hands filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember filters on keys to leave partitions out; Spark evaluates all of them as well."""
        self._filters = tuple(filters)
        return filters


def table_splits(found: FoundTable, wanted: tuple[int, ...] | None) -> Iterator[TableSplit]:
    """Cut a table for reading; ``wanted`` are the vnodes to read, None for all."""
    table, opened = found.table, found.opened
    for chain in found.chains():
        vnodes = None
        if wanted is not None:
            owned = [vnode for vnode in wanted if vnode % table.partitions == chain.partition]
            if not owned:
                continue
            vnodes = None if len(owned) == table.vnodes // table.partitions else tuple(owned)
        for piece in _pieces(chain, table):
            ids = {ref.data_key_id for ref in piece.refs if ref.data_key_id}
            cipher = None if opened.cipher is None else opened.cipher.task_cipher(sorted(ids))
            yield TableSplit(piece, table, opened.store_id, cipher, vnodes)


def _pieces(chain: Chain, table: TableInfo) -> Iterator[Chain]:
    """A keyed chain must be read as a whole; without keys every artifact stands for itself."""
    if table.mode is TableMode.UPSERT:
        if chain.refs:
            yield chain
        return
    piece: list[ArtifactRef] = []
    stored = decoded = 0
    for ref in chain.refs:
        stored, decoded = stored + ref.size_bytes, decoded + ref.decoded_bytes
        if piece and (stored > BYTES_PER_SPLIT or decoded > DECODED_BYTES_PER_SPLIT):
            yield Chain(chain.partition, tuple(piece))
            piece, stored, decoded = [], ref.size_bytes, ref.decoded_bytes
        piece.append(ref)
    if piece:
        yield Chain(chain.partition, tuple(piece))


def read_split(shared: SharedOptions, split: TableSplit) -> pa.Table:
    """The rows of one split, in the table's schema."""
    artifacts = ArtifactReader(open_store(shared), store_id=split.store_id, cipher=split.cipher)
    try:
        rows = ChainReader(artifacts, split.table).rows(split.chain)
    except FormatError as error:
        if not isinstance(error, UnknownVersion):
            error.hint = (
                "if the table has moved on by more epochs than the option retain keeps since this query "
                "began, they were pruned: read a savepoint, or keep more. Otherwise run ckpt verify"
            )
        raise
    return rows if split.vnodes is None else rows_of_vnodes(rows, split.table, split.vnodes)


def as_batches(rows: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows as Spark takes them; ``schema`` is the one that the query was made with."""
    rows = conform(rows, schema)
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise RefusedError(
                f"column {field.name} has nulls by now, and had none when this query was made",
                hint="load the table again, or start the stream again",
            )
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=ROWS_PER_BATCH)
    return batches
