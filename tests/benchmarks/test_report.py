"""The report and the plot: pure functions of what was saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import by_hand, frame
from benchmarks.__main__ import main, plan
from benchmarks.by_hand import first_cause
from benchmarks.frame import QUICK, Runs, Side, load_part, load_runs, save_run
from benchmarks.report import (
    MET,
    MISSED,
    NOT_RUN,
    PARTS,
    RESULTS_PAGE,
    SINK_PAGE,
    SINK_PARTS,
    Aim,
    aim_table,
    cost_sides,
    cost_table,
    render,
    render_sink,
    requests_if_all_captured,
    side_tables,
    told_apart,
)
from benchmarks.report import judge as judge_parts
from tests.support.bench_rows import batches, run

REQUESTS_AIM = "requests a batch, stock over (d)"
SLOW, FAST = (600, 610, 620, 630), (100, 101, 102, 103)


def total(way: str, partitions: int, batch_ms: tuple[int, ...] = FAST, **changes: Any) -> Side:
    """A way in the file manager's query."""
    return batches(way, batch_ms, where=f"total, {partitions}, hdfs, 20 ms", **changes)


def judge(runs: Runs) -> list[Aim]:
    """The aims of everything beside the sink."""
    return judge_parts(runs, PARTS)


def verdicts(runs: Runs) -> dict[str, str]:
    return {found.text: found.verdict for found in judge(runs)}


def test_without_any_run_every_aim_and_every_part_is_said_to_be_not_run() -> None:
    """Nothing is invented."""
    assert {found.verdict for found in judge(Runs())} == {NOT_RUN}
    page = render(Runs())
    assert page.count("| not run |") == len(judge(Runs())) + len(PARTS)
    assert f"| {MET} |" not in page and f"| {MISSED} |" not in page


def test_an_aim_is_met_or_missed_by_the_ratio_of_one_run() -> None:
    met = Runs((run("side-by-side", batches("stock", SLOW), batches("ours", FAST)),))
    missed = Runs((run("side-by-side", batches("stock", (200, 201, 202, 203)), batches("ours", FAST)),))
    aim = "batch p50, stock over (c) our manager"
    assert verdicts(met)[aim] == MET and verdicts(missed)[aim] == MISSED
    assert verdicts(met)["batch p50, tuned over (c) our manager"] == NOT_RUN
    assert "- batch p50, stock over (c)" in render(missed) and "- batch p50, stock" not in render(met)


def test_sides_of_two_runs_are_never_compared() -> None:
    apart = Runs(
        (run("side-by-side", batches("stock", SLOW)), run("side-by-side", batches("ours", FAST), label="b"))
    )
    assert set(verdicts(apart).values()) == {NOT_RUN}


def test_other_delays_queries_and_partitions_do_not_count_for_an_aim() -> None:
    for where in ("windowed, 4, hdfs, 50 ms", "join, 4, hdfs, 20 ms", "windowed, 64, hdfs, 20 ms"):
        sides = batches("stock", SLOW, where=where), batches("ours", FAST, where=where)
        runs = Runs((run("side-by-side", *sides),))
        assert verdicts(runs)["batch p50, stock over (c) our manager"] == NOT_RUN, where


def test_requests_are_compared_by_batch() -> None:
    where = "windowed, 64, hdfs, 20 ms"
    stock = batches("stock", requests={"PUT": 500, "HEAD": 100}, where=where)
    ours = batches("ours", requests={"PUT": 34}, where=where)
    (found,) = [one for one in judge(Runs((run("side-by-side", stock, ours),))) if one.value is not None]
    assert found.value == pytest.approx(600 / 34) and found.verdict == MET


def test_a_way_that_made_no_request_at_all_has_reached_nothing() -> None:
    """No capture fell in the time that was measured."""
    runs = Runs((run("side-by-side", batches("stock"), batches("listener", requests={})),))
    assert verdicts(runs)[REQUESTS_AIM] == NOT_RUN


def test_a_side_without_a_single_batch_is_compared_with_nothing() -> None:
    """Every batch of a short run has compacted; the pages are written all the same."""
    sides = Side("upsert", "without"), Side("upsert", "with compaction", (10.0,))
    page = render_sink(Runs((run("compaction", *sides),)))
    assert "| upsert |  | 10 |" in page
    assert "| batch p50, with compaction over without | * | at most 1.5x | - | not run | - |" in page


