"""What came out of a suite, and what to say about all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.spark_suites.excepted import find_excepted

NOT_RUN = ("ignored", "canceled")


@dataclass(frozen=True)
class Case:
    """One test: passed, failed, ignored (by Spark) or canceled (by itself)."""

    test: str
    outcome: str
    message: str = ""


@dataclass(frozen=True)
class SuiteResult:
    """One suite in one setting."""

    name: str
    setting: str
    seconds: float
    cases: Sequence[Case]
    problem: str = ""
    """Why the suite did not come to its end; empty if it did."""

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.name if self.setting == "manager" else f"{self.name} ({self.setting})"


@dataclass(frozen=True)
class Verdict:
    """What holds for a whole run."""

    passed: int
    failures: Sequence[str]
    """Tests that failed and are not excepted, suites without an end, checks that did not hold."""
    excepted: Sequence[str]
    """Tests that failed as expected, with the reason."""
    surprises: Sequence[str]
    """Excepted tests that passed: their exception may go."""
    not_run: int

    @property
    def summary(self) -> str:
        """The closing line."""
        line = f"{self.passed} passed, {len(self.failures)} failed"
        line += f", {len(self.excepted)} excepted" if self.excepted else ""
        return line + (f", {self.not_run} not run" if self.not_run else "")


@dataclass
class _Lists:
    failures: list[str] = field(default_factory=list)
    excepted: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)


def judge(results: Sequence[SuiteResult], problems: Sequence[str], *, as_root: bool) -> Verdict:
    """Compare results with the exceptions; ``problems`` are failures that belong to no test."""
    lists = _Lists()
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(case.outcome for case in result.cases)
        for case in result.cases:
            _sort_in(result, case, lists, as_root)
        if result.problem:
            lists.failures.append(f"{result.label}: {result.problem}")
    return Verdict(
        passed=counts["passed"],
        failures=[*lists.failures, *problems],
        excepted=lists.excepted,
        surprises=lists.surprises,
        not_run=sum(counts[outcome] for outcome in NOT_RUN),
    )


def _sort_in(result: SuiteResult, case: Case, lists: _Lists, as_root: bool) -> None:
    name = f"{result.label}: {case.test}"
    known = find_excepted(result.name, case.test, as_root=as_root)
    if case.outcome == "failed" and known is None:
        lists.failures.append(f"{name}\n{case.message}")
    elif case.outcome == "failed" and known is not None:
        lists.excepted.append(f"{name}: {known.reason}")
    elif case.outcome == "passed" and known is not None and not known.is_race:
        lists.surprises.append(name)


def describe(result: SuiteResult) -> str:
    """The line of a suite that has ended."""
    counts = Counter(case.outcome for case in result.cases)
    not_run = sum(counts[outcome] for outcome in NOT_RUN)
    line = f"{result.label}: {counts['passed']} passed, {counts['failed']} failed"
    line += f", {not_run} not run" if not_run else ""
    return f"{line}, {result.seconds:.0f} s" + (
        f" ({result.problem.splitlines()[0]})" if result.problem else ""
    )
