"""A query and the table of its ckpt-sink, restored together: at one epoch of one lineage, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import Diverged, RefusedError, StaleAttempt
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    ManifestKind,
    QueryInfo,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.ckpt_sink import CkptSinkOutput
from pyspark_checkpoint.outputs.pins import pin_name
from pyspark_checkpoint.restorer.api import RestoreRequest, execute_restore, restore, savepoint
from tests.support.made_location import QUERY_ID, MadeLocation, capture, open_capture


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2, 3)


@pytest.fixture
def table_url(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def save_rows(
    table_url: str, offsets: dict[int, int], *, query_id: str = QUERY_ID, first_epoch: int = 0
) -> CheckpointStore:
    """What a ckpt-sink records of these epochs: for each, where its source stood."""
    table = CheckpointStore.open(table_url)
    for epoch, offset in offsets.items():
        source = ConnectorCheckpoint({"offset": f'{{"topic":{{"0":{offset}}}}}'}, epoch)
        draft = replace(
            CheckpointManifest.new(0, epoch),
            query=QueryInfo(id=query_id),
            source_offsets={"source-0": source},
            source_names=("source-0",),
            batch_id=epoch - first_epoch,
        )
        table.save(draft)
    return table


def test_a_query_and_its_table_stay_at_one_epoch(
    made: MadeLocation, url: str, table_url: str, tmp_path: Path
) -> None:
    """A table that is further is rolled back on request only; one that is behind is a gap."""
    capture(made, url, 0, 1, 2, 3, sink=f"ckpt-sink {table_url}")
    table = save_rows(table_url, {epoch: epoch for epoch in range(3)})
    with pytest.raises(RefusedError, match="would be missing"):
        restore(url, str(tmp_path / "gap"), epoch=3)
    with pytest.raises(RefusedError, match="sink=rollback"):
        restore(url, str(tmp_path / "double"), epoch=1)
    assert not (tmp_path / "gap").exists()
    assert not (tmp_path / "double").exists()
    restore(url, str(tmp_path / "same"), epoch=2)
    restore(url, str(tmp_path / "back"), epoch=1, sink="rollback")
    newest = table.load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, 1)
    restore(url, str(tmp_path / "clone"), epoch=0, clone=True)


@pytest.mark.parametrize("epoch", [1, 2])
def test_what_others_wrote_to_the_table_since_is_named_and_not_undone_unasked(
    epoch: int, made: MadeLocation, url: str, table_url: str, tmp_path: Path
) -> None:
    """Also where nobody has chosen the restore: a batch job's epoch is none of the query's."""
    capture(made, url, 0, 1, 2, sink=f"ckpt-sink {table_url}")
    table = save_rows(table_url, {number: number for number in range(3)})
    save_job(table_url, 3)
    before = table.list_ids()
    chosen = RestoreRequest(url, str(tmp_path / "back"), epoch=epoch, sink="rollback")
    automatic = RestoreRequest(url, str(tmp_path / "back"), automatic=True)
    for request in (chosen, automatic):
        with pytest.raises(Diverged, match=r"not of this query.*checkpoint 4, epoch 3 of a batch job"):
            execute_restore(request)
    assert (table.list_ids(), (tmp_path / "back").exists()) == (before, False)
    execute_restore(replace(chosen, drop_others=True))
    newest = table.load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, epoch)


def another_lineage(made: MadeLocation, url: str, table_url: str, tmp_path: Path) -> None:
    """A savepoint of epoch 2; back to epoch 1; then other batches 2 and 3."""
    sink = f"ckpt-sink {table_url}"
    first = capture(made, url, 0, 1, 2, 3, sink=sink)
    save_rows(table_url, {epoch: epoch for epoch in range(4)})
    savepoint(url, "first-lineage", at=first[2].checkpoint_id)
    restore(url, str(tmp_path / "back"), epoch=1, sink="rollback")
    other = MadeLocation(tmp_path / "other", seed=9).commit(0, 1, 2, 3)
    for batch in (2, 3):
        path = other.path / "offsets" / str(batch)
        path.write_text(path.read_text().replace(f'"0":{batch}', f'"0":{batch}00'))
    save_rows(table_url, {2: 200, 3: 300})
    capture(other, url, 2, 3, sink=sink)


def test_a_table_goes_back_to_the_lineage_of_the_checkpoint(
    made: MadeLocation, url: str, table_url: str, tmp_path: Path
) -> None:
    """An epoch number that the table has twice says nothing: rows of other batches would be duplicated."""
    another_lineage(made, url, table_url, tmp_path)
    with pytest.raises(RefusedError, match="sink=rollback"):
        restore(url, str(tmp_path / "again"), at="first-lineage")
    restore(url, str(tmp_path / "again"), at="first-lineage", sink="rollback")
    newest = CheckpointStore.open(table_url).load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, 2)
    assert newest.source_offsets["source-0"].offsets == {"offset": '{"topic":{"0":2}}'}
    restore(url, str(tmp_path / "without"), at="first-lineage")


def test_the_newest_epoch_of_another_lineage_is_not_the_checkpoints(
    made: MadeLocation, url: str, table_url: str, tmp_path: Path
) -> None:
    """Nor is it enough that the table stands at the very number."""
    another_lineage(made, url, table_url, tmp_path)
    table = CheckpointStore.open(table_url)
    (other,) = [number for number, epoch in table.list()[5:] if epoch == 2]
    table.rollback(other)
    with pytest.raises(RefusedError, match="other batches"):
        restore(url, str(tmp_path / "again"), at="first-lineage")
    assert not (tmp_path / "again").exists()


def test_a_lineage_that_the_table_does_not_keep_is_refused(
    made: MadeLocation, url: str, table_url: str, tmp_path: Path
) -> None:
    """Nothing is written, and the table stays as it is."""
    another_lineage(made, url, table_url, tmp_path)
    table = CheckpointStore.open(table_url)
    table.remove_savepoint(pin_name("first-lineage", QUERY_ID))
    table.prune(keep=2)
    before = table.list_ids()
    with pytest.raises(RefusedError, match="other batches"):
        restore(url, str(tmp_path / "again"), at="first-lineage", sink="rollback")
    assert table.list_ids() == before
    assert not (tmp_path / "again").exists()
    restore(url, str(tmp_path / "clone"), at="first-lineage", clone=True)


def test_a_savepoint_keeps_its_lineage_in_the_table(
    made: MadeLocation, url: str, table_url: str, tmp_path: Path
) -> None:
    """However little the table retains."""
    another_lineage(made, url, table_url, tmp_path)
    CheckpointStore.open(table_url).prune(keep=2)
    restore(url, str(tmp_path / "again"), at="first-lineage", sink="rollback")


def test_a_table_that_was_taken_over_is_matched_by_batch(
    made: MadeLocation, url: str, table_url: str, tmp_path: Path
) -> None:
    """Its epochs went on where the other query's ended: epoch 1 is the other's, batch 1 is epoch 6."""
    capture(made, url, 0, 1, 2, 3, sink=f"ckpt-sink {table_url}")
    save_rows(table_url, dict.fromkeys(range(5), 9), query_id="")
    table = save_rows(table_url, {5 + batch: batch for batch in range(4)}, first_epoch=5)
    restore(url, str(tmp_path / "same"), epoch=3)
    restore(url, str(tmp_path / "back"), epoch=1, sink="rollback")
    newest = table.load_latest()
    assert newest is not None
    assert newest.epoch == 6


def unknown_offsets(made: MadeLocation, url: str, table_url: str) -> None:
    """The table's epochs are of the query, by name, but say nothing of its sources."""
    capture(made, url, 0, 1, 2, 3, sink=f"ckpt-sink {table_url}")
    table = CheckpointStore.open(table_url, query=QueryInfo(id=QUERY_ID))
    for epoch in range(4):
        table.save(replace(CheckpointManifest.new(0, epoch), batch_id=epoch))


