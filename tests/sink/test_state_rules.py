"""The pure rules: which files both points need, what a manifest must name, what is known without a look."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import DeclaredStore, StateRecord, decode_state, encode_state
from pyspark_checkpoint.sink.query import task_facts
from pyspark_checkpoint.sink.state_task import StatePlan
from pyspark_checkpoint.spark_files.consistency import check_fit
from pyspark_checkpoint.spark_files.divergence import find_divergence
from pyspark_checkpoint.spark_files.inventory import CapturedFile
from pyspark_checkpoint.spark_files.listing import sort_listing
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.logs import CommitLog, OperatorInfo, StoreInfo
from pyspark_checkpoint.spark_files.names import StateFile, StateFileKind, StoreId, partition_of
from pyspark_checkpoint.spark_files.restore_points import (
    RestorePoint,
    check_commit,
    check_state,
    select_state,
)
from pyspark_checkpoint.spark_files.state_record import check_committable, plan_store_chains
from pyspark_checkpoint.spark_files.versions import FileFacts
from tests.support.made_stream import MadeStream

A = "413fd584-b650-4804-b078-b1bf2a22d45d"
B = "99f424ce-f020-41ef-8058-2b2c5a36405d"
OWNER = StoreId(0, 0)
RECORD = StateRecord(3, (DeclaredStore(0, "default", 1),))
OPERATORS = {0: OperatorInfo(0, "stateStoreSave", (StoreInfo("default", 1),))}


def files(*names: str) -> list[str]:
    """Paths of one partition's files."""
    return [f"state/0/0/{name}" for name in names]


def changes(*versions: int) -> dict[StateFile, FileFacts]:
    """Change files of format version 1, each later than the one before."""
    return {StateFile(OWNER, v, StateFileKind.DELTA): FileFacts(10, 1000 + v) for v in versions}


def ref(data: bytes, name: str) -> ArtifactRef:
    """An artifact of these bytes."""
    return ArtifactRef.of_inline(data, is_delta=True, epoch=0, name=name)


def test_both_versions_are_planned_and_a_missing_one_is_refused() -> None:
    """Before batch 3 is version 3, after it version 4."""
    before, after = plan_store_chains(OWNER, 3, changes(1, 2, 3, 4), {})
    assert (before.version, after.version) == (3, 4)
    with pytest.raises(RefusedError, match="version 4 of state state/0/0 is not in"):
        plan_store_chains(OWNER, 3, changes(1, 2, 3), {})
    with pytest.raises(RefusedError, match="version 2"):
        plan_store_chains(OWNER, 3, changes(1, 3, 4), {})


def test_every_attempt_of_the_newest_version_is_planned_until_one_is_known_to_count() -> None:
    """Format version 2 with a speculative task: two files of version 2, and no log that chooses."""
    both = {
        StateFile(OWNER, 1, StateFileKind.CHANGELOG, A): FileFacts(1, 1),
        StateFile(OWNER, 2, StateFileKind.CHANGELOG, A): FileFacts(1, 2),
        StateFile(OWNER, 2, StateFileKind.CHANGELOG, B): FileFacts(1, 3),
    }
    chains = plan_store_chains(OWNER, 1, both, {1: A})
    assert {file.uid for chain in chains for file in chain.files() if file.version == 2} == {A, B}
    record = StateRecord(1, RECORD.stores)
    paths = [file.path for file in both]
    chosen = select_state(record, paths, RestorePoint.AFTER, CommitLog(0, {0: ((B,),)}))
    assert chosen == set(files(f"1_{A}.changelog", f"2_{B}.changelog"))
    assert select_state(record, paths, RestorePoint.BEFORE, None) == set(files(f"1_{A}.changelog"))
    assert check_commit(record, paths, CommitLog(0, {0: ((B,),)})) is None
    other = B.replace("9", "8")
    assert "other state" in (check_commit(record, paths, CommitLog(0, {0: ((other,),)})) or "")


def test_a_base_of_the_newest_version_does_not_hide_the_version_before() -> None:
    """RocksDB without changelog: each version is a base of its own, and both are needed."""
    both = {
        StateFile(OWNER, 3, StateFileKind.ZIP): FileFacts(1, 1),
        StateFile(OWNER, 4, StateFileKind.ZIP): FileFacts(1, 2),
    }
    assert [chain.base.version for chain in plan_store_chains(OWNER, 3, both, {}) if chain.base] == [3, 4]
    paths = files("3.zip", "4.zip", "SSTs/a.sst")
    assert select_state(RECORD, paths, RestorePoint.BEFORE, None) == set(files("3.zip", "SSTs/a.sst"))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["1.delta", "2.delta", "3.delta"], "version 4 of state state/0/0"),
        (["2.delta", "3.delta", "4.delta"], "version 1 of state state/0/0"),
        (["1.delta", "2.delta", "3.delta", "4.delta", "5.delta"], "later batch"),
        ([f"{v}_{A}.changelog" for v in (1, 2, 3, 4)] + [f"2_{B}.changelog"], "2 attempts"),
    ],
)
def test_state_that_cannot_be_restored_to_both_points_is_a_finding(names: list[str], problem: str) -> None:
    """A gap, a version too many, two attempts of one version."""
    assert any(problem in found for found in check_state(RECORD, files(*names)))


