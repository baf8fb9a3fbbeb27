"""A real query whose batch both producers store: the sink while it runs, the listener from its location."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import QueryInfo
from tests.integration.coordinated.lab import SHAPES, Lab
from tests.support.drivers.queries import HDFS, ROCKSDB_V2
from tests.support.producers import captured_at, shared_fields


@pytest.mark.parametrize(
    ("query", "confs"),
    [
        pytest.param("aggregation", HDFS, id="aggregation-hdfs"),
        pytest.param("join", ROCKSDB_V2, id="join-rocksdb-changelog-v2"),
    ],
)
def test_sink_and_listener_store_the_same_of_one_batch(lab: Lab, query: str, confs: dict[str, str]) -> None:
    """Every field that both have, as the jar tells it and as Spark's progress tells it."""
    lab.put(0, 1, 2)
    running = lab.start(query, "table", confs)
    running.awaitTermination()
    by_sink = lab.history("table").load_latest()
    assert by_sink is not None
    progress = running.lastProgress
    assert progress is not None
    info = QueryInfo(id=str(running.id), checkpoint_location=by_sink.query.checkpoint_location)
    _, mode = SHAPES[query]
    facts = QueryFacts(info, "", (), progress["sink"]["description"], mode.capitalize())
    by_listener = captured_at(lab.path("captured"), facts)
    assert shared_fields(by_listener) == shared_fields(by_sink)
    assert by_sink.pipeline_hash is not None
    assert by_sink.sinks[0].kind == "ckpt-sink"
    assert by_sink.sinks[0].target == lab.path("table")
    assert by_sink.source_offsets["source-0"].offsets
