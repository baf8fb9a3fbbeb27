"""The batch at which Spark itself stands still for ever: planned, in its output, and not committed. Pure.

The driver died after the sink's commit and before ``commits/N``. At the next start Spark plans N again, and
the sink drops it without running its plan. State of format version 2 then gets no id for N, and every
start ends with "CheckpointInfo length: 0". With format version 1, or without state, the query goes on; so
it does with a sink that runs the plan of a batch that it drops.
"""

from __future__ import annotations

from pyspark_checkpoint.spark_files.listing import CheckpointListing, has_format_2


def find_skipped_batch(
    listing: CheckpointListing, output_batch_id: int | None, *, runs_skipped_batches: bool
) -> int | None:
    """The batch N that Spark can neither run nor leave out; None if it goes on from the location.

    The cure: roll the output back to N - 1. Then Spark runs N again, with the same offsets.

    Args:
        listing: What is in the checkpoint location.
        output_batch_id: The newest batch that the output has of the query, None if it has none.
        runs_skipped_batches: Whether Spark runs the plan of a batch that this output drops.
    """
    batch_id = max(listing.offsets, default=-1)
    is_done = batch_id < 0 or batch_id in listing.commits
    is_dropped = output_batch_id is not None and output_batch_id >= batch_id and not runs_skipped_batches
    return None if is_done or not is_dropped or not has_format_2(listing.facts) else batch_id
