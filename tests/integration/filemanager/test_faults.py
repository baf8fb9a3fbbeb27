"""What the manager makes of a store that answers late, wrongly or not at all."""

from __future__ import annotations

import time

import pytest
from py4j.protocol import Py4JJavaError

from tests.integration.filemanager.jvm import Jvm, Manager, java_error
from tests.integration.filemanager.test_contract import EXISTS
from tests.support.servers.proxy import Fault, FaultProxy, Rule


@pytest.fixture(autouse=True)
def _probed(s3_manager: Manager, proxy: FaultProxy) -> None:
    """The store has been probed: the requests of a test are those of its own files."""
    s3_manager.write("warm-up", b"x")
    proxy.clear()


def test_a_lost_answer_to_our_own_create_is_success(s3_manager: Manager, proxy: FaultProxy) -> None:
    """The connector asks again and is refused, because the first attempt had landed: ours."""
    proxy.add(Rule(Fault.LOSE_RESPONSE, method="PUT", contains="offsets/0"))
    s3_manager.write("offsets/0", b"ours")
    assert [r.status for r in proxy.requests if r.method == "PUT"] == [0, 412]
    assert proxy.count("HEAD", "offsets/0") == 1
    assert s3_manager.read("offsets/0") == b"ours"


def test_a_lost_answer_does_not_make_anothers_file_ours(
    jvm: Jvm, s3_manager: Manager, proxy: FaultProxy
) -> None:
    """Two drivers write the same bytes; the one that came second is told so, answer or not."""
    jvm.manager(s3_manager.root).write("offsets/0", b"the same bytes")
    proxy.add(Rule(Fault.LOSE_RESPONSE, method="PUT", contains="offsets/0"))
    with pytest.raises(Py4JJavaError) as error:
        s3_manager.write("offsets/0", b"the same bytes")
    assert java_error(error.value) == EXISTS
    assert "exists already: written by" in str(error.value.java_exception.getMessage())


def test_a_request_that_lands_late_does_no_harm(s3_manager: Manager, proxy: FaultProxy) -> None:
    """The first attempt arrives after its repetition: it is refused, or it is the same file."""
    proxy.add(Rule(Fault.LATE_EFFECT, method="PUT", contains="offsets/0", seconds=0.5))
    s3_manager.write("offsets/0", b"ours")
    assert s3_manager.read("offsets/0") == b"ours"


def test_a_busy_store_is_asked_again(s3_manager: Manager, proxy: FaultProxy) -> None:
    """503, then success: one file, no error."""
    proxy.add(Rule(Fault.ERROR_503, method="PUT", contains="commits/0", times=2, retry_after_seconds=0))
    s3_manager.write("commits/0", b"done")
    assert s3_manager.read("commits/0") == b"done"
    assert proxy.count("PUT", "commits/0") == 3


def test_a_conflict_in_flight_is_asked_again(s3_manager: Manager, proxy: FaultProxy) -> None:
    """409 says that another request for the name was under way: neither success nor a concurrent query."""
    proxy.add(Rule(Fault.ERROR_409, method="PUT", contains="commits/0", times=3))
    s3_manager.write("commits/0", b"done")
    assert s3_manager.read("commits/0") == b"done"
    proxy.add(Rule(Fault.ERROR_409, method="PUT", contains="commits/0", times=1))
    with pytest.raises(Py4JJavaError) as error:
        s3_manager.write("commits/0", b"again")
    assert java_error(error.value) == EXISTS
    proxy.add(Rule(Fault.ERROR_409, method="PUT", contains="commits/1", times=None))
    with pytest.raises(Py4JJavaError) as error:
        s3_manager.write("commits/1", b"never")
    assert "409" in str(error.value.java_exception.getMessage())


def test_a_file_whose_writer_cannot_be_read_is_an_error(s3_manager: Manager, proxy: FaultProxy) -> None:
    """Refused, and the HEAD that would tell whose it is denied: not ours, and not said to be another's."""
    proxy.add(Rule(Fault.LOSE_RESPONSE, method="PUT", contains="offsets/0"))
    proxy.add(Rule(Fault.ERROR_403, method="HEAD", contains="offsets/0", times=None))
    with pytest.raises(Py4JJavaError) as error:
        s3_manager.write("offsets/0", b"x")
    assert java_error(error.value) == "java.io.IOException"
    assert "who wrote it cannot be read" in str(error.value.java_exception.getMessage())


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_write_is_an_interruption(
    jvm: Jvm, s3_manager: Manager, proxy: FaultProxy, overwrite: bool
) -> None:
    """Spark stops a query by interrupting its thread, and takes nothing else for a stop."""
    proxy.add(Rule(Fault.STALL, method="PUT", contains="7.file", seconds=3))
    stream = s3_manager.create("7.file", overwrite=overwrite)
    stream.write(bytearray(b"x"))
    assert jvm.access.interruptedClose(stream, 1000) == "java.io.InterruptedIOException"
    assert jvm.access.reservedBytes() == 0


