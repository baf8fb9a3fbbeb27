"""Whether sources still have what comes after a checkpoint: offsets, decisions, logs on a disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest, ConnectorCheckpoint
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.inputs.check import InputQuestion, check_inputs, refuse_lost
from pyspark_checkpoint.inputs.file_source import by_directory, files_read
from pyspark_checkpoint.inputs.kafka_source import decide_kafka
from pyspark_checkpoint.inputs.offset_reader import InputFinding, InputKind, InputState, read_offset
from pyspark_checkpoint.inputs.table_sources import decide_changes, decide_delta, decide_iceberg
from pyspark_checkpoint.outputs.iceberg_table import IcebergOutput
from pyspark_checkpoint.store.open import open_object_store
from tests.support.made_location import MadeLocation, capture

KEPT, LOST, UNKNOWN = InputState.KEPT, InputState.LOST, InputState.UNKNOWN
DELTA = '{"sourceVersion":1,"reservoirId":"r","reservoirVersion":%d,"index":%d,"isStartingVersion":%s}'


@pytest.mark.parametrize(
    ("text", "description", "kind"),
    [
        ('{"a":{"0":5,"1":7}}', "KafkaV2[Subscribe[a]]", InputKind.KAFKA),
        ("{}", "KafkaV2[Subscribe[a]]", InputKind.KAFKA),
        ("{}", "", InputKind.OTHER),
        (DELTA % (3, -1, "false"), "DeltaSource[file:/t]", InputKind.DELTA),
        ('{"version":1,"snapshot_id":9,"position":2,"scan_all_files":false}', "", InputKind.ICEBERG),
        ('{"logOffset":4}', "FileStreamSource[file:/in]", InputKind.FILE),
        ('{"checkpoint_id":4,"epoch":2,"table":"t"}', "", InputKind.CKPT_SINK),
        ("12", "RateStreamV2[rowsPerSecond=1]", InputKind.RATE),
        ('{"offset":1,"timestamp":2}', "RatePerMicroBatchStream[rowsPerBatch=1]", InputKind.RATE),
        ("12", "MemoryStream[value#1]", InputKind.MEMORY),
        ("12", "TextSocketV2[host: localhost, port: 1]", InputKind.SOCKET),
        ("12", "somebody's", InputKind.OTHER),
    ],
)
def test_an_offset_says_its_kind_of_source(text: str, description: str, kind: InputKind) -> None:
    """By its own form; a plain number by Spark's description."""
    assert read_offset(text, description).kind is kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"a"',
        "1e400",
        "true",
        '{"a":5}',
        '{"a":{"0":true}}',
        '{"a":{"-1":5}}',
        '{"a":{"0":99999999999999999999}}',
        '{"a":{"12345678901":5}}',
        '{"logOffset":"4"}',
        '{"reservoirVersion":true,"index":0}',
        "[" * 5_000,
    ],
)
def test_an_offset_that_no_source_writes_is_of_no_kind(text: str) -> None:
    """It comes from stored bytes, and whatever it is, reading it is not an error."""
    assert read_offset(text, "KafkaV2[Subscribe[a]]").kind in (InputKind.OTHER,)


@pytest.mark.parametrize(
    ("ranges", "state", "words"),
    [
        ({("a", 0): (0, 9), ("a", 1): (7, 7)}, KEPT, "all 2 partitions"),
        ({("a", 0): (5, 9), ("a", 1): (0, 7)}, KEPT, "all 2 partitions"),
        ({("a", 0): (6, 9), ("a", 1): (0, 7)}, LOST, "a-0 begins at 6, and 1 records from 5 are gone"),
        ({("a", 0): (0, 4), ("a", 1): (0, 7)}, LOST, "a-0 ends at 4, before 5"),
        ({("a", 0): (0, 9), ("a", 1): None}, LOST, "partition a-1 is not there"),
    ],
)
def test_kafka_has_what_begins_no_later_than_the_offset(
    ranges: dict[tuple[str, int], tuple[int, int] | None], state: InputState, words: str
) -> None:
    """Partition by partition: one that is short loses rows, however much the others have."""
    found = decide_kafka({("a", 0): 5, ("a", 1): 7}, ranges)
    assert found[0] is state
    assert words in found[1]


