"""What the listener costs a query: many short turns with it and without any capture at all.

python -m benchmarks.listener_cost [--quick] [--rounds 8] [--batches 10]
"""

from __future__ import annotations

from benchmarks.report import run_and_show
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
    run_and_show(PART)
