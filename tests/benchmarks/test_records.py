"""What the benchmarks save comes back as it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as program
from benchmarks import lab as lab_module
from benchmarks import report
from benchmarks.frame import (
    Argument,
    Part,
    Settings,
    Side,
    in_turns,
    load_part,
    load_runs,
    save_run,
)
from benchmarks.growth import stretches
from benchmarks.lab import (
    LATER,
    WAYS,
    Contender,
    Load,
    Pace,
    Place,
    Tally,
    concerns,
    lags_of,
    query_spec,
)
from benchmarks.peers import SIDES, Case, reads_of, spec_of
from benchmarks.side_by_side import situations
from benchmarks.sink import compacting
from tests.support.bench_rows import batches, run
from tests.support.drivers.queries import QuerySpec
from tests.support.servers.faults import Request

ROWS = (
    batches("stock", counts={"s lag": 0.1}),
    Side("100 MB, s3", "restore", (1.0, 2.0), "s"),
    Side("2 contests", "stock", counts={"wrong batches": 1}),
)


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = run("side-by-side", *ROWS)
    save_run(saved, tmp_path)
    assert load_runs(tmp_path).all == (saved,)


def test_runs_with_labels_are_kept_beside_each_other_and_others_replaced(tmp_path: Path) -> None:
    save_run(run("restore", ROWS[1]), tmp_path)
    save_run(run("restore", ROWS[1], ROWS[1]), tmp_path)
    save_run(run("restore", ROWS[1], label="later"), tmp_path)
    runs = load_runs(tmp_path)
    assert [(found.name, len(found.rows)) for found in runs.of("restore")] == [
        ("restore", 2),
        ("restore-later", 1),
    ]
    assert len(runs.rows("restore")) == 3 and runs.of("growth") == []


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
        return Request(method, target, 200, 0, 0, None).verb

    assert named("GET", "/bucket?list-type=2&prefix=a") == "LIST"
    assert named("GET", "/bucket/list-type=2") == "GET"
    assert named("POST", "/bucket/?delete") == "DELETES"
    assert named("POST", "/bucket/key?uploads") == "POST"
    assert named("HEAD", "/bucket/key") == "HEAD"


def test_a_tally_counts_batches_requests_and_bytes_of_all_rounds() -> None:
    tally = Tally(batches=2, batch_ms=[10, 20])
    tally.phases.update({"addBatch": [5, 7], "walCommit": [1], "getBatch": []})
    tally.add_requests(
        [Request("PUT", "/b/k", 200, 100, 1, None), Request("GET", "/b/k", 200, 0, 50, None)]
    )
    found = tally.side("here", "ours")
    assert (found.p50, found.counts, found.requests) == (15, {"requests": 1}, {"PUT": 0.5, "GET": 0.5})
    assert found.starting("bytes ") == {"out": 50, "in": 25.5}
    assert found.starting("phase ") == {"addBatch": 6, "walCommit": 1}


def test_the_first_batch_stands_beside_the_later_ones() -> None:
    tally = Tally(batches=4, batch_ms=[10, 20, 20, 30], first_ms=[30, 50])
    assert tally.first("case", "ours") == Side("case: first batch", "ours", (30, 50), counts={LATER: 2})


def test_a_long_run_is_cut_in_early_late_and_other_batches() -> None:
    batch_ms = [90] * 10 + [10] * 50 + [20] * 20 + [30] * 50
    samples = [(done, 4 * done, 400 * done) for done in range(0, 131, 5)]
    found = list(stretches("sink", batch_ms, samples, 50, 200))
    assert [(one.way, one.p50, len(one.values)) for one in found] == [
        ("early", 10, 50),
        ("between", 20, 20),
        ("late", 30, 50),
    ]
    assert [one.counts for one in found] == [{"requests": 4, "bytes a row": 2}] * 3


def test_a_batch_compacts_if_a_partition_has_no_more_artifacts_after_it() -> None:
    chains = [{0: 1, 1: 1}, {0: 2, 1: 2}, {0: 3, 1: 1}, {0: 4, 1: 2}, {0: 4, 1: 3}]
    assert compacting(chains) == {2, 4}


def test_the_first_measured_batch_is_known_when_a_query_is_faster_than_whoever_watches() -> None:
    """A compaction must be blamed on the batch that did it, not on its neighbour."""
    done = iter([3, 3, 5, 6])

    def stop(spec: QuerySpec) -> tuple[dict[str, Any], int]:
        return {"batch_ms": [10, 11, 12, 13, 14, 15], "duration_ms": [{}] * 6}, 0

    driver: Any = SimpleNamespace(
        start=id, wait_for=lambda *_: 2, count_committed=lambda _: next(done), stop=stop
    )
    lab: Any = SimpleNamespace(delay=id, proxy=SimpleNamespace(clear=dict), requests_of=lambda _: [])
    spec = QuerySpec("name", "upsert", "", "", 9)
    tally = Tally()
    assert lab_module.measure(lab, driver, spec, Pace(3, 2), tally, 20) == 3
    assert tally.batch_ms == [13, 14, 15]


def test_every_way_keeps_its_checkpoint_where_it_says(tmp_path: Path) -> None:
    """Only the S3A ways are on S3; only the listener and the sink have a store of ours."""
    place = Place(tmp_path, {"endpoint": "http://proxy"})
    specs = {way: query_spec(way, Load(), place, f"q-{way}") for way in WAYS}
    on_s3 = {way for way, spec in specs.items() if spec.location.startswith("s3a:")}
    assert on_s3 == {"stock", "tuned", "ours"}
    assert {way for way, spec in specs.items() if spec.listen} == {"listener", "listener-stock"}
    sinks = {way: spec.options for way, spec in specs.items() if spec.format != "noop"}
    assert {way: options["state"] for way, options in sinks.items()} == {"sink": "on", "rows only": "off"}
    assert sinks["sink"]["keyColumns"] == "window,key"
    assert (
        len({spec.conf["spark.sql.streaming.checkpointFileManagerClass"] for spec in specs.values()}) == 3
    )


def test_large_situations_and_joins_are_measured_for_less_long() -> None:
    """Every query, number of partitions, state store and delay is there once."""
    found = list(situations(load_part("side-by-side").parse([])[0]))
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
    found = list(situations(load_part("side-by-side").parse([])[0]))
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
    settings = load_part("file-manager").parse([])[0]
    found = list(situations(settings))
    assert settings.names("ways") == ["alone", "stock", "tuned", "ours"]
    assert {one.load.query for one in found} == {"total"}
    assert len({(one.load.partitions, one.load.provider, one.delay_ms) for one in found}) == 2 * 2 * 3
    pace = {(one.load.partitions, one.delay_ms, one.rounds, one.pace.batches) for one in found}
    assert {one for one in pace if one[0] == 4} == {(4, 0, 2, 2), (4, 20, 2, 6), (4, 50, 2, 2)}
    assert {one for one in pace if one[0] == 64} == {(64, 0, 1, 2), (64, 20, 1, 3), (64, 50, 1, 2)}
    assert {one.pace.longest_seconds for one in found} == {45}


def test_batches_that_purge_come_after_a_hundred_without_a_delay() -> None:
    (found,) = situations(load_part("purging").parse([])[0])
    assert (found.pace.warm_up, found.pace.batches, found.pace.shortest_seconds) == (101, 10, 12)
    assert found.load.conf["spark.sql.streaming.minBatchesToRetain"] == "10"


def test_a_way_that_fails_is_noted_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of measuring is not lost for one query."""

    def measured(lab: Any, driver: Any, spec: str, pace: Pace, tally: Tally, delay_ms: int) -> None:
        if "stock" in spec and tally.batches:
            raise RuntimeError("no batch\nat a.b")
        tally.batches += pace.batches
        tally.batch_ms += [10] * pace.batches
        tally.first_ms += [10]

    monkeypatch.setattr(lab_module, "measure", measured)
    lab: Any = SimpleNamespace(failed=[])
    driver: Any = None
    sides = [Contender(way, driver, lambda name: name, Pace(4)) for way in ("stock", "ours")]  # type: ignore[arg-type,return-value]
    found = list(lab_module.compare(lab, "here", sides, 2, 20))
    assert [(side.way, len(side.values)) for side in found] == [("ours", 8)]
    assert lab.failed == ["here, stock: no batch"]


