"""Real queries whose checkpoint is on S3, through the file manager."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from tests.integration.filemanager.test_requests import verbs
from tests.support.drivers import outcome
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, ROCKSDB_CHANGELOG, ROCKSDB_V2, QuerySpec, total_after
from tests.support.servers.hadoop import FILE_MANAGER
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import Fault, FaultProxy, Rule
from tests.support.waiting import wait_until

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
STOCK = {
    MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
}
OURS = {MANAGER: FILE_MANAGER}
RETAIN = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.snapshotInterval": "2",
}


def total(name: str, root: str, tmp_path: Path, batches: int, conf: dict[str, str]) -> QuerySpec:
    """A query whose result is known."""
    return QuerySpec(name, "total", f"{root}/{name}", str(tmp_path / name), batches, conf, rows=20)


def assert_totals(spec: QuerySpec) -> None:
    """Every batch of a ``total`` query has the sums that it must have."""
    found = outcome.batches(spec)
    for batch_id in range(spec.batches):
        rows = {row["key"]: row["sum"] for row in map(json.loads, found[batch_id])}
        assert rows == total_after(batch_id, spec.rows), f"{spec.name} batch {batch_id}"


def forget(server: S3Server, spec: QuerySpec, *names: str) -> None:
    """Remove objects of a query, as if the driver had died before it wrote them."""
    prefix = spec.location.removeprefix(f"s3a://{server.bucket}/")
    client = server.client()
    try:
        for name in names:
            client.delete_object(Bucket=server.bucket, Key=f"{prefix}/{name}")
    finally:
        client.close()


def objects(server: S3Server, spec: QuerySpec, below: str) -> list[str]:
    """The names of all objects of a query below a directory, relative to it."""
    prefix = f"{spec.location.removeprefix(f's3a://{server.bucket}/')}/{below}/".replace("//", "/")
    client = server.client()
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=server.bucket, Prefix=prefix)
        return [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", [])]
    finally:
        client.close()


@pytest.mark.parametrize("provider", [HDFS, ROCKSDB_CHANGELOG], ids=["hdfs", "rocksdb-changelog"])
def test_a_batch_costs_four_requests_and_one_for_each_partition(
    workbench: Driver, s3_root: str, workbench_proxy: FaultProxy, tmp_path: Path, provider: dict[str, str]
) -> None:
    """A HEAD and a PUT for offsets and for commits, a PUT for every state file, nothing else.

    Maintenance lists the partitions, here every second: that belongs to no batch.
    """
    conf = {**provider, "spark.sql.shuffle.partitions": "4"}
    spec = total("cost", s3_root, tmp_path, 8, conf)
    workbench.run(spec)
    below = spec.location.removeprefix("s3a:/") + "/"
    requests = [r for r in workbench_proxy.requests if below in r.target]
    (first,) = (n for n, r in enumerate(requests) if (r.method, r.target[-9:]) == ("PUT", "offsets/2"))
    (last,) = (n for n, r in enumerate(requests) if (r.method, r.target[-9:]) == ("PUT", "offsets/7"))
    of_batches = (r for r in requests[first + 1 : last + 1] if "list-type" not in r.target)
    assert verbs(of_batches) == {"HEAD": 5 * 2, "PUT": 5 * (2 + 4)}


def state_of(workbench: Driver, spec: QuerySpec, batch_id: int) -> dict[int, int]:
    """The sums that Spark's own reader finds in the state after a batch."""
    options = {"path": spec.location, "batchId": str(batch_id)}
    rows = workbench.call("read", format="statestore", options=options, conf=spec.conf)
    found = map(json.loads, rows)
    return {sole(row["key"]): sole(row["value"]) for row in found}


def sole(fields: dict[str, int]) -> int:
    """The value of the only field, whatever Spark calls it."""
    (value,) = fields.values()
    return value


def purged_offsets(server: S3Server, spec: QuerySpec) -> list[int]:
    """The offset log of a query that has ended, when its deletes are done: they come a second later.

    In that second a fast machine does ten batches.
    """

    def left() -> list[int]:
        return sorted(int(entry) for entry in objects(server, spec, "offsets"))

    wait_until(lambda: left()[0] >= left()[-1] - 8, f"the purge of {spec.name}'s offsets", 30)
    return left()


@pytest.mark.timeout(900)
def test_purging_and_maintenance_go_on_past_a_hundred_batches(
    workbench: Driver, s3_server: S3Server, s3_root: str, tmp_path: Path
) -> None:
    """Logs and old state are removed, snapshots appear, and the query resumes from what is left."""
    kinds = {
        "hdfs": (105, HDFS, ".snapshot"),
        "changelog": (25, ROCKSDB_CHANGELOG, ".zip"),
        "v2": (25, ROCKSDB_V2, ".zip"),
    }
    specs = {}
    for name, (batches, provider, _) in kinds.items():
        conf = {**provider, **RETAIN, "spark.sql.shuffle.partitions": "1"}
        spec = total(name, s3_root, tmp_path, batches, conf)
        specs[name] = QuerySpec(**{**spec.as_dict(), "format": "noop"})
    workbench.run(*specs.values(), timeout_seconds=600)
    for name, spec in specs.items():
        offsets = purged_offsets(s3_server, spec)
        assert spec.batches - 1 <= offsets[-1]
        assert len(objects(s3_server, spec, "commits")) <= 9, name
        state = objects(s3_server, spec, "state/0/0")
        assert any(entry.endswith(kinds[name][2]) for entry in state), (name, state)
        assert not [entry for entry in state if re.split("[._]", entry)[0] == "1"], (name, state)
        longer = QuerySpec(**{**spec.as_dict(), "batches": offsets[-1] + 3})
        last = max(workbench.run(longer, timeout_seconds=300)[name]["committed"])
        assert state_of(workbench, spec, last) == total_after(last, spec.rows)


