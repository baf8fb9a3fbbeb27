"""Where sources stand: names, order, and a comparison source by source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_codec import decode_manifest, encode_manifest
from pyspark_checkpoint.spark_files.logs import OffsetLog
from pyspark_checkpoint.spark_files.positions import SourcePositions


def log(*offsets: str | None, names: tuple[str, ...] = ()) -> OffsetLog:
    return OffsetLog(0, 0, {}, offsets, names)


def stored(positions: SourcePositions, epoch: int = 4) -> SourcePositions:
    """The positions as they come back from the bytes of a manifest."""
    manifest = replace(
        CheckpointManifest.new(1, epoch),
        source_names=positions.names,
        source_offsets=positions.connectors(epoch),
    )
    return SourcePositions.of_manifest(decode_manifest(encode_manifest(manifest), "m"))


def test_sources_have_sparks_names_or_their_places_in_the_plan() -> None:
    assert SourcePositions.of_log(log("1", None)).names == ("source-0", "source-1")
    assert SourcePositions.of_log(log("1", "2", names=("b", "a"))).names == ("b", "a")


def test_twelve_sources_keep_their_order_in_the_stored_bytes() -> None:
    """Members of stored JSON are sorted by name, and so source-10 comes before source-2 there."""
    positions = SourcePositions.of_log(log(*(str(at) for at in range(12))))
    found = stored(positions)
    assert found.names == tuple(f"source-{at}" for at in range(12))
    assert found == positions
    assert [found.offsets[name]["offset"] for name in found.names] == [str(at) for at in range(12)]


def test_sources_that_changed_places_stand_elsewhere() -> None:
    """Their sorted offsets are equal, and each would go on where the other one is."""
    assert SourcePositions.of_log(log("1", "2")) != SourcePositions.of_log(log("2", "1"))


def test_named_sources_are_compared_by_name_in_whatever_order_the_plan_has_them() -> None:
    one = SourcePositions.of_log(log("1", "2", names=("a", "b")))
    other = SourcePositions.of_log(log("2", "1", names=("b", "a")))
    assert one == other
    assert hash(one) == hash(other)
    assert one != SourcePositions.of_log(log("1", "3", names=("a", "b")))


def test_a_source_that_has_not_begun_is_one_of_the_plan() -> None:
    waiting = SourcePositions.of_log(log("1", None))
    assert waiting != SourcePositions.of_log(log("1"))
    assert stored(waiting) == waiting
    assert stored(waiting).offsets == {"source-0": {"offset": "1"}, "source-1": {}}
    assert waiting
    assert not SourcePositions.of_log(log(None))
    assert not SourcePositions()


def test_a_log_that_has_a_source_twice_is_damage() -> None:
    with pytest.raises(FormatError, match="twice"):
        SourcePositions.of_log(log("1", "2", names=("a", "a")))