def test_a_listener_that_slows_the_query_misses_its_aim() -> None:
    aim = "batch p50, with the listener over without"
    slowed = Runs((run("listener-cost", batches("disk", FAST), batches("listener", SLOW)),))
    equal = Runs((run("listener-cost", batches("disk", FAST), batches("listener", FAST)),))
    assert (verdicts(slowed)[aim], verdicts(equal)[aim]) == (MISSED, MET)
    (found,) = [one for one in judge(equal) if one.text == aim]
    assert found.detail == "within noise"


def test_a_ratio_of_times_is_shown_beside_what_local_disk_alone_would_give() -> None:
    """Where even no checkpoint at all would miss the aim, the machine was too busy to show it."""
    cells = (
        batches("alone", (200, 200, 200, 200)),
        batches("stock", (500, 500, 500, 500)),
        batches("ours", SLOW),
    )
    (found,) = [
        one for one in judge(Runs((run("side-by-side", *cells),))) if one.value and "p50" in one.text
    ]
    assert found.detail == "2.50x over local disk alone in the same run"


def test_the_file_manager_is_judged_by_its_own_query_and_run() -> None:
    """Against local disk, stock and tuned at 4 partitions, and against stock alone at 64."""
    ways = {"alone": (90,) * 4, "stock": SLOW, "tuned": (150,) * 4, "ours": FAST}
    found = [
        (one.text.removeprefix("file manager: "), one.where, one.verdict)
        for partitions in (4, 64)
        for one in judge(
            Runs(
                (run("file-manager", *(total(way, partitions, at) for way, at in ways.items())),),
            )
        )
        if one.value is not None
    ]
    small, large = "total, 4, hdfs, 20 ms", "total, 64, hdfs, 20 ms"
    assert found == [
        ("batch p50, ours over alone", small, MET),
        ("batch p50, stock over ours", small, MET),
        ("batch p50, tuned over ours", small, MISSED),
        ("requests a batch of ours", small, MET),
        ("batch p50, stock over ours", large, MET),
        ("requests a batch of ours", large, MET),
    ]


@pytest.mark.parametrize(
    ("requests", "verdict"),
    [
        ({"PUT": 6, "HEAD": 2}, MET),
        ({"PUT": 6.25, "HEAD": 2.25, "LIST": 2}, MET),
        ({"PUT": 6, "HEAD": 3}, MISSED),
    ],
    ids=["exact", "cut batches and maintenance", "one too many"],
)
def test_requests_of_the_file_manager_are_those_of_whole_batches(
    requests: dict[str, int], verdict: str
) -> None:
    (found,) = [
        one
        for one in judge(Runs((run("file-manager", total("ours", 4, requests=requests)),)))
        if one.value is not None
    ]
    assert (found.bound, found.verdict) == (8.0, verdict)
    assert f"at most 8 | {found.value:g} | {verdict} |" in "\n".join(aim_table([found]))


def test_ways_are_shown_beside_ours_in_every_situation_of_every_part() -> None:
    """Parts of one title share a table, and a situation says of which it is."""
    far = "windowed, 4, hdfs, 50 ms"
    first = run("side-by-side", batches("alone"), batches("ours", FAST), batches("ours", where=far))
    page = render(Runs((first, run("file-manager", batches("ours", FAST)))))
    here = "windowed, 4, hdfs, 20 ms, ms"
    assert f"| side-by-side: {here} | 100 (0.99x); 2 requests | 102; 2 requests |" in page
    assert f"| side-by-side: {far}, ms |  | 100; 2 requests |" in page
    assert f"| file-manager: {here} |  | 102; 2 requests |" in page


def test_restores_are_judged_by_size() -> None:
    rows = [
        Side(f"{size} MB, s3", how, seconds, "s")
        for size, ours in ((100, 1.0), (1000, 2.0))
        for how, seconds in (("restore", (ours,) * 4), ("raw download", (0.9,) * 4))
    ]
    found = [one for one in judge(Runs((run("restore", *rows),))) if one.value is not None]
    assert [(one.verdict, round(one.value or 0, 2)) for one in found] == [(MET, 0.9), (MISSED, 0.45)]


