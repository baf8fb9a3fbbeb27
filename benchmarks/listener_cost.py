"""What the listener costs a query: many short turns with it and without any capture at all.

python -m benchmarks.listener_cost [--quick] [--rounds 8] [--batches 10]
"""

from __future__ import annotations

import sys

from benchmarks.part import Part, run_part
from benchmarks.side_by_side import arguments_with, measure_all

_OTHER = {
    "ways": ("disk,listener", "disk,listener"),
    "queries": ("windowed", "windowed"),
    "providers": ("hdfs", "hdfs"),
    "partitions": ("4", "4"),
    "delays": ("20", "20"),
    "batches": ("10", "6"),
    "rounds": ("6", "2"),
}
ARGUMENTS = arguments_with(_OTHER)
PART = Part(
    "listener-cost", (__doc__ or "").partition("\n")[0], ARGUMENTS, measure_all, "benchmarks.listener_cost"
)

if __name__ == "__main__":
    run_part(PART, sys.argv[1:])
