"""Reading a table at one checkpoint: partitions in parallel, as Arrow, pruned by keys where possible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from pyspark_checkpoint.errors import (
    FormatError,
    Incompatible,
    NoCheckpoint,
    SettingsError,
    UnknownVersion,
)
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest, OperatorSnapshotEntry
from pyspark_checkpoint.format.manifest_parts import TableMode
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.lookup import (
    choose_number,
    parse_timestamp_ms,
    read_checkpoint,
)
from pyspark_checkpoint.history.settle import unfolded
from pyspark_checkpoint.history.store_cipher import DataKeyCipher
from pyspark_checkpoint.sink.chain import Chain, ChainReader, rows_of_vnodes
from pyspark_checkpoint.sink.table_options import ReadOptions, SharedOptions
from pyspark_checkpoint.sink.worker_cache import (
    OpenTable,
    SeenHead,
    open_for_reading,
    open_newest,
    open_store,
)
from pyspark_checkpoint.spark.worker_tuning import settle_worker
from pyspark_checkpoint.table.bounds import Condition, bounded_columns, may_match, stored_value
from pyspark_checkpoint.table.conform import conform
from pyspark_checkpoint.table.info import TableInfo
from pyspark_checkpoint.table.schema import raw_arrow_schema
from pyspark_checkpoint.table.vnode import parse_vnodes, vnodes_of

ROWS_PER_ARROW_BATCH = 65_536
BYTES_PER_SPLIT = 64 * 1024 * 1024
DECODED_BYTES_PER_SPLIT = 256 * 1024 * 1024
JOINED_BYTES = 4 * 1024 * 1024
JOINED_DECODED_BYTES = 32 * 1024 * 1024
"""Up to these sizes one task reads several partitions: a task costs more than their rows."""
MAX_FILTERED_KEYS = 10_000
"""Filters that leave more keys over than this prune nothing."""
BYTES_PER_INLINE_SPLIT = 512 * 1024
"""Rows that come with the plan travel in parts of this size: Spark warns of messages from 1,000 KiB on."""
_NOT_UTF8 = "\ufffd"
"""What the JVM makes of bytes that are no letter."""
_DECIMAL_DIGITS = 28
"""To so many digits PySpark rounds the decimals of filters."""


@dataclass
class TableSplit(InputPartition):
    """What one task reads: parts of the table, and what it needs to open them."""

    chains: tuple[Chain, ...]
    table: TableInfo
    store_id: str
    cipher: DataKeyCipher | None
    vnodes: tuple[int, ...] | None

    def reader(self, shared: SharedOptions) -> ChainReader:
        """What reads the chains."""
        artifacts = ArtifactReader(open_store(shared), store_id=self.store_id, cipher=self.cipher)
        return ChainReader(artifacts, self.table)


class InlineSplit(InputPartition):
    """Rows that the planning process has read, for a task without Python: a stream of Arrow batches.

    ``InlineRead.Rows`` of the jar finds them in the pickle by their mark, and by the names of this class
    and of its module.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        data = sink.getvalue().to_pybytes()
        super().__init__(b"ckpt-rows:%d;" % len(data) + data)

    def batches(self) -> list[pa.RecordBatch]:
        """The rows again, for a task that runs Python all the same."""
        data: bytes = self.value
        return list(pa.ipc.open_stream(data[data.index(b";") + 1 :]))


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table at one checkpoint."""

    opened: OpenTable
    manifest: CheckpointManifest
    table: TableInfo
    own_epoch: bool = True
    """Whether the rows of the checkpoint's own epoch are wanted too, and not only those before it."""
    seen: SeenHead | None = None
    """The checkpoint for who looks for the newest one again; None if the options have named one."""

    def chains(self) -> list[Chain]:
        """The chains of all partitions, with what is settled: reads the lists that the manifest names."""
        entry = self.manifest.operators.get(self.table.operator)
        if entry is not None and entry.settled:
            entry = unfolded(self.opened.store, entry)
        chains = _chains(entry)
        return chains if self.own_epoch else [chain.before(self.manifest.epoch) for chain in chains]

    def newest_chains(self) -> list[Chain]:
        """The same without what is settled, which is never of the manifest's own epoch."""
        return _chains(self.manifest.operators.get(self.table.operator))

    def splits(
        self, chains: Iterable[Chain], vnodes: tuple[int, ...] | None = None
    ) -> Iterator[TableSplit]:
        """Chains as tasks read them, small ones together; each with the data keys of its artifacts alone.

        ``vnodes`` are those whose rows are wanted, None if all are.
        """
        opened = self.opened
        for group in _joined(chains):
            ids = {ref.data_key_id for chain in group for ref in chain.refs if ref.data_key_id}
            cipher = None if opened.cipher is None else opened.cipher.task_cipher(sorted(ids))
            yield TableSplit(group, self.table, opened.store_id, cipher, vnodes)


