"""A restore asks files, Delta and Iceberg first. Made logs here; real tables in tests/ecosystem."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_checkpoint import restore
from pyspark_checkpoint.errors import CheckpointError, Diverged, FormatError, SettingsError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.outputs.iceberg_table import EPOCH_ID, QUERY_ID, IcebergOutput
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.cli.conftest import ckpt
from tests.cli.kit import Shell
from tests.support.made_location import MadeLocation, capture

__all__ = ["ckpt"]
OURS, OTHERS = "query-1", "query-2"


def wrote_files(path: Path, *names: str) -> None:
    """A log of Spark's file sink with these entries, and what else lies there."""
    log = path / "_spark_metadata"
    log.mkdir(parents=True, exist_ok=True)
    for name in names:
        (log / name).write_text("v1\n")


def wrote_delta(path: Path, *transactions: tuple[str, int]) -> None:
    """A Delta log with one commit for each transaction."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for version, (query_id, batch_id) in enumerate(transactions):
        lines: list[object] = [{"commitInfo": {}}, {"txn": {"appId": query_id, "version": batch_id}}]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def captured_to(tmp_path: Path, url: str, *targets: str) -> str:
    """A query whose batch N, and what its history knows of it, went to Delta table N of these; its id."""
    location = MadeLocation(tmp_path / "location")
    for batch_id, target in enumerate(targets):
        location.commit(batch_id)
        capture(location, url, batch_id, sink=f"DeltaSink[{tmp_path / target}]")
    return location.query_id


def test_the_target_that_the_query_has_had_since_is_asked_too(tmp_path: Path, url: str) -> None:
    """It was moved, or the query writes elsewhere: that one is ahead, whatever the checkpoint names.

    Also after a rollback of the history, which repeats what the checkpoint names.
    """
    query = captured_to(tmp_path, url, "old", "old", "new")
    wrote_delta(tmp_path / "old", (query, 0))
    wrote_delta(tmp_path / "new", (query, 0), (query, 1), (query, 2))
    history = CheckpointStore.open(url)
    chosen = max(number for number, epoch in history.list() if epoch == 1)
    for _ in range(2):
        with pytest.raises(Diverged, match=r"new has batch 2 of this query.*drop batch 2"):
            restore(url, str(tmp_path / "fresh"), epoch=1)
        history.rollback(chosen)
    wrote_delta(tmp_path / "old", (query, 0), (query, 1), (query, 2))
    with pytest.raises(Diverged, match="old has batch 2"):
        restore(url, str(tmp_path / "fresh"), epoch=1)


def test_a_table_that_knows_nothing_of_the_query_is_said(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has made it anew, or the query wrote elsewhere: the rows before are not in it."""
    captured_to(tmp_path, url, "table", "table")
    wrote_delta(tmp_path / "table", (OTHERS, 7))
    with caplog.at_level(logging.WARNING):
        restore(url, str(tmp_path / "fresh"), sink="rollback")
    assert "has no batch of this query, which would go on after batch 1" in caplog.text


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        ((), None),
        (("0", "1", ".1.crc", "2"), 2),
        (("9.compact", "10", "11"), 11),
        (("0", "odd", "1.tmp"), 0),
    ],
)
def test_a_file_sink_is_at_the_newest_entry_of_its_log(
    names: tuple[str, ...], newest: int | None, tmp_path: Path
) -> None:
    """Whichever query wrote it: the sink compares numbers alone."""
    wrote_files(tmp_path, *names)
    found = FileSinkOutput("out", open_object_store(str(tmp_path))).position(OURS)
    assert (found.batch_id, found.is_known) == (newest, True)


def test_a_delta_table_is_asked_by_query(tmp_path: Path) -> None:
    """The newest transaction of this query counts, not of another one."""
    wrote_delta(tmp_path, (OURS, 0), (OURS, 1), (OTHERS, 7))
    output = DeltaOutput("out", open_object_store(str(tmp_path)))
    assert (output.position(OURS).batch_id, output.position(OURS).version) == (1, "2")
    assert output.position(OTHERS).batch_id == 7
    assert output.position("nobody").batch_id is None


def test_transactions_below_a_checkpoint_of_the_log_are_found(tmp_path: Path) -> None:
    """Commit files below it may be gone."""
    wrote_delta(tmp_path, *((OTHERS, batch) for batch in range(12)))
    log = tmp_path / "_delta_log"
    rows = pa.table({"txn": [None, {"appId": OURS, "version": 5}, {"appId": OTHERS, "version": 9}]})
    pq.write_table(rows, log / f"{10:020d}.checkpoint.parquet")
    for version in range(11):
        (log / f"{version:020d}.json").unlink()
    output = DeltaOutput("out", open_object_store(str(tmp_path)))
    assert output.position(OURS).batch_id == 5
    assert output.position(OTHERS).batch_id == 11


