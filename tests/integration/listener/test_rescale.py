"""A restored location split in another number of partitions, by Spark's own offline repartition."""

from __future__ import annotations

import pytest

from pyspark_checkpoint import preflight, restore
from pyspark_checkpoint.errors import RefusedError, SettingsError
from tests.integration.listener.lab import Lab
from tests.support.drivers.queries import HDFS, ROCKSDB_CHANGELOG


@pytest.mark.timeout(600)
def test_a_query_goes_on_with_more_and_with_fewer_partitions(lab: Lab) -> None:
    """Later rows are those of an undisturbed run; what was split can be captured and split again."""
    location, store = lab.directory / "location", str(lab.directory / "store")
    undisturbed = lab.run("aggregation", location, ROCKSDB_CHANGELOG)
    newest = max(undisturbed)
    (number,) = lab.capture(location, store, [8])
    more = lab.directory / "more"
    restore(store, str(more), at=number, clone=True, partitions=4, spark=lab.spark)
    assert {path.name for path in (more / "state" / "0").glob("[0-9]*")} == {"0", "1", "2", "3"}
    assert preflight(str(more), partitions=4) == ()
    later = [undisturbed[batch] for batch in range(9, newest + 1)]
    assert [rows for _, rows in sorted(lab.run("aggregation", more, HDFS).items())] == later

    again = str(lab.directory / "store-again")
    (number,) = lab.capture(more, again, [10])
    fewer = lab.directory / "fewer"
    restore(again, str(fewer), at=number, clone=True, partitions=1, spark=lab.spark)
    found = lab.run("aggregation", fewer, HDFS)
    assert [rows for _, rows in sorted(found.items())] == later[1:]
    end = max(int(path.name) for path in (fewer / "commits").glob("[0-9]*"))
    lab.capture(fewer, str(lab.directory / "store-fewer"), [end])
    restore(str(lab.directory / "store-fewer"), str(lab.directory / "last"), clone=True)
    assert preflight(str(lab.directory / "last"), partitions=1) == ()


def test_what_cannot_be_repartitioned_is_refused_before_anything_is_written(lab: Lab) -> None:
    """State that is not in RocksDB; and no partitions at all."""
    location, store = lab.directory / "location", str(lab.directory / "store")
    lab.run("deduplication", location, HDFS)
    lab.capture(location, store, [3])
    with pytest.raises(RefusedError, match="HDFS-backed"):
        restore(store, str(lab.directory / "fresh"), partitions=4, spark=lab.spark)
    with pytest.raises(SettingsError, match="partitions is 0"):
        restore(store, str(lab.directory / "fresh"), partitions=0, spark=lab.spark)
    assert not (lab.directory / "fresh").exists()