def _chains(entry: OperatorSnapshotEntry | None) -> list[Chain]:
    return [Chain(part.partition_id, part.artifacts) for part in (entry.partitions if entry else ())]


def open_table(shared: SharedOptions) -> OpenTable:
    """Open a store that must hold something."""
    opened = open_for_reading(shared)
    if opened is None:
        raise _no_table(shared)
    return opened


def _no_table(shared: SharedOptions) -> NoCheckpoint:
    return NoCheckpoint(f"there is no table at {shared.path}", hint="write one first, or check the path")


def read_table(options: ReadOptions, seen: SeenHead | None = None) -> FoundTable:
    """The table at the checkpoint that the options choose: the newest one unless they name another.

    ``seen`` is what another process has found there before: it saves requests, and decides nothing.
    """
    if options.names_checkpoint:
        opened = open_table(options.shared)
        found = read_checkpoint(opened.store, _find_checkpoint_id(opened, options), mac=opened.mac)
        return found_table(opened, found.manifest, options.shared)
    newest = open_newest(options.shared, seen)
    if newest is None:
        raise _no_table(options.shared)
    if newest.head is None:
        raise NoCheckpoint(
            f"nothing was committed to {options.shared.path} yet", hint="start the query that writes"
        )
    found_now = found_table(newest.opened, newest.head.manifest, options.shared)
    return replace(found_now, seen=SeenHead.of(newest.head))


def found_table(opened: OpenTable, manifest: CheckpointManifest, shared: SharedOptions) -> FoundTable:
    """The table of a manifest, which must have one."""
    if manifest.table is None:
        raise Incompatible(
            f"{shared.path} holds checkpoints of a query, not a table",
            hint="read the path of a table that ckpt-sink wrote; ckpt show says what is here",
        )
    return FoundTable(opened, manifest, TableInfo.of_manifest(manifest))


def _find_checkpoint_id(opened: OpenTable, options: ReadOptions) -> int:
    """The checkpoint that the options name."""
    if options.checkpoint_id is not None:
        return options.checkpoint_id
    timestamp = options.timestamp
    return choose_number(
        opened.store,
        epoch=options.epoch,
        savepoint=options.savepoint,
        timestamp_ms=None if timestamp is None else parse_timestamp_ms(timestamp, "timestampAsOf"),
    )


