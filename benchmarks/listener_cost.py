"""What the listener costs a query: many short turns with it and without any capture at all.

python -m benchmarks.listener_cost [--quick] [--rounds 8] [--batches 10]
"""

from __future__ import annotations

import sys

from benchmarks.frame import Runs
from benchmarks.report import cell_table
from benchmarks.side_by_side import variant

PART = variant(
    "listener-cost",
    __doc__,
    {
        "ways": "disk,listener",
        "queries": "windowed",
        "providers": "hdfs",
        "partitions": "4",
        "delays": "20",
    },
    batches=("10", "6"),
    rounds=("6", "2"),
)

if __name__ == "__main__":
    print("\n".join(cell_table(Runs((PART.run(sys.argv[1:]),)))))