def test_a_missed_number_of_requests_is_explained_by_the_verbs_and_by_what_a_capture_takes() -> None:
    """The listener's aim is out of reach with one capture a batch, and met by captures of several."""
    stock = batches("stock", requests={"HEAD": 100, "PUT": 20})
    each = batches(
        "listener", requests={"PUT": 3, "GET": 1}, counts={"s lag": 0.1}, captures=1, captured_batches=4
    )
    together = batches(
        "listener",
        requests={"PUT": 0.75, "GET": 0.25},
        counts={"s lag": 1.0},
        captures=1,
        captured_batches=4,
    )
    found = [Runs((run("side-by-side", stock, listener),)) for listener in (each, together)]
    assert [verdicts(runs)[REQUESTS_AIM] for runs in found] == [MISSED, MET]
    missed, met = map(render, found)
    assert "(a) stock makes 100.0 HEAD, 20.0 PUT, one of (d) listener makes 3.0 PUT, 1.0 GET" in missed
    assert "at most 30.0x" in missed and "durable after 1.00 s (p50), 1 captures of 4 batches" in met


def test_a_slow_restore_is_explained_by_what_hashing_and_the_disk_cost_a_download() -> None:
    seconds = {"restore": 2.0, "raw download": 1.0, "raw download, hashed and on the disk": 1.9}
    rows = [Side("100 MB, s3", how, (took,) * 4, "s") for how, took in seconds.items()]
    page = render(Runs((run("restore", *rows),)))
    assert "restore 2 s, raw download 1 s, raw download, hashed and on the disk 1.9 s." in page


@pytest.mark.parametrize(
    ("batches", "wrong", "expected"),
    [
        ([7, 8], 0, "goes on"),
        ([7], 1, "has wrong results"),
        ([0, 1], 0, "begins at batch 0"),
        ([], 0, "does not start"),
    ],
)
def test_a_copy_is_good_only_if_the_query_goes_on_from_it(
    batches: list[int], wrong: int, expected: str
) -> None:
    assert by_hand.judge(batches, wrong).startswith(expected)


def test_samples_are_told_apart_when_their_middle_halves_do_not_overlap() -> None:
    assert told_apart([1, 2, 3, 4], [10, 11, 12, 13]) and told_apart([10, 11, 12, 13], [1, 2, 3, 4])
    assert not told_apart([1, 2, 3, 4], [2, 3, 4, 5])
    assert told_apart([1, 2, 3], [10, 11, 12]) and not told_apart([1, 2, 11], [10, 12, 13])
    assert not told_apart([1], [10, 11, 12]), "one value says nothing"


def test_the_page_has_commands_machine_ratios_and_what_was_not_run() -> None:
    found = run(
        "side-by-side", batches("stock", SLOW), batches("ours", FAST, requests={"HEAD": 2, "PUT": 6})
    )
    page = render(Runs((found,)))
    assert found.command in page and "made up, 2 cores" in page and "2 rows" in page
    assert "| 615 (6.06x); 2 requests | 102; 8 requests |" in page
    assert "| restore | not run |" in page
    assert "; then it failed: for a reason" in render(Runs((replace(found, failed="for a reason"),)))


def test_the_cause_of_a_failed_start_is_one_line_without_paths_of_this_machine() -> None:
    text = "q ended: [FAILED]\n\nCaused by: file:/home/me/state/9.delta does not exist\n at a.b(C.scala)"
    assert first_cause(text) == "Caused by: file:... does not exist"
    assert first_cause("only this") == "only this" and first_cause("") == "no message"


def test_sides_are_shown_with_their_ratio_to_the_first_and_with_what_was_counted() -> None:
    """Bars are escaped; sides without a time show what they counted; other ways are another table."""
    lines = side_tables(
        [
            Side("copies", "rclone", (2.0, 4.0), "s", {"files": 10, "no | file": 1}),
            Side("copies", "listener", (1.5, 1.5), "s"),
            Side("contests", "stock", counts={"wrong batches": 2}),
        ],
        "what",
    )
    assert lines == [
        "| what | rclone | (d) listener |",
        "| --- | --- | --- |",
        "| copies, s | 3; 10 files; 1 no \\| file | 1.5 (0.50x) |",
        "",
        "| what | (a) stock |",
        "| --- | --- |",
        "| contests | 2 wrong batches |",
    ]


def test_an_aim_in_many_situations_is_judged_by_the_worst() -> None:
    """Wall time or processor time, whichever is nearer, where the aim says so."""
    sides = [
        Side(f"s3 put {size}", way, (took,), counts={"cpu ms": cpu})
        for size, bare, cpu in (("1", 1.0, 0.5), ("2", 0.8, 0.95), ("3", 0.8, 0.85), ("4", 2.0, 1.0))
        for way, took, cpu in (("bare SDK", bare, cpu), ("ours", 1.0, 1.0))
    ]
    (found,) = [one for one in judge(Runs((run("stores", *sides),))) if one.value is not None]
    assert (found.where, found.value, found.verdict) == ("s3 put 3", 0.85, MISSED)
    assert found.detail == "the worst of 4, of which 3 reach it"


