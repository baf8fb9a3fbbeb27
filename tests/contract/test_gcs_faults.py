"""GCS when requests go wrong: see ``fault_matrix`` for what must hold whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.gcs.gcs_store import GcsStore
from pyspark_checkpoint.store.settings import GcsSettings
from tests.contract.fault_matrix import (
    CASES,
    RETRIED_CASES,
    TIMEOUT_SECONDS,
    VERBS,
    Matrix,
    Verb,
    case_id,
)
from tests.support.servers.launch import GcsServer
from tests.support.servers.proxy import Fault, FaultProxy
from tests.support.servers.strict_gcs import BUCKET, StrictGcs, strict_gcs

MIB = 1024 * 1024
CUT_VERBS = ("put", "create", "swap", "read", "get-range", "head", "list", "delete")
CUT_STEPS = 12
CONDITIONAL_COPIES = ("copy-new", "copy-lost")


def kept_by_emulator(verb: Verb, fault: Fault) -> bool:
    """Whether fake-gcs-server can answer right: it ignores conditions on copies, and checksums."""
    return verb.name not in CONDITIONAL_COPIES and fault is not Fault.FLIP_REQUEST


EMULATOR_CASES = [case for case in CASES if kept_by_emulator(*case)]
EMULATOR_RETRIED_CASES = [case for case in RETRIED_CASES if kept_by_emulator(*case)]
STRICT_CASES = [case for case in RETRIED_CASES if not kept_by_emulator(*case)]
"""What the emulator does not keep runs on a strict fake of our own."""
PARTS_CASES = [case for case in RETRIED_CASES if case[0].name == "put-large"]


class PartsMatrix(Matrix):
    """The matrix for large bodies that go up in parts through a session, on the strict fake."""

    def _stores(self) -> tuple[ObjectStore, ObjectStore]:
        prefix = SYSTEM_CLOCK.uuid7()

        def opened(endpoint: str) -> GcsStore:
            settings = GcsSettings(
                BUCKET,
                prefix,
                endpoint=endpoint,
                anonymous=True,
                part_size_bytes=5 * MIB,
                timeout_seconds=TIMEOUT_SECONDS,
            )
            return GcsStore(settings, single_request_bytes=MIB)

        return opened(self._server.endpoint), opened(self._proxy.endpoint)


@pytest.fixture(scope="module")
def matrix(gs_server: GcsServer) -> Iterator[Matrix]:
    with FaultProxy(gs_server.endpoint) as proxy:
        yield Matrix(gs_server, proxy)


@pytest.fixture(scope="module")
def strict_server() -> Iterator[StrictGcs]:
    with strict_gcs() as server:
        server.rewrite_step_bytes = 15_000  # a copy takes two requests, each of which is broken
        yield server


@pytest.fixture(scope="module")
def strict_matrix(strict_server: StrictGcs) -> Iterator[Matrix]:
    with FaultProxy(strict_server.endpoint) as proxy:
        yield Matrix(strict_server, proxy)


@pytest.fixture(scope="module")
def parts_matrix(strict_server: StrictGcs) -> Iterator[Matrix]:
    with FaultProxy(strict_server.endpoint) as proxy:
        yield PartsMatrix(strict_server, proxy)


@pytest.mark.parametrize(("verb", "fault"), EMULATOR_CASES, ids=case_id)
def test_one_attempt_tells_the_truth(matrix: Matrix, verb: Verb, fault: Fault) -> None:
    """The bare store: one broken request gives a true answer or an error that fits what happened."""
    matrix.run(verb, fault, retrying=False)


@pytest.mark.parametrize(("verb", "fault"), EMULATOR_RETRIED_CASES, ids=case_id)
def test_retrying_survives_one_fault(matrix: Matrix, verb: Verb, fault: Fault) -> None:
    """Behind the retry wrapper the same fault is not seen, unless the outcome cannot be known."""
    matrix.run(verb, fault, retrying=True)


@pytest.mark.parametrize("verb", [v for v in VERBS if v.name not in CONDITIONAL_COPIES], ids=case_id)
def test_a_denied_request_is_not_repeated(matrix: Matrix, verb: Verb) -> None:
    """403 is Denied with a hint, after one request, and nothing was done."""
    matrix.run_denied(verb)


@pytest.mark.parametrize("retrying", [False, True], ids=["once", "retrying"])
@pytest.mark.parametrize(("verb", "fault"), STRICT_CASES, ids=case_id)
def test_what_the_emulator_does_not_keep_tells_the_truth(
    strict_matrix: Matrix, verb: Verb, fault: Fault, retrying: bool
) -> None:
    """Copies with a condition, and bytes flipped on the way, with and without the retry wrapper."""
    strict_matrix.run(verb, fault, retrying=retrying)


@pytest.mark.parametrize("retrying", [False, True], ids=["once", "retrying"])
@pytest.mark.parametrize(("verb", "fault"), PARTS_CASES, ids=case_id)
def test_an_upload_in_parts_tells_the_truth(
    parts_matrix: Matrix, strict_server: StrictGcs, verb: Verb, fault: Fault, retrying: bool
) -> None:
    """Each request of a resumable upload broken in turn; no session is left behind but a lost one."""
    parts_matrix.run(verb, fault, retrying=retrying)
    # When the answer that names the session is lost, nobody can cancel it: Google drops it in a week.
    unnamed = fault in (Fault.LOSE_RESPONSE, Fault.LATE_EFFECT, Fault.CUT_HEAD)
    assert len(strict_server.sessions) <= int(unnamed)
    strict_server.sessions.clear()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.name in CUT_VERBS], ids=case_id)
def test_a_head_that_ends_anywhere_is_no_answer(matrix: Matrix, verb: Verb) -> None:
    """Whichever header is missing or cut, what is returned is true."""
    for step in range(1, CUT_STEPS):
        matrix.run_cut(verb, step / CUT_STEPS)
