"""Spark's own checkpoint: local disk, S3 with Spark's manager, with the tuned one, and with ours.

The turns and the pace are those of the side by side; the query is the least that has state, a keyed sum
(100,000 rows and keys a batch, rows that go nowhere), so that the managers weigh as much as they can.

    python -m benchmarks.file_manager [--quick] [--delays 20] [--partitions 4] [--providers hdfs] ...
"""

from __future__ import annotations

import sys

from benchmarks.aims import FILE_MANAGER, judge_file_manager
from benchmarks.part import Part, run_part
from benchmarks.records import Cell, Run, Runs
from benchmarks.report import aim_table
from benchmarks.side_by_side import arguments_with, measure_all
from benchmarks.tables import compared, manager_table

WAYS = "alone,stock,tuned,ours"
ARGUMENTS = arguments_with({"ways": (WAYS, WAYS), "queries": ("total", "total")})
PART = Part(
    FILE_MANAGER, (__doc__ or "").partition("\n")[0], ARGUMENTS, measure_all, "benchmarks.file_manager"
)


def printed(run: Run) -> list[str]:
    """What whoever ran it wants to know: every way, its ratios, and the aims."""
    cells = [row for row in run.rows if isinstance(row, Cell)]
    aims = aim_table(judge_file_manager(Runs((run,))))
    return [*compared(cells), "", *manager_table(cells), "", *aims]


if __name__ == "__main__":
    print("\n".join(printed(run_part(PART, sys.argv[1:]))))
