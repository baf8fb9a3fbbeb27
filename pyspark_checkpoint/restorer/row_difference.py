"""Which rows two tables do not share. Rows are compared as JSON, so that columns of any type can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pyspark_checkpoint.restorer.row_view import rendered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RowDifference:
    """Rows that were added, changed or dropped, as columns ``change, key, before, after, count``."""

    frame: DataFrame

    def counts(self) -> dict[str, int]:
        """How many rows of each kind of change."""
        found = self.frame.groupBy("change").agg(F.sum("count").alias("count")).collect()
        return {
            row["change"]: int(row["count"]) for row in sorted(found, key=lambda row: str(row["change"]))
        }

    def sample(self, limit: int) -> list[dict[str, Any]]:
        """The first ``limit`` of them, in the order of their keys."""
        ordered = self.frame.orderBy("key", "change").limit(max(0, limit))
        return [
            {name: row[name] for name in ("change", "before", "after", "count")}
            for row in ordered.collect()
        ]


def compare_rows(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> RowDifference:
    """Compare two tables by their keys; without keys, by how often each row is there."""
    if not keys:
        return RowDifference(_by_count(before, after))
    old = before.select(rendered(before, keys).alias("key"), rendered(before).alias("before"))
    new = after.select(rendered(after, keys).alias("key"), rendered(after).alias("after"))
    joined = old.join(new, "key", "full_outer").where(~F.col("before").eqNullSafe(F.col("after")))
    change = (
        F.when(F.col("before").isNull(), "added")
        .when(F.col("after").isNull(), "dropped")
        .otherwise("changed")
    )
    return RowDifference(
        joined.select(change.alias("change"), "key", "before", "after", F.lit(1).alias("count"))
    )


def _by_count(before: DataFrame, after: DataFrame) -> DataFrame:
    old = before.select(rendered(before).alias("key")).groupBy("key").agg(F.count("*").alias("then"))
    new = after.select(rendered(after).alias("key")).groupBy("key").agg(F.count("*").alias("now"))
    joined = old.join(new, "key", "full_outer").na.fill(0, ["then", "now"]).where("then <> now")
    grown = F.col("now") > F.col("then")
    return joined.select(
        F.when(grown, "added").otherwise("dropped").alias("change"),
        "key",
        F.when(~grown, F.col("key")).alias("before"),
        F.when(grown, F.col("key")).alias("after"),
        F.abs(F.col("now") - F.col("then")).alias("count"),
    )
