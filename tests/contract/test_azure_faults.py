"""Azure when requests go wrong: see ``fault_matrix`` for what must hold whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.store.azure.azure_store import AzureStore
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.settings import AzureSettings
from tests.contract.fault_matrix import (
    CASES,
    RETRIED_CASES,
    TIMEOUT_SECONDS,
    VERBS,
    Matrix,
    Verb,
    case_id,
)
from tests.support.servers.azurite import CONTAINER
from tests.support.servers.launch import AzureServer
from tests.support.servers.proxy import Fault, FaultProxy

MIB = 1024 * 1024
CUT_VERBS = ("put", "create", "swap", "read", "get-range", "head", "list", "delete")
CUT_STEPS = 12
BLOCK_CASES = [case for case in RETRIED_CASES if case[0].name == "put-large"]


class BlocksMatrix(Matrix):
    """The matrix for large bodies that go up in blocks."""

    def _stores(self) -> tuple[ObjectStore, ObjectStore]:
        assert isinstance(self._server, AzureServer)
        prefix, server = SYSTEM_CLOCK.uuid7(), self._server

        def opened(endpoint: str) -> AzureStore:
            settings = AzureSettings(
                CONTAINER,
                prefix,
                connection_string=server.connection_string_at(endpoint),
                part_size_bytes=5 * MIB,
                timeout_seconds=TIMEOUT_SECONDS,
            )
            return AzureStore(settings, single_put_bytes=MIB)

        return opened(server.endpoint), opened(self._proxy.endpoint)


@pytest.fixture(scope="module")
def matrix(az_server: AzureServer) -> Iterator[Matrix]:
    with FaultProxy(az_server.endpoint) as proxy:
        yield Matrix(az_server, proxy)


@pytest.fixture(scope="module")
def blocks_matrix(az_server: AzureServer) -> Iterator[Matrix]:
    with FaultProxy(az_server.endpoint) as proxy:
        yield BlocksMatrix(az_server, proxy)


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


@pytest.mark.parametrize("retrying", [False, True], ids=["once", "retrying"])
@pytest.mark.parametrize(("verb", "fault"), BLOCK_CASES, ids=case_id)
def test_an_upload_in_blocks_tells_the_truth(
    blocks_matrix: Matrix, verb: Verb, fault: Fault, retrying: bool
) -> None:
    """Each block and the commit broken in turn: the object is there whole, or not at all."""
    blocks_matrix.run(verb, fault, retrying=retrying)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.name in CUT_VERBS], ids=case_id)
def test_a_head_that_ends_anywhere_is_no_answer(matrix: Matrix, verb: Verb) -> None:
    """Whichever header is missing or cut, what is returned is true."""
    for step in range(1, CUT_STEPS):
        matrix.run_cut(verb, step / CUT_STEPS)
