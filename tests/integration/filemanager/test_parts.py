"""Files above the connector's multipart size: several requests, and still one outcome."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JJavaError

from tests.integration.filemanager.jvm import Jvm, Manager, java_error
from tests.integration.filemanager.test_contract import EXISTS
from tests.support.servers.proxy import Fault, FaultProxy, Rule

CONTENT = bytes(range(256)) * (6 << 12)
"""6 MB: two parts of the least size that S3 allows."""
PARTS = {"fs.s3a.impl.disable.cache": "true", "fs.s3a.multipart.size": "5M"}
COMPLETE = ("POST", "uploadId=")


@pytest.fixture
def in_parts(jvm: Jvm, s3_root: str, proxy: FaultProxy) -> Manager:
    """A manager whose connector cuts files at 5 MB, of a store that has been probed."""
    manager = jvm.manager(s3_root, PARTS)
    manager.write("warm-up", b"x")
    proxy.clear()
    return manager


def test_a_file_in_parts_is_created_once(in_parts: Manager, proxy: FaultProxy) -> None:
    """The condition goes with the last request; the second creator's parts are given back."""
    in_parts.write("9.compact", CONTENT)
    assert proxy.count("PUT", "partNumber=") == 2 and proxy.count(*COMPLETE) == 1
    with pytest.raises(Py4JJavaError) as error:
        in_parts.write("9.compact", CONTENT[::-1])
    assert java_error(error.value) == EXISTS
    assert proxy.count("DELETE", "uploadId=") == 1
    assert in_parts.read("9.compact") == CONTENT


def test_a_lost_answer_to_the_last_request_is_success(in_parts: Manager, proxy: FaultProxy) -> None:
    """The upload is gone when it is asked for again, because it has become the file: ours."""
    proxy.add(Rule(Fault.LOSE_RESPONSE, *COMPLETE))
    in_parts.write("9.compact", CONTENT)
    assert in_parts.read("9.compact") == CONTENT


def test_a_lost_answer_does_not_make_anothers_parts_ours(
    jvm: Jvm, in_parts: Manager, proxy: FaultProxy
) -> None:
    """Refused, unheard: the other one's file is found all the same."""
    jvm.manager(in_parts.root).write("9.compact", b"the other one's")
    proxy.add(Rule(Fault.LOSE_RESPONSE, *COMPLETE))
    with pytest.raises(Py4JJavaError) as error:
        in_parts.write("9.compact", CONTENT)
    assert java_error(error.value) == EXISTS
    assert in_parts.read("9.compact") == b"the other one's"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_part_that_fails_fails_the_file(in_parts: Manager, proxy: FaultProxy, overwrite: bool) -> None:
    """Nothing is published, and what was uploaded of it is given back."""
    proxy.add(Rule(Fault.ERROR_403, method="PUT", contains="partNumber=2", times=None))
    with pytest.raises(Py4JJavaError) as error:
        in_parts.write("9.snapshot", CONTENT, overwrite=overwrite)
    assert java_error(error.value) == "java.nio.file.AccessDeniedException"
    assert proxy.count(*COMPLETE) == 0 and proxy.count("DELETE", "uploadId=") == 1
    proxy.clear()
    assert not in_parts.exists("9.snapshot")


@pytest.mark.parametrize("where", ["partNumber=1", "partNumber=2", "uploadId="])
def test_an_interrupted_upload_is_an_interruption(
    jvm: Jvm, in_parts: Manager, proxy: FaultProxy, where: str
) -> None:
    """Spark stops a query by interrupting its thread; nobody may take that for a written file."""
    method = "POST" if where == "uploadId=" else "PUT"
    proxy.add(Rule(Fault.STALL, method=method, contains=where, seconds=3))
    stream = in_parts.create("9.snapshot", overwrite=True)
    stream.write(bytearray(CONTENT))
    assert jvm.access.interruptedClose(stream, 1500) == "java.io.InterruptedIOException"
    assert jvm.access.reservedBytes() == 0
    if method == "PUT":
        assert proxy.count(*COMPLETE) == 0
        assert not in_parts.exists("9.snapshot")