def test_a_stop_while_the_writer_is_looked_up_is_an_interruption(
    jvm: Jvm, s3_manager: Manager, proxy: FaultProxy
) -> None:
    """The query is told to stop between the refused create and the HEAD that tells whose the file is."""
    proxy.add(Rule(Fault.LOSE_RESPONSE, method="PUT", contains="offsets/0"))
    proxy.add(Rule(Fault.STALL, method="HEAD", contains="offsets/0", seconds=8))
    stream = s3_manager.create("offsets/0")
    stream.write(bytearray(b"x"))
    assert jvm.access.interruptedClose(stream, 3000) == "java.io.InterruptedIOException"
    assert jvm.access.reservedBytes() == 0


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_denied_write_is_an_error(s3_manager: Manager, proxy: FaultProxy, overwrite: bool) -> None:
    """403 reaches Spark as what it is, and nothing is written."""
    proxy.add(Rule(Fault.ERROR_403, method="PUT", times=None))
    with pytest.raises(Py4JJavaError) as error:
        s3_manager.write("commits/0", b"x", overwrite=overwrite)
    assert java_error(error.value) == "java.nio.file.AccessDeniedException"
    proxy.clear()
    assert not s3_manager.exists("commits/0")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_store_that_is_gone_is_an_error(s3_manager: Manager, proxy: FaultProxy, overwrite: bool) -> None:
    """A write that never gets an answer is a failed write, not a concurrent query."""
    proxy.add(Rule(Fault.RESET, contains="5.delta", times=None))
    with pytest.raises(Py4JJavaError) as error:
        s3_manager.write("5.delta", b"x", overwrite=overwrite)
    assert java_error(error.value) not in (EXISTS, "java.io.FileNotFoundException")
    proxy.clear()
    assert not s3_manager.exists("5.delta")


def test_a_store_that_is_gone_does_not_look_empty(s3_manager: Manager, proxy: FaultProxy) -> None:
    """Failing to look is an error: Spark would start over if it were told that nothing is there."""
    proxy.add(Rule(Fault.ERROR_403, times=None))
    for look in (
        lambda: s3_manager.exists("offsets/0"),
        lambda: s3_manager.exists("offsets"),
        lambda: s3_manager.names("offsets"),
        lambda: s3_manager.read("offsets/0"),
    ):
        with pytest.raises(Py4JJavaError) as error:
            look()
        assert java_error(error.value) == "java.nio.file.AccessDeniedException"


def test_a_failed_close_leaves_nothing_behind(s3_manager: Manager, proxy: FaultProxy) -> None:
    """Spark cancels a stream whose closing failed; neither that nor a second close writes."""
    proxy.add(Rule(Fault.ERROR_403, method="PUT", times=1))
    stream = s3_manager.create("commits/7")
    stream.write(bytearray(b"x"))
    with pytest.raises(Py4JJavaError):
        stream.close()
    stream.cancel()
    stream.close()
    assert not s3_manager.exists("commits/7")
    assert proxy.count("PUT") == 1


def test_a_failed_delete_is_reported_by_a_later_one(s3_manager: Manager, proxy: FaultProxy) -> None:
    """Deletes go in batches, later; a store that denies them does not stay unnoticed."""
    s3_manager.write("1.delta", b"x")
    proxy.add(Rule(Fault.ERROR_403, method="DELETE", times=None))
    proxy.add(Rule(Fault.ERROR_403, method="POST", times=None))
    s3_manager.delete("1.delta")
    with pytest.raises(Py4JJavaError) as error:
        for _ in range(100):
            s3_manager.delete("2.delta")
            time.sleep(0.1)
    assert "an earlier delete failed" in str(error.value.java_exception.getMessage())
    proxy.clear()
    assert s3_manager.exists("1.delta")
