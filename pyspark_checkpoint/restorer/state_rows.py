"""The rows of a checkpoint as Spark reads them: those of a table, or those of an operator's state.

State is read by Spark's own reader, from a clone that is restored into a temporary directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer import api as operations
from pyspark_checkpoint.spark_files.state_artifacts import STATE_KIND, parse_operator_key
from pyspark_checkpoint.table.info import TableInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RowSource:
    """Reads rows of checkpoints of one history. What is restored for it is gone after the block.

    ``operator`` is the name or number of an operator whose state is wanted; without it, a table's rows,
    or the state of the only operator. ``state`` are options of Spark's ``statestore`` reader.
    """

    def __init__(
        self,
        spark: SparkSession,
        history: CheckpointStore,
        options: Mapping[str, str],
        *,
        operator: str | None = None,
        state: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._history = history
        self._options = dict(options)
        self._operator = operator
        self._state = dict(state or {})
        self._directory = tempfile.TemporaryDirectory(prefix="ckpt-rows-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()

    def rows(self, manifest: CheckpointManifest) -> DataFrame:
        """The rows at a checkpoint."""
        if is_table(manifest, self._operator):
            reader = self._spark.read.format("ckpt-sink").options(**self._options)
            return reader.option("checkpointId", manifest.checkpoint_id).load(self._url())
        operator = choose_operator(manifest, self._operator)
        location = Path(self._directory.name) / str(manifest.checkpoint_id)
        if not location.exists():
            operations.restore(
                self._url(),
                str(location),
                manifest.checkpoint_id,
                clone=True,
                options=self._options,
                location_options={},
            )
        reader = self._spark.read.format("statestore").option("operatorId", parse_operator_key(operator))
        return reader.options(**self._state).load(location.as_uri())

    def keys(self, manifest: CheckpointManifest) -> Sequence[str]:
        """The columns that say which row a row is; none if equal rows are one row, however often."""
        if is_table(manifest, self._operator):
            return TableInfo.of_manifest(manifest).keys
        return ("key",)

    def _url(self) -> str:
        return self._history.store.url


def check_rows(manifest: CheckpointManifest, operator: str | None) -> None:
    """Refuse a checkpoint that has no such rows, before a Spark is started for them. Pure."""
    if not is_table(manifest, operator):
        choose_operator(manifest, operator)


def is_table(manifest: CheckpointManifest, operator: str | None) -> bool:
    """Whether the rows of a table are meant, and not those of an operator's state."""
    return manifest.table is not None and operator is None


def choose_operator(manifest: CheckpointManifest, typed: str | None) -> str:
    """The operator that was typed, by name or number; the only one if nothing was. Pure."""
    names = sorted(name for name, entry in manifest.operators.items() if entry.kind == STATE_KIND)
    if typed is None and len(names) == 1:
        return names[0]
    for name in names:
        if typed is not None and typed in (name, str(parse_operator_key(name))):
            return name
    number = manifest.checkpoint_id
    if not names:
        raise RefusedError(
            f"checkpoint {number} has no operator state", hint="ckpt show says what it holds"
        )
    raise RefusedError(
        f"checkpoint {number} has state of several operators"
        if typed is None
        else f"checkpoint {number} has no operator {typed!r}",
        hint=f"give --operator: {', '.join(names)}",
    )