@pytest.mark.parametrize(("took", "verdict"), [((105, 106, 104, 107), MET), ((120, 121, 119, 122), MISSED)])
def test_the_cost_of_state_is_judged_and_its_noise_is_told(took: tuple[float, ...], verdict: str) -> None:
    """Middle halves that overlap are within noise, whatever the ratio."""
    off, on = Side("keys", "rows only", (100, 101, 99, 100)), Side("keys", "sink", took)
    (found,) = [one for one in judge(Runs((run("coordinated", off, on),))) if one.value is not None]
    assert (found.verdict, found.detail) == (verdict, "")
    (same,) = [
        one for one in judge(Runs((run("coordinated", off, replace(off, way="sink")),))) if one.value
    ]
    assert same.detail == "within noise"


def test_costs_count_a_checkpoint_for_every_batch() -> None:
    """The listener took two batches together; at one batch in 10 s it would not."""
    assert requests_if_all_captured(batches("listener", captures=5, captured_batches=10)) == {"PUT": 4.0}
    assert requests_if_all_captured(batches("stock")) == {"PUT": 2.0}


def test_costs_are_of_one_situation_of_one_run() -> None:
    hdfs, changelog = "windowed, 64, hdfs, 20 ms", "windowed, 64, changelog, 20 ms"
    first = run("side-by-side", batches("stock", where=hdfs), batches("ours", where=changelog))
    whole = [batches(way, where="windowed, 64, hdfs, 0 ms") for way in ("stock", "tuned", "ours")]
    second = run("side-by-side", *whole, label="b")
    assert cost_sides([first, second], 64) == whole
    assert cost_sides([first, second], 128) == []
    lines = cost_table(whole, 10.0)
    assert "| (a) stock | 2.0 | 100.00 MB | $0.0865 | $0.0865 | $0.0865 |" in lines


@pytest.mark.parametrize("name", frame.PARTS)
def test_every_part_is_found_by_its_name(name: str) -> None:
    assert load_part(name).name == name


def test_a_whole_run_has_every_part_but_those_that_are_run_alone() -> None:
    """A quick one has a case of the peers, whatever was saved."""
    names = [name for name, *_ in plan(quick=False)]
    alone = {"file-manager", "peers", "peer-reads", "peer-growth"}
    assert {*names} == {*PARTS, *SINK_PARTS} - alone and alone <= {*frame.PARTS}
    assert ["peers", "--fresh", "--quick"] in plan(quick=True)


def test_a_part_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restores"]) == 2
    assert "side-by-side" in capsys.readouterr().err


def test_a_quick_run_counts_until_the_whole_one_is_there(tmp_path: Path) -> None:
    side = Side("case", "ckpt-sink", (1.0,))
    save_run(run("peers", side, label=f"a{QUICK}"), tmp_path)
    save_run(replace(run("peers", side, label="b"), failed="in the middle"), tmp_path)
    save_run(run("peers", side, label=f"b{QUICK}"), tmp_path)
    assert {one.label for one in load_runs(tmp_path).all} == {"a-quick", "b", "b-quick"}
    save_run(run("peers", side, label="b"), tmp_path)
    assert {one.label for one in load_runs(tmp_path).all} == {"a-quick", "b"}


def test_the_page_in_the_repository_is_what_the_saved_rows_say() -> None:
    """No figure was typed, and none is older than the rows."""
    runs = load_runs()
    assert RESULTS_PAGE.read_text() == render(runs)
    assert SINK_PAGE.read_text() == render_sink(runs)


def test_the_page_of_peers_says_where_the_sink_loses_and_why() -> None:
    """Its aims are on that page alone."""
    where = "append, 10,000 rows, 64 partitions"
    sides = [Side(where, "ckpt-sink", (10.0,), counts={"requests": 8}), Side(where, "iceberg", (4.0,))]
    runs = Runs((run("peers", *sides, label="append-10000-64"),))
    page = render_sink(runs)
    assert f"| {where}, ms | 10; 8 requests | 4 (0.40x) |" in page
    assert f"- batch p50, ckpt-sink over iceberg, {where}: 2.50x, not 0.5x; every task" in page
    assert "| requests a batch | append, 10,000 rows, 64 partitions | at most 8 | 8 | met |" in page
    assert f"- {where}: iceberg takes 0.40x of the time of ckpt-sink." in page
    assert where not in render(runs)
