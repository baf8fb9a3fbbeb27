"""S3 when requests go wrong: see ``fault_matrix`` for what must hold whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.fault_matrix import CASES, RETRIED_CASES, VERBS, Matrix, Verb, case_id
from tests.support.servers.proxy import Fault, FaultProxy
from tests.support.servers.s3 import S3Server

CUT_VERBS = ("create", "swap", "read", "get-range", "head", "list", "delete-many", "copy")
CUT_STEPS = 40


@pytest.fixture(scope="module")
def matrix(s3_server: S3Server) -> Iterator[Matrix]:
    with FaultProxy(s3_server.endpoint) as proxy:
        yield Matrix(s3_server, proxy)


@pytest.mark.parametrize(("verb", "fault"), CASES, ids=case_id)
def test_one_attempt_tells_the_truth(matrix: Matrix, verb: Verb, fault: Fault) -> None:
    """The bare store: one broken request gives a true answer or an error that fits what happened."""
    matrix.run(verb, fault, retrying=False)


@pytest.mark.parametrize(("verb", "fault"), RETRIED_CASES, ids=case_id)
def test_retrying_survives_one_fault(matrix: Matrix, verb: Verb, fault: Fault) -> None:
    """Behind the retry wrapper the same fault is not seen, unless the outcome cannot be known."""
    matrix.run(verb, fault, retrying=True)


@pytest.mark.parametrize("verb", VERBS, ids=case_id)
def test_a_denied_request_is_not_repeated(matrix: Matrix, verb: Verb) -> None:
    """403 is Denied with a hint, after one request, and nothing was done."""
    matrix.run_denied(verb)


# What boto makes of half a date: a warning, or an error after which it forgets to close its connection.
@pytest.mark.filterwarnings("ignore:tzname", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.name in CUT_VERBS], ids=case_id)
def test_a_head_that_ends_anywhere_is_no_answer(matrix: Matrix, verb: Verb) -> None:
    """Python's HTTP client takes a head that ends early for a whole one: fields may be missing or cut."""
    for step in range(1, CUT_STEPS):
        matrix.run_cut(verb, step / CUT_STEPS)
