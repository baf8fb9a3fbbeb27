"""How the results of Spark's own suites are read and judged; nothing here starts a JVM."""

from __future__ import annotations

from pathlib import Path

from tests.spark_suites.events import MARK, Event, parse_event
from tests.spark_suites.excepted import EXCEPTED
from tests.spark_suites.results import Case, SuiteResult, describe, judge
from tests.spark_suites.suites import MANAGER, PLUGIN, SUITES, choose, deal

UNCATEGORIZED = EXCEPTED[0]
BY_ROOT = next(excepted for excepted in EXCEPTED if excepted.only_as_root)


def result(name: str, *cases: Case, problem: str = "") -> SuiteResult:
    return SuiteResult(name, MANAGER, 2.0, cases, problem)


def test_an_event_is_found_behind_what_a_test_has_printed() -> None:
    line = f'half a line{MARK}{{"kind": "passed", "suite": "a.B", "test": "c \\u00e9", "message": ""}}\n'
    assert parse_event(line) == Event("passed", "a.B", "c é")
    assert parse_event("a test prints this\n") is None
    assert parse_event(f'{MARK}{{"kind": "pas\n') is None


def test_a_failure_that_is_not_listed_fails_the_run() -> None:
    verdict = judge([result("A", Case("x", "passed"), Case("y", "failed", "why"))], [], as_root=True)
    assert (verdict.passed, verdict.failures) == (1, ["A: y\nwhy"])
    assert verdict.summary == "1 passed, 1 failed"


def test_an_excepted_failure_is_named_with_its_reason_and_fails_nothing() -> None:
    case = Case(UNCATEGORIZED.test, "failed", "why")
    verdict = judge([result(UNCATEGORIZED.suite, case)], [], as_root=False)
    assert not verdict.failures
    assert [UNCATEGORIZED.reason in text for text in verdict.excepted] == [True]


def test_an_excepted_test_that_passes_is_reported() -> None:
    case = Case(UNCATEGORIZED.test, "passed")
    verdict = judge([result(UNCATEGORIZED.suite, case)], [], as_root=False)
    assert len(verdict.surprises) == 1
    assert not verdict.failures


def test_permissions_are_an_excuse_for_root_alone() -> None:
    results = [result(BY_ROOT.suite, Case(BY_ROOT.test, "failed"))]
    assert not judge(results, [], as_root=True).failures
    assert judge(results, [], as_root=False).failures


def test_a_suite_without_an_end_fails_whatever_has_passed() -> None:
    verdict = judge([result("A", Case("x", "passed"), problem="aborted")], [], as_root=True)
    assert verdict.failures == ["A: aborted"]


def test_a_failed_check_fails_the_run_and_ignored_tests_do_not() -> None:
    verdict = judge([result("A", Case("x", "ignored"))], ["ckpt verify"], as_root=True)
    assert verdict.summary == "0 passed, 1 failed, 1 not run"
    assert describe(result("A", Case("x", "ignored"))) == "A: 0 passed, 0 failed, 1 not run, 2 s"


def test_every_exception_has_a_reason_and_a_suite_that_runs() -> None:
    assert all(excepted.reason for excepted in EXCEPTED)
    assert {excepted.suite for excepted in EXCEPTED} <= {suite.name for suite in SUITES}


def test_suites_are_dealt_to_lanes_each_once_and_by_setting() -> None:
    for lanes in (1, 2):
        shares = deal(SUITES, lanes)
        dealt = [suite for share in shares for suite in share]
        assert sorted(dealt, key=SUITES.index) == list(SUITES)
        assert all(len({suite.setting for suite in share}) == 1 for share in shares)


def test_four_suites_run_with_the_plugin_and_the_quick_ones_have_both_contracts() -> None:
    assert len([suite for suite in SUITES if suite.setting == PLUGIN]) == 4
    quick = {suite.name for suite in choose([], quick=True)}
    assert {"LocalContractSuite", "S3aContractSuite"} <= quick
    assert sum(suite.seconds for suite in choose([], quick=True)) <= 200


def test_the_page_has_every_exception_and_no_other() -> None:
    page = (Path(__file__).parents[1] / "docs" / "spark-tests.md").read_text()
    rows = page.partition("## Excepted tests")[2].splitlines()[4:]
    named = [tuple(cell.strip(" `") for cell in row.split("|")[1:3]) for row in rows if row]
    assert named == [(excepted.suite, excepted.test) for excepted in EXCEPTED]
