"""Rows of a checkpoint as Spark reads them, chosen and compared: those of a table, or of operator state.

State is read by Spark's own reader, from a clone that is restored into a temporary directory. Nothing here
imports Spark: what is asked for is checked before one is started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from pyspark_checkpoint.errors import NoCheckpoint, SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.spark.local_session import local_session
from pyspark_checkpoint.spark_files.state_artifacts import STATE_KIND, parse_operator_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession


def check_rows(manifest: CheckpointManifest, operator: str | None) -> None:
    """Refuse a checkpoint that has no such rows, before a Spark is started for them. Pure."""
    if not _is_table(manifest, operator):
        _choose_operator(manifest, operator)


def _is_table(manifest: CheckpointManifest, operator: str | None) -> bool:
    """Whether the rows of a table are meant, and not those of an operator's state."""
    return manifest.table is not None and operator is None


def _choose_operator(manifest: CheckpointManifest, typed: str | None) -> str:
    """The operator that was typed, by name or number; the only one if nothing was. Pure."""
    names = sorted(name for name, entry in manifest.operators.items() if entry.kind == STATE_KIND)
    if typed is None and len(names) == 1:
        return names[0]
    for name in names:
        if typed is not None and typed in (name, str(parse_operator_key(name))):
            return name
    checkpoint = f"checkpoint {manifest.checkpoint_id}"
    if not names:
        raise NoCheckpoint(f"{checkpoint} has no operator state", hint="ckpt show says what it holds")
    problem = "has state of several operators" if typed is None else f"has no operator {typed!r}"
    raise NoCheckpoint(f"{checkpoint} {problem}", hint=f"give --operator: {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class RowSource:
    """Reads rows of checkpoints of one history.

    Attributes:
        spark: The session that reads.
        history: Where the checkpoints are.
        options: Options of its store.
        directory: State is restored into it.
        operator: Name or number of an operator whose state is wanted; without it, a table's rows, or the
            state of the only operator.
        state: Options of Spark's ``statestore`` reader.
    """

    spark: SparkSession
    history: CheckpointStore
    options: Mapping[str, str] = field(repr=False)
    directory: Path
    operator: str | None
    state: Mapping[str, str]

    def rows(self, manifest: CheckpointManifest) -> DataFrame:
        """The rows at a checkpoint."""
        number, url = manifest.checkpoint_id, self.history.store.url
        if _is_table(manifest, self.operator):
            reader = self.spark.read.format("ckpt-sink").options(**self.options)
            return reader.option("checkpointId", number).load(url)
        operator = _choose_operator(manifest, self.operator)
        location = self.directory / str(number)
        if not location.exists():
            restore(url, str(location), number, clone=True, options=self.options, location_options={})
        reader = self.spark.read.format("statestore").option("operatorId", parse_operator_key(operator))
        return reader.options(**self.state).load(location.as_uri())

    def keys(self, manifest: CheckpointManifest) -> Sequence[str]:
        """The columns that say which row a row is; none if equal rows are one row, however often."""
        table = manifest.table if self.operator is None else None
        return ("key",) if table is None else table.keys


@contextmanager
def open_rows(
    history: CheckpointStore, options: Mapping[str, str], operator: str | None, state: Mapping[str, str]
) -> Iterator[RowSource]:
    """Start a Spark that reads rows; what is restored for it is gone after the block."""
    with local_session() as spark, tempfile.TemporaryDirectory(prefix="ckpt-rows-") as directory:
        yield RowSource(spark, history, options, Path(directory), operator, state)


def collect_rows(frame: DataFrame, limit: int) -> list[dict[str, Any]]:
    """At most ``limit`` rows, all if that is 0, as JSON has them."""
    wanted = frame.limit(limit) if limit > 0 else frame
    texts = wanted.selectExpr(f"{_json(wanted.columns)} AS row").collect()
    return [orjson.loads(row["row"]) for row in texts]


def choose_rows(frame: DataFrame, where: str | None, columns: Sequence[str]) -> DataFrame:
    """The rows for which ``where`` is true, and of them these columns, all if none is named."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - there is a Spark now

    try:
        chosen = frame.where(where) if where else frame
        chosen = chosen.select(*columns) if columns else chosen
        _ = chosen.schema
    except (AnalysisException, ParseException) as error:
        told = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise SettingsError(
            f"Spark does not understand the condition or the columns: {told}",
            hint=f"the columns are: {', '.join(frame.columns)}",
        ) from None
    return chosen


@dataclass(frozen=True)
class RowDifference:
    """Rows that were added, changed or dropped, as columns ``change, key, before, after, count``."""

    frame: DataFrame

    def counts(self) -> dict[str, int]:
        """How many rows of each kind of change."""
        found = self.frame.groupBy("change").sum("count").orderBy("change").collect()
        return {change: int(count) for change, count in found}

    def sample(self, limit: int) -> list[dict[str, Any]]:
        """The first ``limit`` of them, in the order of their keys."""
        ordered = self.frame.orderBy("key", "change").limit(max(0, limit))
        return [row.asDict() for row in ordered.select("change", "before", "after", "count").collect()]


def compare_rows(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> RowDifference:
    """Compare two tables by their keys; without keys, by how often each row is there.

    Rows are compared as JSON, so that columns of any type can be.
    """
    if not keys:
        return RowDifference(_compare_counts(before, after))
    key = f"{_json(keys)} AS key"
    old = before.selectExpr(key, f"{_json(before.columns)} AS before")
    new = after.selectExpr(key, f"{_json(after.columns)} AS after")
    change = "CASE WHEN before IS NULL THEN 'added' WHEN after IS NULL THEN 'dropped' ELSE 'changed' END"
    joined = old.join(new, "key", "full_outer").where("NOT before <=> after")
    return RowDifference(joined.selectExpr(f"{change} AS change", "key", "before", "after", "1 AS count"))


def _compare_counts(before: DataFrame, after: DataFrame) -> DataFrame:
    def counted(frame: DataFrame, name: str) -> DataFrame:
        rows = frame.selectExpr(f"{_json(frame.columns)} AS key")
        return rows.groupBy("key").count().withColumnRenamed("count", name)

    joined = counted(before, "old").join(counted(after, "new"), "key", "full_outer")
    return (
        joined.na.fill(0, ["old", "new"])
        .where("old <> new")
        .selectExpr(
            "IF(new > old, 'added', 'dropped') AS change",
            "key",
            "IF(new > old, NULL, key) AS before",
            "IF(new > old, key, NULL) AS after",
            "ABS(new - old) AS count",
        )
    )


def _json(columns: Sequence[str]) -> str:
    """SQL for these columns of a row as one text of JSON."""
    names = ", ".join(f"`{name.replace('`', '``')}`" for name in columns)
    return f"to_json(struct({names}), map('ignoreNullFields', 'false'))"