def unknown_query(made: MadeLocation, url: str, table_url: str) -> None:
    """The table's epochs were read up to the same offsets, by nobody knows whom."""
    capture(made, url, 0, 1, 2, 3, sink=f"ckpt-sink {table_url}")
    save_rows(table_url, {epoch: epoch for epoch in range(4)}, query_id="")


def unknown_checkpoint(made: MadeLocation, url: str, table_url: str) -> None:
    """The checkpoint says neither of which query it is nor how far it read; anybody can write that."""
    del made
    save_rows(table_url, {epoch: epoch for epoch in range(4)}, query_id="somebody else's")
    hostile = replace(CheckpointManifest.new(0, 1), table_store_checkpoint_path=table_url)
    CheckpointStore.open(url).save(hostile)


@pytest.mark.parametrize("history", [unknown_offsets, unknown_query, unknown_checkpoint])
def test_a_table_that_is_not_proven_to_be_the_querys_is_not_rolled_back(
    history: Callable[[MadeLocation, str, str], None],
    made: MadeLocation,
    url: str,
    table_url: str,
    tmp_path: Path,
) -> None:
    """What one side does not say proves nothing. Whoever knows better rolls the table back, and goes on."""
    history(made, url, table_url)
    table = CheckpointStore.open(table_url)
    before = table.list_ids()
    with pytest.raises(RefusedError, match="of which query") as caught:
        restore(url, str(tmp_path / "back"), epoch=1, sink="rollback")
    assert table.list_ids() == before
    assert not (tmp_path / "back").exists()
    assert caught.value.hint is not None
    assert f"ckpt rollback {table_url} 2" in caught.value.hint
    if history is not unknown_checkpoint:
        table.rollback(2)
        restore(url, str(tmp_path / "back"), epoch=1)


