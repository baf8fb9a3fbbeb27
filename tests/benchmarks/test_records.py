"""What the benchmarks save comes back as it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import side_by_side
from benchmarks.file_manager import PART as FILE_MANAGER
from benchmarks.frame import (
    Argument,
    Cell,
    Part,
    Row,
    Settings,
    Side,
    decode_run,
    encode_run,
    in_turns,
    load_runs,
    save_run,
)
from benchmarks.growth import stretches
from benchmarks.lab import WAYS, Load, Pace, Place, Tally, concerns, lags_of, query_spec, verb
from benchmarks.side_by_side import PART, situations
from tests.support.bench_rows import cell, run
from tests.support.drivers.queries import QuerySpec
from tests.support.servers.faults import Request

ROWS: tuple[Row, ...] = (
    cell("stock", lag_seconds=(0.1, 0.2), capture_puts=(4, 5)),
    Side("100 MB, s3", "restore", (1.0, 2.0), "s"),
    Side("2 contests", "stock", counts={"wrong batches": 1}),
)


def test_a_run_of_every_kind_of_row_comes_back_as_it_was() -> None:
    saved = run("side-by-side", *ROWS)
    assert decode_run(encode_run(saved)) == saved


def test_runs_with_labels_are_kept_beside_each_other_and_others_replaced(tmp_path: Path) -> None:
    save_run(run("restore", ROWS[1]), tmp_path)
    save_run(run("restore", ROWS[1], ROWS[1]), tmp_path)
    save_run(run("restore", ROWS[1], label="later"), tmp_path)
    runs = load_runs(tmp_path)
    assert [(found.name, len(found.rows)) for found in runs.of("restore")] == [
        ("restore", 2),
        ("restore-later", 1),
    ]
    assert len(runs.rows("restore", Side)) == 3
    assert runs.rows("restore", Cell) == [] and runs.of("growth") == []


def test_every_second_round_goes_backwards() -> None:
    assert list(in_turns("ab", 3)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


@pytest.mark.spark
def test_a_part_saves_every_row_before_the_next_is_measured(tmp_path: Path) -> None:
    """What was measured survives a failure in the middle."""

    def failing(settings: Settings) -> object:
        yield Side("sink", settings["epochs"])
        raise RuntimeError("in the middle")

    part = Part("growth", "", failing, (Argument("epochs", "1000", "10", "epochs"),))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        part.run(["--quick", "--results", str(tmp_path)])
    (saved,) = load_runs(tmp_path).of("growth")
    assert saved.rows == (Side("sink", "10"),)
    assert saved.failed == "RuntimeError: in the middle"
    assert saved.settings == {"epochs": "10"} and "--quick" in saved.command


def test_a_given_argument_wins_over_quick_and_full() -> None:
    part = Part("growth", "", lambda _: [], (Argument("epochs", "1000", "10", "epochs"),))
    chosen = [
        part.parse(argv)[0].number("epochs") for argv in ([], ["--quick"], ["--quick", "--epochs", "3"])
    ]
    assert chosen == [1000, 10, 3]


def test_lists_and_deletes_of_many_have_verbs_of_their_own() -> None:
    def named(method: str, target: str) -> str:
        return verb(Request(method, target, 200, 0, 0, None))

    assert named("GET", "/bucket?list-type=2&prefix=a") == "LIST"
    assert named("GET", "/bucket/list-type=2") == "GET"
    assert named("POST", "/bucket/?delete") == "DELETES"
    assert named("POST", "/bucket/key?uploads") == "POST"
    assert named("HEAD", "/bucket/key") == "HEAD"


def test_a_tally_counts_batches_requests_and_bytes_of_all_rounds() -> None:
    tally = Tally(batches=2, batch_ms=[10, 20])
    tally.durations = [{"addBatch": 5, "walCommit": 1}, {"addBatch": 7}]
    tally.add_requests(
        [Request("PUT", "/b/k", 200, 100, 1, None), Request("GET", "/b/k", 200, 0, 50, None)]
    )
    found = tally.cell("ours", Load(), 20)
    assert (found.p50, found.per_batch, found.bytes_out, found.bytes_in) == (15, 1.0, 100, 51)
    assert found.phases_ms == {"addBatch": 6, "walCommit": 1}


def test_a_long_run_is_cut_in_stretches_of_equal_length() -> None:
    batch_ms = [10] * 50 + [30] * 50
    requests = [4 * done if done <= 50 else 200 + 6 * (done - 50) for done in range(0, 101, 5)]
    samples = [(5 * at, many, 100 * many) for at, many in enumerate(requests)]
    found = list(stretches("sink", batch_ms, samples, 100, 200))
    assert [(one.way, len(one.values)) for one in found] == [(f"tenth {n}", 10) for n in range(1, 11)]
    assert [one.p50 for one in found] == [10] * 5 + [30] * 5
    assert [one.counts for one in found[4:6]] == [
        {"requests": 4, "bytes a row": 2},
        {"requests": 6, "bytes a row": 3},
    ]


def test_every_way_keeps_its_checkpoint_where_it_says(tmp_path: Path) -> None:
    """Only the S3A ways are on S3; only the listener and the sink have a store of ours."""
    place = Place(tmp_path, {"endpoint": "http://proxy"})
    specs = {way: query_spec(way, Load(), place, f"q-{way}") for way in WAYS}
    on_s3 = {way for way, spec in specs.items() if spec.location.startswith("s3a:")}
    assert on_s3 == {"stock", "tuned", "ours"}
    assert {way for way, spec in specs.items() if spec.listen} == {"listener", "listener-stock"}
    assert {way for way, spec in specs.items() if spec.format != "noop"} == {"sink"}
    assert specs["sink"].options["keyColumns"] == "window,key"
    assert (
        len({spec.conf["spark.sql.streaming.checkpointFileManagerClass"] for spec in specs.values()}) == 3
    )


def test_large_situations_and_joins_are_measured_for_less_long() -> None:
    """Every query, number of partitions, state store and delay is there once."""
    found = list(situations(PART.parse([])[0]))
    keys = [(one.load.query, one.load.partitions, one.load.provider, one.delay_ms) for one in found]
    assert len(keys) == len(set(keys)) == 3 * 2 * 3
    small = [one for one in found if one.load.query == "windowed" and one.load.partitions == 4]
    assert {(one.delay_ms, one.rounds, one.pace.batches) for one in small} == {
        (0, 2, 2),
        (20, 2, 6),
        (50, 2, 2),
    }
    assert {one.rounds for one in found if one not in small} == {1}
    large = [one for one in found if one.load.partitions == 64]
    assert {(one.delay_ms, one.pace.batches) for one in large} == {(0, 2), (20, 3), (50, 2)}


def test_a_listener_is_measured_for_several_captures_and_with_both_managers_where_the_aims_are() -> None:
    found = list(situations(PART.parse([])[0]))
    both = [one for one in found if "listener-stock" in one.ways]
    keys = {(one.load.query, one.load.partitions, one.delay_ms) for one in both}
    assert keys == {("windowed", 4, 20)} and len(both) == 2
    for way in ("listener", "listener-stock"):
        assert {one.pace_of(way).shortest_seconds for one in both} == {8.0}
    assert {one.pace_of("ours").shortest_seconds for one in found} == {0.0}
    assert {one.pace_of("listener").shortest_seconds for one in found} == {4.0, 8.0}
    everywhere = {"alone", "disk", "stock", "tuned", "ours", "listener", "sink"}
    assert all(everywhere <= {*one.ways} for one in found)


def test_measuring_ends_after_enough_batches_and_seconds_or_after_too_many_seconds() -> None:
    pace = Pace(batches=3, longest_seconds=40, shortest_seconds=10)
    assert not pace.is_over(3, 9) and pace.is_over(3, 10)
    assert not pace.is_over(2, 39) and pace.is_over(2, 40)
    assert not pace.is_over(0, 1000), "a way that takes for ever has at least one batch"


def test_requests_are_those_of_the_query_that_is_measured() -> None:
    """Spark maintains the state of queries that were stopped before; that is not this query's cost."""

    def of_mine(method: str, target: str) -> bool:
        return concerns(Request(method, target, 200, 0, 0, None), "s1-ours-0")

    assert of_mine("PUT", "/bucket/s1-ours-0/offsets/3")
    assert of_mine("PUT", "/bucket/stores/s1-ours-0/x/_control")
    assert of_mine("GET", "/bucket?list-type=2&prefix=s1-ours-0/state/0/1/&delimiter=/")
    assert of_mine("POST", "/bucket/?delete"), "it does not say which"
    assert not of_mine("PUT", "/bucket/s11-ours-0/offsets/3")
    assert not of_mine("GET", "/bucket?list-type=2&prefix=s1-stock-0/state/0/1/&delimiter=/")


