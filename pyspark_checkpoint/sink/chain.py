"""Chains of artifacts as rows: reading a partition, and compacting its chain. No Spark here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest_parts import TableMode
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact
from pyspark_checkpoint.table.codec import decode_rows
from pyspark_checkpoint.table.compaction import CompactionPlan, Link, parse_level, plan_compaction
from pyspark_checkpoint.table.conform import conform
from pyspark_checkpoint.table.info import TableInfo
from pyspark_checkpoint.table.merge import apply_deltas, delta_schema, merge_deltas
from pyspark_checkpoint.table.schema import DELETED_COLUMN
from pyspark_checkpoint.table.vnode import sources_of, vnodes_of


@dataclass(frozen=True, slots=True)
class Chain:
    """The artifacts of one partition, in the order to apply, and whose they are."""

    partition: int
    refs: tuple[ArtifactRef, ...]

    def before(self, epoch: int) -> Chain:
        """The chain without what belongs to ``epoch``."""
        return Chain(self.partition, tuple(ref for ref in self.refs if ref.epoch < epoch))


def plan_chain_compaction(
    chain: Chain, table: TableInfo, epoch: int, max_deltas: int
) -> CompactionPlan | None:
    """Decide what of a chain is rewritten while ``epoch`` is written; None if nothing is."""
    return plan_compaction(
        [
            Link(ref.size_bytes, ref.is_delta, parse_level(ref.name), ref.decoded_bytes)
            for ref in chain.refs
        ],
        keyed=table.mode is TableMode.UPSERT,
        partition=chain.partition,
        epoch=epoch,
        max_deltas=max_deltas,
    )


class ChainReader:
    """Reads chains of one table."""

    def __init__(self, reader: ArtifactReader, table: TableInfo) -> None:
        self._reader = reader
        self._table = table
        self._schema = table.schema.arrow()

    @property
    def table(self) -> TableInfo:
        """The table whose chains are read."""
        return self._table

    def parts(self, *chains: Chain) -> list[pa.Table]:
        """The rows of each artifact, as they were written."""
        return [part for parts in self._parts_of(chains) for part in parts]

    def rows(self, chain: Chain) -> pa.Table:
        """The rows of the partition, as the whole chain gives them."""
        return next(self.rows_of([chain]))

    def rows_of(self, chains: Sequence[Chain]) -> Iterator[pa.Table]:
        """The rows of several partitions, one after the other; their stored bytes are read together."""
        return (self._applied(parts) for parts in self._parts_of(chains))

    def _parts_of(self, chains: Sequence[Chain]) -> Iterator[list[pa.Table]]:
        wanted = [
            WantedArtifact(ref, self._table.operator, chain.partition)
            for chain in chains
            for ref in chain.refs
        ]
        stored = zip(wanted, self._reader.read_many(wanted), strict=True)
        for chain in chains:
            yield [
                decode_rows(data, want.ref.path or "an inline artifact", want.ref.decoded_bytes)
                for want, data in islice(stored, len(chain.refs))
            ]

    def _applied(self, parts: Sequence[pa.Table]) -> pa.Table:
        if self._table.mode is not TableMode.UPSERT:
            tables = [conform(part, self._schema) for part in parts]
            return pa.concat_tables(tables) if tables else self._schema.empty_table()
        return apply_deltas(None, parts, self._table.keys, self._schema)

    def merged(self, chain: Chain, plan: CompactionPlan) -> pa.Table:
        """The rows that take the place of a part of the chain: all rows, or one delta for several."""
        part = Chain(chain.partition, chain.refs[plan.first : plan.end])
        if plan.level is None or self._table.mode is not TableMode.UPSERT:
            return self.rows(part)
        deltas = self.parts(part)
        deletes = any(DELETED_COLUMN in delta.column_names for delta in deltas)
        return merge_deltas(deltas, self._table.keys, delta_schema(self._schema, deletes=deletes))

    def repartitioned(self, chains: Sequence[Chain], partition: int, old_partitions: int) -> pa.Table:
        """The rows of ``partition`` of a table that had another number of partitions before."""
        table = self._table
        wanted = sources_of(partition, table.partitions, old_partitions)
        parts = [self.rows(chain) for chain in chains if chain.partition in wanted]
        rows = pa.concat_tables(parts) if parts else self._schema.empty_table()
        return rows_of_vnodes(
            rows, self._table, range(partition, self._table.vnodes, self._table.partitions)
        )


def rows_of_vnodes(rows: pa.Table, table: TableInfo, wanted: Sequence[int]) -> pa.Table:
    """Those of ``rows`` whose keys are of the vnodes ``wanted``."""
    if not rows.num_rows:
        return rows
    found = vnodes_of([rows.column(key) for key in table.keys], table.vnodes)
    return rows.filter(pa.array(np.isin(found, np.asarray(wanted, dtype=np.int64))))