def test_a_log_with_a_gap_is_damage(tmp_path: Path) -> None:
    """What was in the commit that is missing is not known."""
    wrote_delta(tmp_path, (OURS, 0), (OURS, 1), (OURS, 2))
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(FormatError, match="has a gap"):
        DeltaOutput("out", open_object_store(str(tmp_path))).position(OURS)


def iceberg(path: Path, *snapshots: dict[str, object], current: int | None) -> IcebergOutput:
    """A table of a hadoop catalog with these snapshots."""
    directory = path / "metadata"
    directory.mkdir(parents=True)
    fields = {"current-snapshot-id": current, "snapshots": list(snapshots)}
    (directory / "v1.metadata.json").write_text("{}")
    (directory / "v2.metadata.json").write_text(json.dumps(fields))
    (directory / "version-hint.text").write_text("1")
    return IcebergOutput("out", open_object_store(str(path)))


def snapshot(number: int, parent: int | None, query_id: str, batch_id: int) -> dict[str, object]:
    """A snapshot that a query made."""
    summary = {QUERY_ID: query_id, EPOCH_ID: str(batch_id)}
    return {"snapshot-id": number, "parent-snapshot-id": parent, "summary": summary}


def test_an_iceberg_table_is_asked_among_ancestors(tmp_path: Path) -> None:
    """A snapshot that was rolled back is not one; the hint may lag behind."""
    made = (snapshot(1, None, OURS, 3), snapshot(2, 1, OTHERS, 8), snapshot(3, 1, OURS, 4))
    output = iceberg(tmp_path, *made, current=2)
    assert output.position(OURS).batch_id == 3
    assert output.position(OTHERS).batch_id == 8


def test_expired_snapshots_are_unknown_and_not_none(tmp_path: Path) -> None:
    """Iceberg itself can no longer tell then."""
    found = iceberg(tmp_path, snapshot(9, 8, OTHERS, 1), current=9).position(OURS)
    assert (found.batch_id, found.is_known) == (None, False)


@pytest.fixture
def made(tmp_path: Path, url: str) -> MadeLocation:
    """A query that writes files, captured at batches 0 to 2."""
    location = MadeLocation(tmp_path / "location")
    for batch_id in range(3):
        location.commit(batch_id)
        capture(location, url, batch_id, sink=f"FileSink[file:{tmp_path / 'out'}]")
    return location


