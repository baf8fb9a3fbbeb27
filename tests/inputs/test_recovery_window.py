"""How far back a query can go, by what inputs and outputs say; what does not answer is unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint import savepoint
from pyspark_checkpoint.cli.commands.watch_command import Watched, view_lines
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import Entry
from pyspark_checkpoint.inputs.recovery_window import Reach, find_window, lineage_of
from pyspark_checkpoint.store.open import open_object_store
from tests.cli.conftest import ckpt
from tests.cli.kit import Shell, make_query
from tests.outputs.spark_log import SparkLog
from tests.support.made_location import MadeLocation, capture

__all__ = ["ckpt"]
EPOCH = ManifestKind.EPOCH


def entries(*numbers: int) -> list[Entry]:
    """Checkpoints that were made one after the other."""
    return [Entry(number, epoch=number, timestamp_ms=number, kind=EPOCH) for number in numbers]


@pytest.mark.parametrize("oldest", range(1, 42))
def test_the_oldest_that_can_be_had_is_found_by_asking_few(oldest: int) -> None:
    """And the reason why not the one before it."""
    asked: list[int] = []

    def reach(number: int) -> Reach:
        asked.append(number)
        return Reach((f"gone at {number}",) if number < oldest else (), ("kafka is unknown",))

    window = find_window(entries(*range(1, 41)), reach)
    assert window.oldest == (oldest if oldest < 41 else None)
    assert window.limits == ((f"gone at {oldest - 1}",) if oldest > 1 else ())
    assert (window.newest, window.unknown) == (40, ("kafka is unknown",))
    assert len(asked) <= 6
    assert len(set(asked)) == len(asked)


def test_an_older_savepoint_is_asked_by_itself() -> None:
    """Its output may be pinned."""
    made = entries(*range(1, 11))
    made[1] = replace(made[1], savepoints=("kept",))
    made[2] = replace(made[2], savepoints=("lost",))
    window = find_window(made, lambda number: Reach(("gone",) if number < 7 and number != 2 else ()))
    assert (window.oldest, window.pinned) == (7, (2,))
    assert [window.has(number) for number in (1, 2, 6, 7, 10, 11)] == [False, True, False, True, True, None]


def test_no_checkpoint_has_no_window() -> None:
    """Nothing is asked."""
    window = find_window([], lambda _: Reach(("never",)))
    assert (window.oldest, window.newest, window.has(1)) == (None, None, None)


def test_what_was_rolled_back_is_of_another_lineage() -> None:
    """The output has other rows under those batches now."""
    made = entries(1, 2, 3, 4, 5, 6, 7)
    made[4] = replace(made[4], kind=ManifestKind.ROLLBACK, rollback_of=2)
    made.insert(0, Entry(0, problem="damaged"))
    assert [entry.number for entry in lineage_of(made)] == [1, 2, 5, 6, 7]


@pytest.fixture
def history(tmp_path: Path, url: str) -> CheckpointStore:
    """A query of 25 batches, whose file sink has purged its log up to 19; batch 3 is a savepoint."""
    log = SparkLog(open_object_store(f"file:{tmp_path / 'out'}"), retain=2)
    made = MadeLocation(tmp_path / "location", state_bytes=10)
    sink = f"FileSink[file:{tmp_path / 'out'}]"
    for batch_id in range(25):
        made.commit(batch_id)
        log.add(batch_id)
        if batch_id in (3, 12, 21, 24):
            capture(made, url, batch_id, sink=sink)
        if batch_id == 3:
            savepoint(url, "early")
    for batch_id in (25, 26):  # it is further than the newest checkpoint
        log.add(batch_id)
    return CheckpointStore.open(url)


@pytest.mark.usefixtures("history")
def test_the_window_is_shown_where_it_is_asked(url: str, ckpt: Shell, tmp_path: Path) -> None:
    """Outputs are shown without asking them."""
    listed = ckpt("list", url, "--json").json
    (output,) = listed[-1]["outputs"]
    assert (output["kind"], output["batch_id"], "recoverable" in listed[-1]) == ("file", 24, False)
    assert f"writes to file file:{tmp_path / 'out'}: batch 24" in ckpt("list", url).out
    assert "recovery window" not in ckpt("show", url).out

    told = ckpt("list", url, "--window")
    assert told.status == 0
    made = ckpt("list", url, "--window", "--json").json
    by_batch = {one["batch_id"]: one for one in made if one["kind"] == "epoch"}
    assert {batch: one["recoverable"] for batch, one in by_batch.items()} == {
        3: True,
        12: False,
        21: True,
        24: True,
    }
    oldest, newest, early = (by_batch[batch]["checkpoint_id"] for batch in (21, 24, 3))
    line = f"can go back to every checkpoint from {oldest} to {newest}, and to {early}"
    assert line in told.out
    assert f"output file file:{tmp_path / 'out'} has batch 26 now, version 26" in told.out
    assert "before that: output file" in told.out
    assert "not known: input source-0" in told.out

    shown = ckpt("show", url, "--window")
    assert f"file file:{tmp_path / 'out'}" in " ".join(shown.out.split())
    assert line in shown.out
    found = ckpt("show", url, "--window", "--json").json["recovery_window"]
    now = {"kind": "file", "target": f"file:{tmp_path / 'out'}", "batch_id": 26, "version": "26"}
    assert (found["oldest"], found["outputs"]) == (oldest, [now])
    page = tmp_path / "report.html"
    assert ckpt("report", url, "-o", page, "--window").status == 0
    assert line in page.read_text()
    events = [
        json.loads(told) for told in ckpt("watch", url, "--once", "--json", "--window").out.splitlines()
    ]
    assert next(one["message"] for one in events if one["event"] == "window") == line
    assert "<h2>Outputs</h2>" in page.read_text()


def test_a_watched_history_shows_where_its_rows_go(history: CheckpointStore, tmp_path: Path) -> None:
    """Its newest batch, without asking anybody."""
    watched = Watched("", history)
    lines = " ".join(" ".join(view_lines([watched], [watched.look()], 0)).split())
    assert f"output file file:{tmp_path / 'out'}: batch 24" in lines


def test_an_output_that_does_not_answer_hides_nothing(url: str, ckpt: Shell, tmp_path: Path) -> None:
    """It is unknown, and the checkpoints are listed."""
    made = MadeLocation(tmp_path / "location", state_bytes=10).commit(0, 1)
    capture(made, url, 0, 1, sink="FileSink[s3a://elsewhere/out]")
    told = ckpt("list", url, "--window")
    assert (told.status, "not known: output file s3a://elsewhere/out: a record names" in told.out) == (
        0,
        True,
    )
    assert "can go back to every checkpoint from 1 to 2" in told.out


def test_several_queries_have_no_common_window(ckpt: Shell, tmp_path: Path) -> None:
    """One has to be chosen."""
    make_query(tmp_path / "parent", tmp_path / "a", 0)
    refused = ckpt("list", tmp_path / "parent", "--window")
    assert (refused.status, "--query" in refused.err) == (2, True)