@pytest.mark.parametrize(
    ("version", "commits", "state"),
    [
        (3, range(5), KEPT),
        (5, range(5), KEPT),
        (6, range(5), LOST),
        (3, range(4, 9), LOST),
        (3, (0, 1, 2, 3, 5), LOST),
        (0, (), KEPT),
    ],
)
def test_a_delta_log_needs_every_commit_from_the_offset_on(
    version: int, commits: range, state: InputState
) -> None:
    """A source may stand one version after the newest: it has read all."""
    assert decide_delta(version, commits)[0] is state


def test_an_iceberg_source_needs_its_snapshot_among_the_ancestors() -> None:
    """One of another branch, or one that has expired, does not do."""
    assert decide_iceberg(7, (9, 7, 5))[0] is KEPT
    assert decide_iceberg(6, (9, 7, 5))[0] is LOST
    assert decide_iceberg(-1, ())[0] is KEPT


def test_changes_need_the_epoch_that_follows() -> None:
    """Which checkpoint holds it does not matter: claims and rollbacks repeat epochs."""
    assert decide_changes(4, 2, [(3, 1), (4, 2)])[0] is KEPT
    assert decide_changes(4, 2, [(7, 3), (8, 4)])[0] is KEPT
    assert decide_changes(4, 2, [(8, 4), (9, 5)]) == (LOST, "epochs 3 to 3 of the table are pruned")


def test_a_file_log_names_files_after_a_batch() -> None:
    """A compacted entry repeats the earlier ones, with the batch that read each."""
    lines = [{"path": f"file:///in/a%20b/{at}.json", "timestamp": 1, "batchId": at} for at in range(4)]
    entry = "\n".join(["v1", *map(json.dumps, lines)]).encode()
    found = files_read(entry, 1)
    assert by_directory(found) == {"file:///in/a b": ("2.json", "3.json")}


def made(**sources: tuple[str, str]) -> CheckpointManifest:
    """A manifest whose sources stand at these offsets, with these descriptions."""
    told = {
        name: ConnectorCheckpoint({"offset": text} if text else {}, 1, {"description": description})
        for name, (text, description) in sources.items()
    }
    return CheckpointManifest(checkpoint_id=1, epoch=1, source_names=tuple(told), source_offsets=told)


def asked(manifest: CheckpointManifest, tmp_path: Path, **options: str) -> tuple[InputFinding, ...]:
    """What is found about the sources of a manifest below a directory."""
    return check_inputs(manifest, InputQuestion(str(tmp_path), options))


def test_every_source_has_a_finding_in_the_order_of_the_plan(tmp_path: Path) -> None:
    """Also those that cannot be asked; Kafka without brokers is unknown, never kept."""
    found = asked(
        made(
            k=('{"a":{"0":5}}', "KafkaV2[Subscribe[a]]"),
            m=("3", "MemoryStream[x]"),
            n=("", ""),
            o=("?", ""),
        ),
        tmp_path,
    )
    assert [each.source for each in found] == ["k", "m", "n", "o"]
    assert [each.state for each in found] == [UNKNOWN, InputState.NOT_KEPT, UNKNOWN, UNKNOWN]
    assert "kafka.bootstrap.servers" in found[0].reason
    refuse_lost(found)


