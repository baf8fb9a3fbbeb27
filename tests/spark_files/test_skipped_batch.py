"""Spark's own trap is told from what looks like it; tests/integration/outputs has the real one."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.spark_files.listing import sort_listing
from pyspark_checkpoint.spark_files.skipped_batch import find_skipped_batch
from pyspark_checkpoint.spark_files.versions import FileFacts

UID = "8232b143-ad8c-4d0b-b82e-7563efd350b4"
FORMAT_2 = ("metadata", "offsets/0", "commits/0", "offsets/1", f"state/0/0/2_{UID}.changelog")
FORMAT_1 = (*FORMAT_2[:-1], "state/0/0/2.changelog")


@pytest.mark.parametrize(
    ("paths", "output", "runs", "found"),
    [
        (FORMAT_2, 1, False, 1),
        (FORMAT_2, 2, False, 1),
        (("offsets/0", f"state/0/0/1_{UID}.zip"), 0, False, 0),
        (FORMAT_2, 0, False, None),
        (FORMAT_2, None, False, None),
        (FORMAT_2, 1, True, None),
        (FORMAT_1, 1, False, None),
        (FORMAT_1[:-1], 1, False, None),
        ((*FORMAT_2, "commits/1"), 1, False, None),
        ((), 1, False, None),
    ],
)
def test_the_trap_is_a_batch_that_was_planned_written_and_not_committed(
    paths: tuple[str, ...], output: int | None, *, runs: bool, found: int | None
) -> None:
    """With state of format 2, and a sink that does not run what it drops."""
    listing = sort_listing({path: FileFacts(1, 1) for path in paths})
    assert find_skipped_batch(listing, output, runs_skipped_batches=runs) == found