@pytest.mark.spark
def test_a_case_that_was_saved_is_not_run_again(tmp_path: Path) -> None:
    """One that failed or was ended is; and the others go on when one fails."""
    done = list[str]()

    def measured(settings: Settings) -> object:
        done.append(settings["case"])
        yield Side("here", settings["case"], (1.0,))
        if done == ["a", "b"]:
            raise RuntimeError("in the middle")

    part = Part("growth", "", measured, (), ("a", "b", "c"), ("a",))  # type: ignore[arg-type]
    again = ["--results", str(tmp_path)]
    with pytest.raises(RuntimeError, match="b: in the middle"):
        part.run(again)
    assert done == ["a", "b", "c"]
    part.run(again)
    assert done == ["a", "b", "c", "b"]
    part.run([*again, "--quick"])
    assert len(done) == 4, "the whole one was saved"
    part.run([*again, "--cases", "c", "--fresh"])
    assert done[4:] == ["c"]
    with pytest.raises(SystemExit):
        part.run([*again, "--cases", "d"])


def test_a_read_of_an_appended_table_finds_all_batches_and_one_of_an_upserted_table_the_last() -> None:
    appended, upserted = (reads_of(Case(kind, 1000, 4)) for kind in ("append", "upsert"))
    assert [rows for _, rows in appended.values()] == [4000, 1, 10]
    assert [rows for _, rows in upserted.values()] == [1000, 1, 10]
    assert appended["range"] == upserted["range"] == ("value >= 3990", 10)


def test_the_peers_are_compared_at_every_number_of_tasks_and_rows(tmp_path: Path) -> None:
    """Who merges, or owns keys, shuffles by itself; the floors have the same shuffle before them."""
    cases = [*map(Case.of, load_part("peers").cases)]
    assert len(cases) == 8 and {case.partitions for case in cases} == {4, 64, 200}
    lab: Any = SimpleNamespace(place=Place(tmp_path, {"region": "x"}), home=tmp_path)
    for case in cases:
        specs = {side: spec_of(lab, case, side, "name") for side in SIDES[case.kind]}
        shuffled = {side for side, spec in specs.items() if "shuffled" in spec.kind}
        floors = {"noop", "empty-arrow"}
        assert shuffled == ({*SIDES["append"]} if case.kind == "append" else floors)
        assert all("table" in spec.options for side, spec in specs.items() if side not in floors)
        assert specs["ckpt-sink"].options.get("keyColumns", "") == ("key" if case.kind == "upsert" else "")


@pytest.mark.parametrize(("asked", "code"), [("--help", 0), ("--no-such", 2)])
@pytest.mark.parametrize("before", [[], ["report"], ["durability"]], ids=" ".join)
def test_help_and_wrong_arguments_measure_and_write_nothing(
    before: list[str], asked: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "write_pages", lambda: pytest.fail("pages were written"))
    try:
        assert program.main([*before, asked]) == code
    except SystemExit as ended:
        assert ended.code == code