def test_a_delta_source_without_its_commits_is_lost_by_name(tmp_path: Path) -> None:
    """From the log on the disk: commits removed, then a data file that VACUUM took."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version in range(4):
        add = {"add": {"path": f"part%20{version}.parquet", "dataChange": True}}
        (log / f"{version:020d}.json").write_text(json.dumps({"commitInfo": {}}) + "\n" + json.dumps(add))
        (tmp_path / f"part {version}.parquet").write_text("x")
    manifest = made(d=(DELTA % (2, -1, "false"), f"DeltaSource[file:{tmp_path}]"))
    assert asked(manifest, tmp_path)[0].state is KEPT
    (tmp_path / "part 1.parquet").unlink()
    assert asked(manifest, tmp_path)[0].state is KEPT
    (tmp_path / "part 3.parquet").unlink()
    found = asked(manifest, tmp_path)
    assert found[0].state is LOST
    with pytest.raises(RefusedError, match=r"part 3\.parquet is gone"):
        refuse_lost(found)
    (log / f"{2:020d}.json").unlink()
    assert "commit 2 is gone" in asked(manifest, tmp_path)[0].reason
    snapshot = made(d=(DELTA % (3, 5, "true"), f"DeltaSource[file:{tmp_path}]"))
    assert asked(snapshot, tmp_path)[0].state is UNKNOWN


def test_a_place_that_a_record_names_elsewhere_is_not_opened(tmp_path: Path) -> None:
    """Who can write a manifest must not choose what is read with our credentials."""
    found = asked(made(d=(DELTA % (2, -1, "false"), "DeltaSource[s3://theirs/t]")), tmp_path)[0]
    assert found.state is UNKNOWN
    assert "another account or bucket" in found.reason


def test_options_may_be_for_one_source(tmp_path: Path) -> None:
    """Two tables have two places."""
    question = InputQuestion(str(tmp_path), {"location": "a", "s-1:location": "b", "kafka.x": "y"})
    assert question.options_of("s-0") == {"location": "a", "kafka.x": "y"}
    assert question.options_of("s-1") == {"location": "b", "kafka.x": "y"}


def test_an_iceberg_source_is_found_by_its_location(tmp_path: Path) -> None:
    """Spark describes it by an object's address; the user says where it is."""
    metadata = {
        "current-snapshot-id": 3,
        "snapshots": [
            {"snapshot-id": 3, "parent-snapshot-id": 2},
            {"snapshot-id": 2, "parent-snapshot-id": 1},
        ],
    }
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "v1.metadata.json").write_text(json.dumps(metadata))
    assert IcebergOutput("t", open_object_store(str(tmp_path))).ancestors() == (3, 2)
    text = '{"version":1,"snapshot_id":%d,"position":1,"scan_all_files":false}'
    assert asked(made(i=(text % 2, "")), tmp_path)[0].state is UNKNOWN
    assert asked(made(i=(text % 2, "")), tmp_path, location=str(tmp_path))[0].state is KEPT
    assert asked(made(i=(text % 1, "")), tmp_path, location=str(tmp_path))[0].state is LOST


def test_a_file_that_a_later_batch_read_must_still_be_there(tmp_path: Path) -> None:
    """The older checkpoint does not know the file; the newest one of the history does."""
    place, url, source = MadeLocation(tmp_path / "location"), str(tmp_path / "store"), tmp_path / "in"
    source.mkdir()
    for batch in range(3):
        file = source / f"{batch}.json"
        file.write_text("{}")
        place.commit(batch).plan(batch, json.dumps({"logOffset": batch}))
        log = place.path / "sources" / "0" / str(batch)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("v1\n" + json.dumps({"path": file.as_uri(), "timestamp": 1, "batchId": batch}))
        capture(place, url, batch)
    history = CheckpointStore.open(url)
    first = history.load_by_id(min(history.list_ids()))
    assert first is not None

    def found() -> InputFinding:
        return check_inputs(first, InputQuestion(str(tmp_path), history=history))[0]

    assert (found().state, found().kind) == (KEPT, InputKind.FILE)
    (source / "0.json").unlink()
    assert "the 2 files" in found().reason, "the file of its own batch is not read again"
    (source / "2.json").unlink()
    assert found().state is LOST
    assert asked(first, tmp_path)[0].state is UNKNOWN, "without the history nobody knows the files"