def test_the_state_reader_reads_what_was_written(workbench: Driver, s3_root: str, tmp_path: Path) -> None:
    """Spark's statestore format gives the state of every batch from S3."""
    spec = total("reader", s3_root, tmp_path, 4, HDFS)
    workbench.run(spec)
    for batch_id in (1, 3):
        assert state_of(workbench, spec, batch_id) == total_after(batch_id, spec.rows)


def test_arbitrary_state_and_limits_go_on_after_a_restart(
    workbench: Driver, s3_root: str, tmp_path: Path
) -> None:
    """The operators that no other test has here: state by a function of the user, and rows counted."""
    providers = {"hdfs": HDFS, "v2": ROCKSDB_V2}
    for batches in (2, 5):
        specs = {
            (kind, name): QuerySpec(
                f"{kind}-{name}",
                kind,
                f"{s3_root}/{kind}-{name}",
                str(tmp_path / f"{kind}-{name}"),
                batches,
                conf,
                rows=20,
            )
            for kind in ("grouped", "first")
            for name, conf in providers.items()
        }
        workbench.run(*specs.values())
    for name in providers:
        assert_totals(specs["grouped", name])
        found = outcome.batches(specs["first", name])
        assert [len(found[batch_id]) for batch_id in range(5)] == [20, 20, 10, 0, 0]
        values = [json.loads(row)["value"] for batch_id in range(5) for row in found[batch_id]]
        assert sorted(values)[:40] == list(range(40))
        assert len(set(values)) == 50 and set(values) < set(range(60))


@pytest.mark.parametrize("provider", [HDFS, ROCKSDB_V2], ids=["hdfs", "rocksdb-v2"])
def test_a_location_goes_from_the_stock_manager_to_ours_and_back(
    workbench: Driver, s3_root: str, tmp_path: Path, provider: dict[str, str]
) -> None:
    """Both managers write the same files under the same names."""
    for batches, manager in ((3, STOCK), (6, OURS), (9, STOCK)):
        spec = total("upgrade", s3_root, tmp_path, batches, {**provider, **manager})
        workbench.run(spec)
    assert_totals(spec)


def test_a_location_that_was_removed_is_a_new_one_for_the_next_start(
    workbench: Driver, s3_server: S3Server, s3_root: str, tmp_path: Path
) -> None:
    """As in a notebook: what this process has made, and somebody else has deleted, is not there again."""
    for life in range(2):
        spec = total("removed", s3_root, tmp_path / str(life), 2 + life, HDFS)
        workbench.run(spec)
        assert_totals(spec)
        names = objects(s3_server, spec, "")
        forget(s3_server, spec, *names, *directories_of(names))
        assert objects(s3_server, spec, "") == []


def directories_of(names: Iterable[str]) -> list[str]:
    """The directories above the names, the deepest first: SeaweedFS keeps them, where S3 has none."""
    found = {f"{above}/" for name in names for above in PurePosixPath(name).parents if above.name}
    return sorted(found, key=lambda name: (-name.count("/"), name))


def test_a_query_whose_log_cannot_be_written_stops(
    workbench: Driver, s3_server: S3Server, s3_root: str, workbench_proxy: FaultProxy, tmp_path: Path
) -> None:
    """No batch goes on without its log; when the store can be written again, nothing is missing."""
    spec = total("denied", s3_root, tmp_path, 8, HDFS)
    workbench_proxy.add(Rule(Fault.ERROR_403, method="PUT", contains="denied/commits/3", times=None))
    workbench.start(spec)
    result = workbench.wait([spec.name], 60)[spec.name]
    assert "Status Code: 403" in result["error"]
    assert max(result["committed"]) == 2
    assert sorted(objects(s3_server, spec, "commits")) == ["0", "1", "2"]
    workbench_proxy.clear()
    workbench.run(spec)
    assert_totals(spec)


def test_a_lost_answer_is_not_a_concurrent_query(
    workbench: Driver, s3_root: str, workbench_proxy: FaultProxy, tmp_path: Path
) -> None:
    """The answers to the PUT of one log entry and of one state file are lost; the query goes on."""
    spec = total("lost", s3_root, tmp_path, 6, HDFS)
    for name in ("lost/offsets/2", "lost/commits/3", "lost/state/0/1/3.delta"):
        workbench_proxy.add(Rule(Fault.LOSE_RESPONSE, method="PUT", contains=name))
    workbench.run(spec)
    assert sum(request.fault is Fault.LOSE_RESPONSE for request in workbench_proxy.requests) == 3
    assert_totals(spec)


def test_format_v2_never_writes_a_state_file_twice(
    workbench: Driver, s3_server: S3Server, s3_root: str, tmp_path: Path
) -> None:
    """A batch that is run again has state files of its own: a stalled driver cannot damage them."""
    names: dict[str, list[str]] = {}
    for name, provider in (("v1", ROCKSDB_CHANGELOG), ("v2", ROCKSDB_V2)):
        spec = total(name, s3_root, tmp_path, 3, provider)
        workbench.run(spec)
        last = max(int(entry) for entry in objects(s3_server, spec, "commits"))
        forget(s3_server, spec, f"commits/{last}", f"offsets/{last + 1}")
        workbench.run(QuerySpec(**{**spec.as_dict(), "batches": last + 2}))
        state = objects(s3_server, spec, "state/0/0")
        version = str(last + 1)
        names[name] = [
            entry
            for entry in state
            if entry.endswith(".changelog") and entry.removesuffix(".changelog").split("_")[0] == version
        ]
    assert len(names["v1"]) == 1
    assert len(names["v2"]) == 2
