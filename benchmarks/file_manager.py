"""Spark's own checkpoint: local disk, S3 with Spark's manager, with the tuned one, and with ours.

The turns and the pace are those of the side by side; the query is the least that has state, a keyed sum
(100,000 rows and keys a batch, rows that go nowhere), so that the managers weigh as much as they can.

    python -m benchmarks.file_manager [--quick] [--delays 20] [--partitions 4] [--providers hdfs] ...
"""

from __future__ import annotations

from benchmarks.report import run_and_show
from benchmarks.side_by_side import variant

PART = variant("file-manager", __doc__, {"ways": "alone,stock,tuned,ours", "queries": "total"})

if __name__ == "__main__":
    run_and_show(PART)