def output(table_url: str) -> CkptSinkOutput:
    """The table as it is asked by query and batch."""
    return CkptSinkOutput(table_url)


def test_the_start_of_a_query_fits_a_table_that_has_nothing_of_it_or_the_first_batch(
    url: str, table_url: str, tmp_path: Path
) -> None:
    """The first batch is planned as it was, and replaced. Later ones would be written again."""
    made = MadeLocation(tmp_path / "location")
    plan = (made.plan(0).path / "offsets/0").read_bytes()
    (made.path / "offsets/0").unlink()
    start = open_capture(made, url, sink=f"ckpt-sink {table_url}").capture_planned(0, plan)
    assert start is not None and start.is_start
    restore(url, str(tmp_path / "empty"))
    save_job(table_url, 0)
    restore(url, str(tmp_path / "of a batch job"))
    save_rows(table_url, {1: 0}, first_epoch=1)
    restore(url, str(tmp_path / "first batch"))
    assert CheckpointStore.open(table_url).list_ids() == [1, 2], "the table is left alone"
    save_rows(table_url, {2: 1}, first_epoch=1)
    with pytest.raises(Diverged, match="at batch 1, the checkpoint before the first"):
        restore(url, str(tmp_path / "too late"))


@pytest.mark.parametrize("batches", [1, 4])
def test_the_start_of_a_query_does_not_fit_a_table_that_others_have_written_to_since(
    batches: int, url: str, table_url: str, tmp_path: Path
) -> None:
    """A query that may take it over would write its batches once more, after theirs."""
    made = MadeLocation(tmp_path / "location")
    plan = (made.plan(0).path / "offsets/0").read_bytes()
    (made.path / "offsets/0").unlink()
    open_capture(made, url, sink=f"ckpt-sink {table_url}").capture_planned(0, plan)
    save_rows(table_url, {epoch: epoch for epoch in range(batches)})
    save_job(table_url, batches)
    with pytest.raises(Diverged, match=f"at batch {batches - 1} of the query, and others have written"):
        restore(url, str(tmp_path / "fresh"))
    assert not (tmp_path / "fresh").exists()


def save_job(table_url: str, epoch: int) -> None:
    """What a batch job records."""
    CheckpointStore.open(table_url).save(CheckpointManifest.new(0, epoch))


def test_a_table_says_how_far_it_is_by_query(table_url: str) -> None:
    """Whoever wrote last."""
    assert output(table_url).position(QUERY_ID).batch_id is None
    save_job(table_url, 0)
    assert output(table_url).position(QUERY_ID).batch_id is None
    save_rows(table_url, {1: 0, 2: 1}, first_epoch=1)
    save_job(table_url, 3)
    found = output(table_url).position(QUERY_ID)
    assert (found.batch_id, found.version, found.is_known) == (1, "4", True)
    assert output(table_url).position("another").batch_id is None


def test_a_table_goes_back_by_query_and_batch(table_url: str) -> None:
    """What others wrote since is named; the second time nothing is left to do."""
    save_rows(table_url, {0: 0, 1: 1, 2: 2})
    save_job(table_url, 3)
    plan = output(table_url).plan_roll_back(QUERY_ID, 0)
    assert plan is not None
    assert (plan.from_version, plan.to_version) == ("4", "1")
    assert plan.dropped == ("checkpoint 3, batch 2", "checkpoint 2, batch 1")
    assert plan.others == ("checkpoint 4, epoch 3 of a batch job",)
    output(table_url).roll_back(plan)
    assert output(table_url).plan_roll_back(QUERY_ID, 0) is None
    assert output(table_url).position(QUERY_ID).batch_id == 0
    with pytest.raises(StaleAttempt, match="newer checkpoint"):
        output(table_url).roll_back(plan)


def test_a_table_that_no_longer_has_a_batch_is_refused(table_url: str) -> None:
    """And so is the time before its first one."""
    save_rows(table_url, {0: 0, 1: 1, 2: 2}).prune(keep=1)
    for batch_id in (-1, 0):
        with pytest.raises(Diverged, match="no longer keeps batch"):
            output(table_url).plan_roll_back(QUERY_ID, batch_id)
    assert output(table_url).pin("good", QUERY_ID, 0) is None
