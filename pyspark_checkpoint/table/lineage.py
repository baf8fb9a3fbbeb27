"""Which rows an epoch follows on: by this a stream of changes knows that the table is still what it read.

Numbers alone do not say so. After a rollback the same epochs come again, with other rows, and once the
rollback is pruned nothing else tells the two apart. So each epoch of a table has a digest over its rows and
over all epochs before it, and records the digest of the epoch that it follows on.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import FeedPosition, Lineage

_DIGEST_LETTERS = 32


def find_lineage(manifest: CheckpointManifest) -> Lineage | None:
    """The lineage of the table of a manifest; None for a tombstone."""
    return None if manifest.table is None else manifest.table.lineage


def next_lineage(
    parent: Lineage | None,
    checkpoint_id: int,
    epoch: int,
    rows: Sequence[tuple[int, str]],
    *,
    replaces: bool,
) -> Lineage:
    """The lineage of an epoch with these ``rows``, which are partitions and digests, on top of ``parent``.

    The parent's epoch again takes its place. If its rows are the same, so is its lineage.
    """
    repeats = parent is not None and parent.position.epoch == epoch
    before = None if parent is None else parent.before if repeats else parent.position
    content = [before.lineage if before is not None else "", epoch, replaces, sorted(rows)]
    digest = sha256_hex(orjson.dumps(content))[:_DIGEST_LETTERS]
    if parent is not None and repeats and parent.position.lineage == digest:
        return parent
    return Lineage(FeedPosition(checkpoint_id, epoch, digest), before)
