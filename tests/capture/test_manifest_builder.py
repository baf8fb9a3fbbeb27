"""One location, two producers: what the sink and the listener store of one batch is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from tests.support.made_stream import MadeStream
from tests.support.producers import captured_at, shared_fields


def captured(stream: MadeStream, url: str, **facts: Any) -> CheckpointManifest:
    """What the listener stores of the newest batch of a location."""
    info = QueryInfo(id=stream.query_id, checkpoint_location=str(stream.location), spark_version="4.3.0")
    told = {"sink": f"ckpt-sink {stream.table}", "output_mode": "Update", **facts}
    return captured_at(url, QueryFacts(info, "", **told))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("file_source", [False, True])
def test_both_producers_say_the_same_of_one_batch(
    tmp_path: Path, version: int, *, file_source: bool
) -> None:
    """Every field that both of them have, the pipeline hash among them."""
    stream = MadeStream(tmp_path, version=version, file_source=file_source)
    stream.run(2)
    by_sink = stream.batch()
    by_listener = captured(stream, str(tmp_path / "store"))
    assert shared_fields(by_sink) == shared_fields(by_listener)
    assert by_sink.batch_id == 2
    assert by_sink.pipeline_hash is not None
    assert by_sink.source_names == ("source-0",)
    assert by_sink.sinks[0].target == str(stream.table)
    assert (by_sink.next_watermark_ms, by_listener.next_watermark_ms) == (None, 2000)
    state, after = state_refs(by_sink), state_refs(by_listener)
    assert {path: ref.sha256 for path, ref in after.items()}.items() <= {
        path: ref.sha256 for path, ref in state.items()
    }.items()
    logs = {ref.name: ref.sha256 for ref in by_listener.files if ref.name != "commits/2"}
    assert logs.items() <= {ref.name: ref.sha256 for ref in by_sink.files}.items()


def test_the_pipeline_hash_is_of_the_query_and_not_of_its_place_or_its_process(tmp_path: Path) -> None:
    stream = MadeStream(tmp_path)
    stream.run(1)
    hashes = {
        name: captured(stream, str(tmp_path / name), sink=sink).pipeline_hash
        for name, sink in {
            "one": "org.x.KafkaTable@519aceac",
            "two": "org.x.KafkaTable@6ffab045",
            "file": "FileSink[/a]",
            "moved": "FileSink[/b]",
        }.items()
    }
    assert hashes["one"] == hashes["two"]
    assert hashes["file"] == hashes["moved"]
    assert hashes["one"] != hashes["file"]
    told = captured(stream, str(tmp_path / "told"), sink="FileSink[/a]", sources=("KafkaV2[x]",))
    assert told.pipeline_hash == hashes["file"], "what is told after the first batch changes nothing"
    assert (
        captured(stream, str(tmp_path / "c"), sink="FileSink[/a]", output_mode="complete").pipeline_hash
        != (hashes["file"])
    )


def test_a_table_that_was_taken_over_has_batches_beside_its_epochs(tmp_path: Path) -> None:
    """Epochs go on where another query's ended; the batch is the location's own."""
    stream = MadeStream(tmp_path)
    stream.run(3)
    heir = MadeStream(
        tmp_path / "heir", query_id="11111111-2222-3333-4444-555555555555", options={"takeOver": "true"}
    )
    heir.table = stream.table
    heir.start()
    made = [heir.batch() for _ in range(2)]
    assert [(manifest.epoch, manifest.batch_id) for manifest in made] == [(3, 0), (4, 1)]
    assert made[1].sinks[0].batch_id == 1
    assert shared_fields(made[1])["batch_id"] == captured(heir, str(tmp_path / "store")).batch_id
    stored = json.loads(max(stream.table.glob("manifests/manifest-*[0-9].json")).read_bytes())
    assert (stored["epoch"], stored["batch_id"]) == (4, 1)