def test_a_restore_is_refused_while_its_files_are_ahead(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Nothing is written; where the output is, the restore works."""
    wrote_files(tmp_path / "out", "0", "1", "2")
    assert made.query_id
    with pytest.raises(Diverged, match=r"has batch 2 of this query.* after batch 1.*drop batch 2"):
        restore(url, str(tmp_path / "fresh"), epoch=1)
    assert not (tmp_path / "fresh").exists()
    assert restore(url, str(tmp_path / "fresh")).batch_id == 2


@pytest.mark.usefixtures("made")
def test_a_restore_is_refused_while_its_files_are_behind(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's file sink records every batch: the rows of one that it lacks would never be written."""
    wrote_files(tmp_path / "out", "0", "1")
    with pytest.raises(Diverged, match=r"has batch 1 .* after batch 2: the rows between are not in it"):
        restore(url, str(tmp_path / "fresh"))
    assert not (tmp_path / "fresh").exists()
    assert restore(url, str(tmp_path / "other"), sink="warn").batch_id == 2
    assert "the rows between are not in it" in caplog.text
    assert restore(url, str(tmp_path / "fresh"), epoch=1).batch_id == 1


@pytest.mark.usefixtures("made")
def test_a_file_sink_is_ahead_of_a_clone_too(url: str, tmp_path: Path) -> None:
    """Its log does not know queries."""
    wrote_files(tmp_path / "out", "0", "1", "2", "3")
    with pytest.raises(Diverged, match="rows of batch 3 would be there twice, or be dropped"):
        restore(url, str(tmp_path / "fresh"), clone=True)


@pytest.mark.usefixtures("made")
def test_a_clone_begins_the_log_of_its_own_path(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With empty batches, as Spark's compactions want it; before the clone can start, and said."""
    wrote_files(tmp_path / "out", "0", "1", "2", "3")
    with caplog.at_level(logging.WARNING):
        restore(url, str(tmp_path / "fresh"), clone=True, sink_location=str(tmp_path / "own"))
    found = {path.name: path.read_text() for path in (tmp_path / "own" / "_spark_metadata").iterdir()}
    assert found == {"0": "v1", "1": "v1", "2": "v1"}
    assert "own begins with empty batches up to batch 2" in caplog.text


@pytest.mark.parametrize("newest", [2, 12, 25])
def test_a_clone_that_was_killed_while_its_log_began_is_finished_by_repeating_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: int
) -> None:
    """What it has written by then is the beginning of a log, and not a log that lacks batches."""
    location = MadeLocation(tmp_path / "location").commit(*range(newest + 1))
    capture(location, url, newest, sink=f"FileSink[file:{tmp_path / 'out'}]")
    wrote_files(tmp_path / "out", "0", str(newest + 1))
    own = str(tmp_path / "own")
    put = FileSinkOutput._put_entry
    for writes in range(newest + 2):
        left = [None] * writes

        def dies(output: FileSinkOutput, key: str, data: bytes, left: list[None] = left) -> None:
            if not left:
                raise SimulatedCrash
            left.pop()
            put(output, key, data)

        monkeypatch.setattr(FileSinkOutput, "_put_entry", dies)
        try:
            restore(url, str(tmp_path / "fresh"), clone=True, sink_location=own)
        except SimulatedCrash:
            monkeypatch.setattr(FileSinkOutput, "_put_entry", put)
            restore(url, str(tmp_path / "fresh"), clone=True, sink_location=own)
            written = FileSinkOutput(own, open_object_store(own)).position(OURS)
            assert written.batch_id == newest
            shutil.rmtree(tmp_path / "fresh")
            shutil.rmtree(own)
        else:
            break
    assert writes > 2


@pytest.mark.usefixtures("made")
def test_a_clone_is_refused_a_path_whose_log_is_another_ones(url: str, tmp_path: Path) -> None:
    """Though no batch of it has rows: who writes there would be dropped by number."""
    wrote_files(tmp_path / "out", "0", "1", "2", "3")
    (tmp_path / "own" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "own" / "_spark_metadata" / "1").write_text("v1")
    with pytest.raises(Diverged, match="own has batch 1 of this query as its newest"):
        restore(url, str(tmp_path / "fresh"), clone=True, sink_location=str(tmp_path / "own"))


@pytest.mark.usefixtures("made")
def test_who_accepts_the_loss_can_say_so(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Then it is a warning."""
    wrote_files(tmp_path / "out", "0", "1", "2", "3")
    with caplog.at_level(logging.WARNING):
        assert restore(url, str(tmp_path / "fresh"), sink="warn").batch_id == 2
    assert "drop batch 3" in caplog.text
    with pytest.raises(SettingsError, match="choose one of fail, rollback, warn"):
        restore(url, str(tmp_path / "other"), sink="never")


@pytest.mark.usefixtures("made")
def test_an_output_that_was_moved_is_asked_where_it_is(url: str, tmp_path: Path) -> None:
    """What the checkpoint says is only where it was."""
    wrote_files(tmp_path / "moved", "0", "1", "2", "3")
    with pytest.raises(Diverged, match="moved"):
        restore(url, str(tmp_path / "fresh"), sink_location=str(tmp_path / "moved"))


@pytest.mark.usefixtures("made")
def test_an_output_that_cannot_be_asked_is_said(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The restore goes on: what is not known must not keep anybody from going on."""

    def refuse(_: object, __: str) -> None:
        raise CheckpointError("no answer", hint="look at the network")

    monkeypatch.setattr(FileSinkOutput, "position", refuse)
    with caplog.at_level(logging.WARNING):
        assert restore(url, str(tmp_path / "fresh")).batch_id == 2
    assert "cannot be asked how far it is: no answer; so that it can: look at the network" in caplog.text


@pytest.mark.usefixtures("made")
def test_the_command_refuses_and_takes_the_choice(ckpt: Shell, url: str, tmp_path: Path) -> None:
    """Exit status 3, and the way out."""
    wrote_files(tmp_path / "out", "0", "1", "2", "3")
    typed = ("restore", url, "--to", str(tmp_path / "fresh"))
    refused = ckpt(*typed)
    assert (refused.status, "CKPT-DIVERGED" in refused.err) == (3, True)
    assert ckpt(*typed, "--dry-run").status == 3
    assert ckpt(*typed, "--sink", "warn").status == 0