def test_a_partition_that_is_declared_and_not_named_is_a_finding() -> None:
    """And so is one that is named and not declared."""
    wide = StateRecord(0, (DeclaredStore(0, "default", 2),))
    assert any("state/0/1" in found for found in check_state(wide, files("1.delta")))
    found = list(check_state(StateRecord(0), files("1.delta")))
    assert found == ["state state/0/0 is named and not declared"]


def test_the_work_follows_the_files_and_not_the_number_of_partitions_that_is_declared() -> None:
    """A record of a few bytes may say 10**12 partitions; what is there is looked at, and nothing more."""
    wide = StateRecord(0, (DeclaredStore(0, "default", 10**12),))
    found = list(check_state(wide, files("1.delta")))
    assert found == ["state state/0/1 is declared and has no file: 999999999999 partitions of it lack"]
    with pytest.raises(RefusedError, match="version 1 of state state/0/1 is not in"):
        select_state(wide, files("1.delta"), RestorePoint.AFTER, CommitLog(0, {}))


@pytest.mark.parametrize(
    "stores", [[[0, "default", 1], [0, "default", 2]], [[0, "default", -1]]], ids=["twice", "negative"]
)
def test_a_record_that_declares_a_store_twice_or_less_than_nothing_is_damage(stores: list[object]) -> None:
    """Else a long list of one store would be as much work as that many stores."""
    with pytest.raises(FormatError, match=r"state\.stores"):
        decode_state({"stores": stores, "modified_ms": {}}, 0)


@pytest.fixture
def manifest(tmp_path: Path) -> CheckpointManifest:
    """A real manifest of rows and state."""
    stream = MadeStream(tmp_path)
    stream.run(2)
    made = stream.batch()
    assert list(check_fit(made)) == []
    return made


def test_a_table_and_a_state_of_different_epochs_are_a_finding(manifest: CheckpointManifest) -> None:
    """Whichever of the two is wrong."""
    assert any("epoch" in found for found in check_fit(replace(manifest, epoch=manifest.epoch + 1)))
    other = replace(manifest, sink_epochs={"table": manifest.epoch - 1})
    assert any("the sink is at epoch" in found for found in check_fit(other))


def test_logs_that_are_missing_or_too_many_are_findings(manifest: CheckpointManifest) -> None:
    """A restored query would lose or skip batches."""
    for gone in ("metadata", "offsets/2", "offsets/1", "commits/1"):
        fewer = replace(manifest, files=tuple(file for file in manifest.files if file.name != gone))
        assert f"{gone} is not among its files" in list(check_fit(fewer))
    for late in ("commits/2", "offsets/3"):
        more = replace(manifest, files=(*manifest.files, ref(b"v1\n{}", late)))
        assert f"{late} is later than its batch 2" in list(check_fit(more))


def test_offsets_that_are_not_the_manifests_own_are_a_finding(manifest: CheckpointManifest) -> None:
    """The log inside and the offsets beside it come from one batch."""
    assert any("other source offsets" in found for found in check_fit(replace(manifest, source_offsets={})))


def test_the_record_of_a_manifest_reads_back(manifest: CheckpointManifest) -> None:
    """What was declared, and the times of the newest files."""
    record = manifest.state
    assert record is not None
    assert record.stores == (DeclaredStore(0, "default", 2),)
    assert set(record.modified_ms) == {"state/0/0/3.delta", "state/0/1/3.delta"}
    assert decode_state(encode_state(record), 2) == record


def known(file: CapturedFile, *, batch: int = 4, run_id: str = "run", head_run: str = "run") -> bool:
    """Whether a file is known without a look, on a head of batch 3."""
    held = {path: ref(b"x" * 10, path) for path in files("2.delta", "4.delta", "5.delta")}
    record = StateRecord(3, RECORD.stores, {"state/0/0/4.delta": 4000})
    plan = StatePlan(location=LocationSpec("/x"), record=record, held=held, head_run=head_run)
    return file.path in plan.known([file], batch, run_id)


def captured(name: str, modified_ms: int, size_bytes: int = 10) -> CapturedFile:
    """A file as a listing shows it."""
    return CapturedFile(f"state/0/0/{name}", FileFacts(size_bytes, modified_ms), 0)


