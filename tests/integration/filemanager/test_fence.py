"""What is fenced and what is not, and stores that cannot fence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from tests.integration.filemanager.jvm import Jvm, Manager, java_error, running_jvm
from tests.integration.filemanager.test_contract import EXISTS
from tests.support.servers.hadoop import s3a_conf, s3a_jars
from tests.support.servers.launch import rclone_s3
from tests.support.servers.proxy import Fault, FaultProxy, Rule

pytestmark = [pytest.mark.server, pytest.mark.promise]

UNFENCED = {"ckpt.fileManager.allowUnfenced": "true"}
WITHOUT_CONDITION = {"fs.s3a.bucket.ckpt-plain.create.conditional.enabled": "false"}


@pytest.fixture(scope="module")
def careless(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """A JVM whose S3 server ignores conditions, and whose connector does not know them for a bucket."""
    with rclone_s3() as server:
        client = server.client()
        client.create_bucket(Bucket="ckpt-plain")
        client.close()
        conf = {**s3a_conf(server.endpoint), **WITHOUT_CONDITION}
        log = tmp_path_factory.mktemp("careless") / "stderr.log"
        with running_jvm(jar, s3a_jars(), conf, log) as jvm:
            yield jvm


@pytest.mark.parametrize(
    ("bucket", "reason"),
    [("ckpt-test", "ignored If-None-Match"), ("ckpt-plain", "does not offer conditional create")],
)
def test_a_store_that_cannot_fence_is_refused(careless: Jvm, bucket: str, reason: str) -> None:
    """The message says why, and what to do; nothing of the query has been written."""
    manager = careless.manager(f"s3a://{bucket}/refused")
    for _ in range(2):
        with pytest.raises(Py4JJavaError) as error:
            manager.write("metadata", b"x")
        message = str(error.value.java_exception.getMessage())
        assert reason in message
        assert "spark.hadoop.ckpt.fileManager.allowUnfenced=true" in message
    assert not manager.exists("metadata")


def at_two_servers(jvm: Jvm, careless: Jvm, s3_root: str, scheme: str) -> tuple[Manager, Manager]:
    """The managers of one address at a server that keeps conditions, and at one that does not."""
    root = s3_root.replace("s3a:", f"{scheme}:")
    own = {f"fs.{scheme}.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    elsewhere = {**own, f"fs.{scheme}.impl.disable.cache": "true", **careless.confs}
    return jvm.manager(root, own), jvm.manager(root, elsewhere)


@pytest.mark.parametrize("scheme", ["s3a", "s3", "s3n"])
def test_one_bucket_name_at_two_servers_is_probed_at_each(
    jvm: Jvm, careless: Jvm, s3_root: str, scheme: str
) -> None:
    """That the first server keeps conditions says nothing of the second one."""
    first, second = at_two_servers(jvm, careless, s3_root, scheme)
    first.write("metadata", b"x")
    with pytest.raises(Py4JJavaError, match="ignored If-None-Match"):
        second.write("metadata", b"x")


@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_a_directory_that_was_made_at_one_server_is_not_there_at_another(
    jvm: Jvm, careless: Jvm, s3_root: str, scheme: str
) -> None:
    """Buckets of one name at two servers have nothing in common."""
    first, second = at_two_servers(jvm, careless, s3_root, scheme)
    first.mkdirs("state/0")
    assert first.exists("state/0")
    assert not second.exists("state/0")


@pytest.mark.parametrize("bucket", ["ckpt-test", "ckpt-plain"])
def test_a_user_can_choose_to_run_without_a_fence(careless: Jvm, bucket: str) -> None:
    """Files are written all the same; one that is seen to exist is still not overwritten."""
    manager = careless.manager(f"s3a://{bucket}/accepted", UNFENCED)
    manager.write("offsets/0", b"first")
    with pytest.raises(Py4JJavaError) as error:
        manager.write("offsets/0", b"second")
    assert java_error(error.value) == EXISTS
    assert manager.read("offsets/0") == b"first"


def test_a_probe_whose_second_create_got_no_answer_proves_nothing(
    jvm: Jvm, s3_root: str, proxy: FaultProxy
) -> None:
    """Only a refusal shows that the server honours the condition; the next file probes again."""
    manager = jvm.manager(s3_root)
    jvm.access.forgetProbes()
    proxy.add(Rule(Fault.RESET, method="PUT", contains=".ckpt-probe", skip=1, times=None))
    with pytest.raises(Py4JJavaError) as error:
        manager.write("metadata", b"x")
    assert java_error(error.value) not in (EXISTS, "java.io.FileNotFoundException")
    assert not manager.exists("metadata")
    proxy.clear()
    manager.write("metadata", b"x")
    probes = [r.status for r in proxy.requests if r.method == "PUT" and ".ckpt-probe" in r.target]
    assert probes == [200, 412]
    jvm.access.flushDeletes(s3_root, jvm.conf())
    assert jvm.spark_manager(s3_root).names() == ["metadata"]


def test_logs_of_a_stalled_driver_are_fenced_and_its_state_of_format_v1_is_not(
    jvm: Jvm, s3_manager: Manager
) -> None:
    """The hole that the documentation names: a late task overwrites a state file, as Spark lets it."""
    old, new = s3_manager, jvm.manager(s3_manager.root)
    stalled_state = old.create("state/0/0/5.delta", overwrite=True)
    stalled_state.write(bytearray(b"of the old driver"))
    stalled_log = old.create("offsets/5")
    stalled_log.write(bytearray(b"of the old driver"))
    new.write("offsets/5", b"of the new driver")
    new.write("state/0/0/5.delta", b"of the new driver", overwrite=True)
    with pytest.raises(Py4JJavaError):
        stalled_log.close()
    stalled_state.close()
    assert new.read("offsets/5") == b"of the new driver"
    assert new.read("state/0/0/5.delta") == b"of the old driver"
