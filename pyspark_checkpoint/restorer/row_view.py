"""Some rows of a frame, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F

from pyspark_checkpoint.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class RowView:
    """Rows that were chosen of a frame."""

    frame: DataFrame

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame.columns)

    def count(self) -> int:
        """How many rows there are."""
        return self.frame.count()

    def collect(self, limit: int) -> list[dict[str, Any]]:
        """At most ``limit`` rows, all if that is 0, as JSON has them."""
        wanted = self.frame.limit(limit) if limit > 0 else self.frame
        texts = wanted.select(rendered(wanted).alias("row")).collect()
        return [orjson.loads(row["row"]) for row in texts]

    def write(self, path: str, file_format: str) -> None:
        """Write all rows."""
        self.frame.write.format(file_format).save(path)


def choose_rows(frame: DataFrame, where: str | None, columns: Sequence[str]) -> RowView:
    """The rows for which ``where`` is true, and of them these columns, all if none is named."""
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
    return RowView(chosen)


def rendered(frame: DataFrame, columns: Sequence[str] | None = None) -> Column:
    """A row, or these columns of it, as one text of JSON."""
    names = frame.columns if columns is None else columns
    wanted = [F.col(f"`{name.replace('`', '``')}`") for name in names]
    return F.to_json(F.struct(*wanted), {"ignoreNullFields": "false"})