def test_the_heads_newest_version_is_known_by_its_size_and_time() -> None:
    """Anything else is looked at."""
    assert known(captured("4.delta", 4000))
    assert not known(captured("4.delta", 4001))
    assert not known(captured("4.delta", 4000, size_bytes=11))


def test_older_versions_are_looked_at_once_when_a_run_begins() -> None:
    """The head is of another run, or of none: a claim, a rollback."""
    assert known(captured("2.delta", 1))
    assert not known(captured("2.delta", 1), run_id="another")
    assert not known(captured("2.delta", 1), head_run="")


def test_the_version_that_the_batch_makes_is_always_looked_at() -> None:
    """Also if the head has a file of that name: the batch runs again."""
    assert not known(captured("5.delta", 4000))
    assert not known(captured("4.delta", 4000), batch=3)


def test_each_state_partition_is_collected_by_one_task() -> None:
    """Partition p goes to task p mod T; without T, task t takes partition t."""
    record = StateRecord(0, (DeclaredStore(0, "default", 5), DeclaredStore(1, "a", 5)))
    plan = StatePlan(location=LocationSpec("/x"), record=record, tasks=2)
    shares = [set(plan.prefixes(task, "run")) for task in range(2)]
    assert "state/1/4/" in shares[0]
    assert shares[0] & shares[1] == {"state/0/_metadata/", "state/1/_metadata/"}
    assert len(shares[0] | shares[1]) == 12
    in_a_run = replace(plan, head_run="run")
    assert set(in_a_run.prefixes(0, "run")) == shares[0] - shares[1], "the operators are known by then"
    assert replace(plan, tasks=0).task_of(1) == 1
    assert replace(plan, tasks=0).task_of(3) == 3


def test_a_task_unpacks_its_own_share_of_what_the_head_names_and_no_other() -> None:
    """With 1,000 partitions, all of it in each of 1,000 tasks would be a million references a batch."""
    paths = [
        f"state/{op}/{part}/{name}" for op in (0, 1) for part in range(5) for name in ("2.delta", "SSTs/x")
    ]
    held = {path: ref(b"x", path) for path in paths}
    plan = StatePlan(location=LocationSpec("/x"), held=held, tasks=2)
    sent = pickle.loads(pickle.dumps(plan.packed()))
    assert sent.held == {}
    shares = [sent.share_of(task).held for task in range(2)]
    assert shares[0] | shares[1] == held
    assert all(plan.task_of(partition_of(path)) == task for task in range(2) for path in shares[task])
    assert sent.share_of(7).held == {}, "a task more than there is state"
    assert plan.share_of(0).held == held, "not packed: nothing travels"


@pytest.mark.parametrize("gone", ["metadata", "offsets/2", "offsets/1", "commits/1"])
def test_a_batch_whose_logs_are_not_there_is_refused_and_the_option_is_named(gone: str) -> None:
    """Asynchronous progress tracking writes them later, or never; without them nothing can be restored."""
    names = ("metadata", "offsets/1", "offsets/2", "commits/1")
    check_committable(sort_listing({name: FileFacts(1, 1) for name in names}), 2)
    fewer = sort_listing({name: FileFacts(1, 1) for name in names if name != gone})
    with pytest.raises(RefusedError, match=f"no {gone}.*set the option state to off"):
        check_committable(fewer, 2)


def test_continuous_mode_is_refused_and_the_cure_is_named() -> None:
    """It has no batches to commit."""
    properties = {"__is_continuous_processing": "true", "streaming.sql.batchId": "3"}
    with pytest.raises(RefusedError, match="processingTime or availableNow"):
        task_facts(properties, partition=0)
    assert task_facts({**properties, "__is_continuous_processing": None}, partition=0)


def test_a_diverged_location_is_found_by_bytes_or_ids() -> None:
    """Version 4 is what batch 4 began from; version 5 is its own, and may differ."""
    held = {path: ref(b"a", path) for path in files("4.delta", "5.delta", "3.snapshot")}
    same = {path: ref(b"b" if "4" not in path else b"a", path) for path in held}
    assert find_divergence(4, held, same, OPERATORS, {}) is None
    other = {path: ref(b"b", path) for path in held}
    assert find_divergence(4, held, other, OPERATORS, {}) == "state/0/0/4.delta has other bytes"
    named = {f"state/0/0/4_{A}.changelog": ref(b"a", "x")}
    assert find_divergence(4, named, {}, OPERATORS, {3: CommitLog(0, {0: ((A,),)})}) is None
    assert A not in (find_divergence(4, named, {}, OPERATORS, {3: CommitLog(0, {0: ((B,),)})}) or A)