def test_the_lag_of_a_batch_ends_with_the_first_capture_of_it_or_of_a_later_one() -> None:
    committed = {batch: 10.0 + batch for batch in range(8)}
    assert lags_of(committed, [(2, 12.5), (3, 13.5), (6, 17.0)]) == [0.5, 0.5, 3.0, 2.0, 1.0]
    assert lags_of(committed, []) == []
    assert lags_of({3: 13.0}, [(2, 12.5), (4, 14.5)]) == [1.5], "what Spark has purged is not counted"


def test_the_file_manager_has_every_situation_at_the_pace_of_the_side_by_side() -> None:
    """Stock takes the better part of a minute a batch with many partitions and a slow store."""
    settings = FILE_MANAGER.parse([])[0]
    found = list(situations(settings))
    assert settings.names("ways") == ["alone", "stock", "tuned", "ours"]
    assert {one.load.query for one in found} == {"total"}
    assert len({(one.load.partitions, one.load.provider, one.delay_ms) for one in found}) == 2 * 2 * 3
    pace = {(one.load.partitions, one.delay_ms, one.rounds, one.pace.batches) for one in found}
    assert {one for one in pace if one[0] == 4} == {(4, 0, 2, 2), (4, 20, 2, 6), (4, 50, 2, 2)}
    assert {one for one in pace if one[0] == 64} == {(64, 0, 1, 2), (64, 20, 1, 3), (64, 50, 1, 2)}
    assert {one.pace.longest_seconds for one in found} == {45}


def test_a_way_that_fails_is_noted_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An hour of measuring is not lost for one query."""

    def measured(lab: Any, driver: Any, spec: QuerySpec, pace: Pace, tally: Tally) -> None:
        if "-stock-1" in spec.name:
            raise RuntimeError("no batch")
        tally.batches += pace.batches
        tally.batch_ms += [10] * pace.batches

    monkeypatch.setattr(side_by_side, "measure", measured)
    lab: Any = SimpleNamespace(place=Place(tmp_path, {}), delay=lambda _: None)
    failed: list[str] = []
    chosen = PART.parse(["--ways", "stock,ours", "--delays", "20", "--batches", "4"])[0]
    cells = side_by_side.measure_situation(lab, None, next(situations(chosen)), "s", failed)  # type: ignore[arg-type]
    assert [(found.way, found.batches) for found in cells] == [("ours", 8)]
    assert len(failed) == 1 and "no batch" in failed[0] and failed[0].startswith("stock")