class TableReader(DataSourceReader):
    """Reads the table that the options choose, as it was when the reader was planned."""

    def __init__(
        self, options: ReadOptions, schema: Mapping[str, Any], seen: SeenHead | None = None
    ) -> None:
        self._options = options
        self._schema = dict(schema)
        self._seen = seen
        self._filters: tuple[Filter, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need."""
        return {**self.__dict__, "_seen": None}

    def partitions(self) -> Sequence[InputPartition]:
        """What tasks read: one split per partition of a keyed table, others by size; or the rows.

        The rows are read here if they are few. A task in Python costs more than to read them.
        """
        found = read_table(self._options, self._seen)
        wanted, conditions = self._wanted_vnodes(found.table), conditions_of(self._filters, found.table)
        chains, wanted = table_chains(found, wanted, conditions)
        rows = self._read_inline(found, chains, wanted)
        splits = rows or list(found.splits(chains, wanted))
        settle_worker()
        return splits or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if isinstance(partition, InlineSplit):
            yield from partition.batches()
        if isinstance(partition, TableSplit):
            for rows in read_split(self._options.shared, partition):
                yield from as_batches(rows, raw_arrow_schema(self._schema))

    def _read_inline(
        self, found: FoundTable, chains: Sequence[Chain], wanted: tuple[int, ...] | None
    ) -> list[InputPartition]:
        """The rows of all chains, at least one split; empty if they are too many, or nobody takes them."""
        most = self._options.inline_bytes
        if not self._options.own_scan or not most or _bytes_to_read(chains) > most:
            return []
        opened, schema = found.opened, raw_arrow_schema(self._schema)
        artifacts = ArtifactReader(opened.store, store_id=opened.store_id, cipher=opened.cipher)
        batches: list[pa.RecordBatch] = []
        for rows in read_chains(ChainReader(artifacts, found.table), chains, wanted):
            batches += as_batches(rows, schema)
        if sum(batch.nbytes for batch in batches) > most:
            return []
        return [InlineSplit(group, schema) for group in _in_messages(batches)]

    def _wanted_vnodes(self, table: TableInfo) -> tuple[int, ...] | None:
        wanted = None
        if self._options.vnodes is not None:
            if not table.routed:
                raise SettingsError(
                    "option vnodes needs a table with keys, written with the jar",
                    hint="leave the option vnodes out, and filter the rows",
                )
            wanted = parse_vnodes(self._options.vnodes, table.vnodes)
        keys = wanted_keys(self._filters, table) if table.routed else None
        if keys is None:
            return wanted
        found = set(vnodes_of(keys.columns, table.vnodes).tolist()) if keys.num_rows else set()
        return tuple(sorted(found if wanted is None else found & set(wanted)))


class FilteringTableReader(TableReader):
    """The same reader for the process in which Spark hands filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember filters to leave partitions and artifacts out; Spark evaluates all of them as well."""
        self._filters = tuple(one for one in filters if _is_exact(getattr(one, "value", None)))
        return filters


def _is_exact(value: Any) -> bool:
    """Whether a filter's value is the one that Spark compares with.

    Bytes of a text that are not UTF-8 came as another letter, and long decimals rounded, so that rows of
    them would be looked for elsewhere.
    """
    if isinstance(value, str):
        return _NOT_UTF8 not in value
    if isinstance(value, Decimal):
        return len(value.as_tuple().digits) < _DECIMAL_DIGITS
    if isinstance(value, Mapping):
        return all(map(_is_exact, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_exact, value))


def table_chains(
    found: FoundTable, wanted: tuple[int, ...] | None, conditions: Sequence[Condition] = ()
) -> tuple[list[Chain], tuple[int, ...] | None]:
    """What of a table is to be read, without what cannot have a row that meets all ``conditions``.

    ``wanted`` are the vnodes to read, None for all. Returns chains, each of which one task may read, and
    those of the vnodes of which only some rows are wanted, None for all rows.
    """
    table, chains = found.table, found.chains()
    if conditions:
        chains = [_matching(chain, table, conditions) for chain in chains]
    if wanted is not None:
        owners = {vnode % table.partitions for vnode in wanted}
        chains = [chain for chain in chains if chain.partition in owners]
        if len(wanted) == table.vnodes:
            wanted = None
    return [piece for chain in chains for piece in _pieces(chain, table)], wanted


def _bytes_to_read(chains: Iterable[Chain]) -> int:
    return sum(max(ref.decoded_bytes, ref.size_bytes) for chain in chains for ref in chain.refs)


def _in_messages(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Cut and group batches so that each group fits into the message of a task; at least one group."""
    group: list[pa.RecordBatch] = []
    used = 0
    for batch in batches:
        rows = max(1, batch.num_rows * BYTES_PER_INLINE_SPLIT // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            if group and used + piece.nbytes > BYTES_PER_INLINE_SPLIT:
                yield group
                group, used = [], 0
            group.append(piece)
            used += piece.nbytes
    yield group


def _matching(chain: Chain, table: TableInfo, conditions: Sequence[Condition]) -> Chain:
    """The artifacts of a chain that can have a row which meets the conditions.

    In a keyed table a row may be replaced by one that does not meet them. So an artifact is left out for
    its keys, which are the same in both, or all of them are.
    """
    if table.mode is TableMode.UPSERT:
        if not any(may_match(ref.bounds, conditions) for ref in chain.refs):
            return Chain(chain.partition, ())
        conditions = [condition for condition in conditions if condition.column in table.keys]
    return Chain(chain.partition, tuple(ref for ref in chain.refs if may_match(ref.bounds, conditions)))


def _joined(chains: Iterable[Chain]) -> Iterator[tuple[Chain, ...]]:
    """Group chains, in their order, so that small ones share a task."""
    group: list[Chain] = []
    stored = decoded = 0
    for chain in chains:
        stored += sum(ref.size_bytes for ref in chain.refs)
        decoded += sum(ref.decoded_bytes for ref in chain.refs)
        if group and (stored > JOINED_BYTES or decoded > JOINED_DECODED_BYTES):
            yield tuple(group)
            group = []
            stored = sum(ref.size_bytes for ref in chain.refs)
            decoded = sum(ref.decoded_bytes for ref in chain.refs)
        group.append(chain)
    if group:
        yield tuple(group)


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


def read_split(shared: SharedOptions, split: TableSplit) -> Iterator[pa.Table]:
    """The rows of one split, in the table's schema, one chain after the other."""
    return read_chains(split.reader(shared), split.chains, split.vnodes)


def read_chains(
    reader: ChainReader, chains: Sequence[Chain], vnodes: tuple[int, ...] | None
) -> Iterator[pa.Table]:
    """The rows of chains, in the table's schema, one chain after the other."""
    try:
        for rows in reader.rows_of(chains):
            yield rows if vnodes is None else rows_of_vnodes(rows, reader.table, vnodes)
    except FormatError as error:
        if not isinstance(error, UnknownVersion):
            error.hint = (
                "if the table has moved on by more epochs than the option retain keeps since this query "
                "began, they were pruned: read a savepoint, or keep more. Otherwise run ckpt verify"
            )
        raise


def as_batches(rows: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows as Spark takes them; ``schema`` is the one that the query was made with."""
    rows = conform(rows, schema)
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise Incompatible(
                f"column {field.name} has nulls by now, and had none when this query was made",
                hint="load the table again, or start the stream again",
            )
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=ROWS_PER_ARROW_BATCH)
    return batches


def wanted_keys(filters: Sequence[Filter], table: TableInfo) -> pa.Table | None:
    """The only keys that can pass the filters, None if they leave any column of the key open."""
    choices: list[list[Any]] = []
    for key in table.keys:
        values = _values(filters, key)
        if values is None:
            return None
        choices.append(values)
    if math.prod(map(len, choices)) > MAX_FILTERED_KEYS:
        return None
    schema = table.schema.arrow()
    rows = list(itertools.product(*choices))
    try:
        columns = [
            pa.array([row[at] for row in rows], schema.field(key).type) for at, key in enumerate(table.keys)
        ]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        # A value that does not convert, such as a number beyond the column's type, prunes nothing.
        return None
    return pa.table(columns, names=list(table.keys))


def conditions_of(filters: Sequence[Filter], table: TableInfo) -> list[Condition]:
    """What filters leave of single columns. One that is not understood leaves everything."""
    schema = table.schema.arrow()
    ordered = set(bounded_columns(table.schema))
    found: list[Condition] = []
    for one in filters:
        (column, *inner) = getattr(one, "attribute", None) or ("",)
        if column in ordered and not inner:
            try:
                condition = _condition(one, column, schema.field(column).type)
            except pa.ArrowException:
                continue  # a value that does not convert leaves nothing out
            found += [] if condition is None else [condition]
    return found


def _condition(found: Filter, column: str, kind: pa.DataType) -> Condition | None:
    if isinstance(found, IsNull):
        return Condition(column, with_nulls=True)
    if isinstance(found, IsNotNull):
        return Condition(column, ((None, None),))
    if isinstance(found, EqualTo | EqualNullSafe | In):
        values = found.value if isinstance(found, In) else (found.value,)
        known = [value for value in values if value is not None]
        ends = [stored_value(value, kind) for value in known]
        with_nulls = isinstance(found, EqualNullSafe) and not known
        return None if None in ends else Condition(column, tuple((end, end) for end in ends), with_nulls)
    if isinstance(found, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        end = stored_value(found.value, kind)
        if end is not None:
            is_low = isinstance(found, GreaterThan | GreaterThanOrEqual)
            is_strict = isinstance(found, GreaterThan | LessThan)
            return Condition(column, ((end, None) if is_low else (None, end),), is_strict=is_strict)
    return None


def _values(filters: Sequence[Filter], key: str) -> list[Any] | None:
    """The values that one column can have, by the first filter that says so."""
    for found in filters:
        if getattr(found, "attribute", None) != (key,):
            continue
        if isinstance(found, EqualTo | EqualNullSafe):
            return [found.value]
        if isinstance(found, IsNull):
            return [None]
        if isinstance(found, In):
            return list(dict.fromkeys(found.value))
    return None
