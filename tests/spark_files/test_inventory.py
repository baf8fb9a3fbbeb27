"""Which files of a Spark checkpoint directory belong to a batch."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import orjson
import pytest

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.spark_files.inventory import (
    MAX_SOURCE_SCHEMA_BYTES,
    MAX_SOURCE_SCHEMAS,
    CapturePlan,
    plan_chains,
    plan_operators,
    plan_small_files,
)
from pyspark_checkpoint.spark_files.listing import CheckpointListing, sort_listing
from pyspark_checkpoint.spark_files.logs import (
    CommitLog,
    OffsetLog,
    OperatorInfo,
    StoreInfo,
    decode_commit_log,
    decode_offset_log,
    decode_operator_metadata,
    decode_rocksdb_zip,
    is_keyless,
    relocate_operator_metadata,
)
from pyspark_checkpoint.spark_files.names import (
    StateFile,
    StateFileKind,
    StoreId,
    is_operator_setup,
    is_source_schema,
    parse_shared_file,
    parse_state_file,
)
from pyspark_checkpoint.spark_files.versions import FileFacts, doubtful_bases, plan_chain, written_together

UID = "413fd584-b650-4804-b078-b1bf2a22d45d"
OTHER_UID = "99f424ce-f020-41ef-8058-2b2c5a36405d"
AGGREGATION = {0: OperatorInfo(0, "stateStoreSave", (StoreInfo("default", 2),))}


def listing_of(*paths: str, modified: dict[str, int] | None = None) -> CheckpointListing:
    """A directory with these files, each made a millisecond after the one before, unless told."""
    modified = modified or {}
    return sort_listing(
        {path: FileFacts(10, modified.get(path, 1000 + index)) for index, path in enumerate(paths)}
    )


def logs(*batches: int) -> list[str]:
    return ["metadata", *(f"offsets/{n}" for n in batches), *(f"commits/{n}" for n in batches)]


def deltas(partition: int, *versions: int) -> list[str]:
    return [f"state/0/{partition}/{version}.delta" for version in versions]


def plan(
    listing: CheckpointListing,
    batch_id: int,
    commits: Mapping[int, CommitLog] | None = None,
    operators: Mapping[int, OperatorInfo] = AGGREGATION,
    shared: Mapping[str, tuple[str, ...]] | None = None,
    offset: str | None = None,
) -> CapturePlan:
    chains = plan_chains(listing, batch_id, commits or {}, operators)
    offsets = OffsetLog(0, 0, {}, (offset,))
    return CapturePlan(
        batch_id,
        plan_operators(chains, listing, shared or {}, operators),
        plan_small_files(listing, batch_id, offsets, is_committed=True),
    )


def paths_of(captured: CapturePlan) -> set[str]:
    return {file.path for file in captured.all_files()}


@pytest.mark.parametrize(
    "path",
    [
        "state/0/3/12.delta",
        "state/1/0/left-keyToNumValues/7.snapshot",
        f"state/0/3/12_{UID}.changelog",
        f"state/0/3/12_{UID}.zip",
    ],
)
def test_names_of_state_files_round_trip(path: str) -> None:
    """A parsed name gives the same name back."""
    parsed = parse_state_file(path)
    assert parsed is not None
    assert parsed.path == path


def test_other_names_are_not_state_files() -> None:
    """Checksums, temporary files, schemas and SST files are not versions of a store."""
    for path in (
        "state/0/0/.1.delta.crc",
        "state/0/0/_metadata/schema",
        "state/0/0/SSTs/1-a.sst",
        "offsets/1",
    ):
        assert parse_state_file(path) is None
    assert parse_shared_file("state/0/2/left/SSTs/1-a.sst") == StoreId(0, 2, "left")
    assert is_operator_setup("state/0/_metadata/v2/0")
    assert is_operator_setup("state/0/0/left-keyToNumValues/_metadata/schema")
    assert not is_operator_setup("state/0/0/1.delta")


def test_a_checkpoint_is_the_newest_base_and_all_changes_after_it() -> None:
    """Older files and newer versions are left out."""
    both = [
        *deltas(0, 1, 2, 3, 4, 5),
        *deltas(1, 1, 2, 3, 4, 5),
        "state/0/0/3.snapshot",
        "state/0/1/5.snapshot",
    ]
    captured = plan(listing_of(*logs(0, 1, 2, 3, 4), *both), 3)
    state = {path for path in paths_of(captured) if path.startswith("state/")}
    assert state == {"state/0/0/3.snapshot", "state/0/0/4.delta", *deltas(1, 1, 2, 3, 4)}


def test_logs_of_the_batch_and_the_one_before_are_taken_and_no_later_ones() -> None:
    """Spark wants the previous offsets to resume, and must not find later ones."""
    captured = plan(listing_of(*logs(0, 1, 2), *deltas(0, 1, 2, 3), *deltas(1, 1, 2, 3)), 1)
    assert {p for p in paths_of(captured) if not p.startswith("state/")} == {
        "metadata",
        "offsets/0",
        "offsets/1",
        "commits/1",
    }


def test_a_snapshot_older_than_the_delta_of_its_version_is_not_used() -> None:
    """Maintenance wrote 2.snapshot from an attempt whose 2.delta was written again later."""
    files = [*logs(0, 1, 2), *deltas(0, 1, 2, 3), *deltas(1, 1, 2, 3), "state/0/0/2.snapshot"]
    stale = listing_of(*files, modified={"state/0/0/2.snapshot": 5, "state/0/0/2.delta": 9})
    fresh = listing_of(*files, modified={"state/0/0/2.snapshot": 9, "state/0/0/2.delta": 5})
    assert "state/0/0/2.snapshot" not in paths_of(plan(stale, 2))
    assert {"state/0/0/1.delta", "state/0/0/2.delta"} <= paths_of(plan(stale, 2))
    assert "state/0/0/2.snapshot" in paths_of(plan(fresh, 2))


def test_a_snapshot_of_the_same_second_as_its_delta_is_used_only_if_nothing_else_will_do() -> None:
    """Object stores know seconds: which of the two was first is not known, and the deltas are certain."""
    same = {"state/0/0/2.snapshot": 5000, "state/0/0/2.delta": 5000}
    files = [*logs(0, 1, 2), *deltas(1, 1, 2, 3), "state/0/0/2.snapshot"]
    certain = paths_of(plan(listing_of(*files, *deltas(0, 1, 2, 3), modified=same), 2))
    assert "state/0/0/2.snapshot" not in certain
    assert set(deltas(0, 1, 2, 3)) <= certain
    purged = paths_of(plan(listing_of(*files, *deltas(0, 2, 3), modified=same), 2))
    assert "state/0/0/2.snapshot" in purged
    assert "state/0/0/2.delta" not in purged


def test_a_zip_of_the_same_second_as_its_changelog_is_looked_into() -> None:
    """Where both were written by one commit the zip is needed; that does not depend on the clock."""
    owner = StoreId(0, 0)
    base, change = StateFile(owner, 1, StateFileKind.ZIP), StateFile(owner, 1, StateFileKind.CHANGELOG)
    files = {base: FileFacts(1, 1000), change: FileFacts(1, 1000)}
    assert doubtful_bases(1, files) == (base,)
    assert plan_chain(owner, 1, files, {}, {base}).base == base


def test_format_version_2_takes_only_what_the_commit_log_names() -> None:
    """A speculative attempt's changelog has another unique id and is left out."""
    one = {0: OperatorInfo(0, "stateStoreSave", (StoreInfo("default", 1),))}
    commits = {0: CommitLog(0, {0: ((UID,),)})}
    files = [f"state/0/0/1_{UID}.changelog", f"state/0/0/1_{OTHER_UID}.changelog"]
    captured = plan(listing_of(*logs(0), *files), 0, commits, one)
    assert files[0] in paths_of(captured)
    assert files[1] not in paths_of(captured)


def test_a_missing_version_is_refused_by_name() -> None:
    """A purged delta means that this batch cannot be restored, never that it is skipped."""
    with pytest.raises(RefusedError, match="version 2 of state state/0/1"):
        plan(listing_of(*logs(0, 1, 2), *deltas(0, 1, 2, 3), *deltas(1, 1, 3)), 2)


def test_every_declared_partition_must_be_there() -> None:
    """One missing, or all of them, is refused: a node may not see the others' files."""
    four = {0: OperatorInfo(0, "stateStoreSave", (StoreInfo("default", 4),))}
    with pytest.raises(RefusedError, match="partition 2"):
        plan(listing_of(*logs(0), *deltas(0, 1), *deltas(1, 1)), 0, operators=four)
    with pytest.raises(RefusedError, match=r"partition 1 .*every node must see"):
        plan(listing_of(*logs(0), *deltas(0, 1)), 0, operators=four)
    with pytest.raises(RefusedError, match="partition 0"):
        plan(listing_of(*logs(0)), 0, operators=four)
    with pytest.raises(RefusedError, match="operator 1 has state files"):
        plan(listing_of(*logs(0), *deltas(0, 1), "state/1/0/1.delta"), 0)


def test_an_operator_with_one_partition_needs_the_first_alone() -> None:
    """A global aggregation declares all partitions and fills the first; without that it is refused."""
    single = {0: OperatorInfo(0, "stateStoreSave", (StoreInfo("default", 4),), is_single=True)}
    captured = plan(listing_of(*logs(0), *deltas(0, 1)), 0, operators=single)
    assert captured.operators[0].partitions.keys() == {0}
    with pytest.raises(RefusedError, match="partition 0"):
        plan(listing_of(*logs(0)), 0, operators=single)


def java_text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def test_a_store_without_key_columns_is_known_by_its_schema() -> None:
    """As Spark writes it, in both versions of the file; a later version says nothing."""
    none, one = '{"type":"struct","fields":[]}', '{"type":"struct","fields":[{"name":"k"}]}'
    for key, expected in ((none, True), (one, False)):
        assert is_keyless(java_text("v1") + java_text(key), "schema") is expected
        half = len(key) // 2
        pieces = (2).to_bytes(4, "big") + java_text(key[:half]) + java_text(key[half:])
        assert is_keyless(java_text("v2") + pieces, "schema") is expected
    assert not is_keyless(java_text("v3") + b"anything", "schema")
    with pytest.raises(FormatError, match="cut short"):
        is_keyless(java_text("v2") + b"\0\0\0\1\0\x20{", "schema")


def test_what_a_later_run_wrote_about_operators_is_left_out() -> None:
    """Metadata and schemas of batch 5 do not belong to a checkpoint of batch 2."""
    setup = [
        "state/0/_metadata/v2/0",
        "state/0/_metadata/v2/5",
        f"state/0/_stateSchema/default/0_{UID}",
        f"state/0/_stateSchema/default/5_{UID}",
    ]
    captured = plan(listing_of(*logs(0, 1, 2), *deltas(0, 1, 2, 3), *deltas(1, 1, 2, 3), *setup), 2)
    assert {path for path in paths_of(captured) if "_metadata" in path or "_stateSchema" in path} == {
        setup[0],
        setup[2],
    }


def test_an_uncommitted_batch_is_refused() -> None:
    """Before commits/N exists the files of version N + 1 may still be written again."""
    listing = listing_of(
        "metadata", "offsets/0", "offsets/1", "commits/0", *deltas(0, 1, 2), *deltas(1, 1, 2)
    )
    with pytest.raises(RefusedError, match="batch 1 is not committed"):
        plan(listing, 1)


def zip_of(metadata: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("metadata", metadata)
    return buffer.getvalue()


def test_a_rocksdb_snapshot_brings_the_files_it_names() -> None:
    """SST files are shared between snapshots and lie beside them."""
    table = {"localFileName": "8.sst", "dfsSstFileName": "8-a.sst", "sizeBytes": 1}
    fields = {"sstFiles": [table], "columnFamilyMapping": {"default": 1, "count": 2}}
    data = zip_of("v1\n" + orjson.dumps(fields).decode())
    assert decode_rocksdb_zip(data, "x.zip").families == {"count"}
    assert decode_rocksdb_zip(data, "x.zip").files == ("SSTs/8-a.sst",)
    one = {0: OperatorInfo(0, "stateStoreSave", (StoreInfo("default", 1),))}
    listing = listing_of(*logs(0), "state/0/0/1.zip", "state/0/0/SSTs/8-a.sst")
    captured = plan(listing, 0, operators=one, shared={"state/0/0/1.zip": ("SSTs/8-a.sst",)})
    assert {"state/0/0/1.zip", "state/0/0/SSTs/8-a.sst"} <= paths_of(captured)


def test_a_snapshot_that_spark_had_to_write_with_its_change_is_used_though_it_is_older() -> None:
    """New column families force one: the change after it cannot be applied without them."""
    owner = StoreId(0, 0)
    zips = {version: StateFile(owner, version, StateFileKind.ZIP) for version in (1, 3, 5)}
    logs_ = {version: StateFile(owner, version, StateFileKind.CHANGELOG) for version in range(1, 7)}
    files = {file: FileFacts(1, 10 * version) for version, file in zips.items()}
    files |= {file: FileFacts(1, 10 * version + 2) for version, file in logs_.items()}
    doubtful = doubtful_bases(6, files)
    assert set(doubtful) == set(zips.values())
    families = {zips[1]: {"count"}, zips[3]: {"count"}, zips[5]: {"count", "timers"}}
    together = written_together(families, doubtful)
    assert together == {zips[1], zips[5]}, "the third is of an attempt whose change was written again"
    assert plan_chain(owner, 4, files, {}, together).base == zips[1]
    assert plan_chain(owner, 6, files, {}, together).base == zips[5]
    assert plan_chain(owner, 4, files, {}).base is None


def test_a_rocksdb_snapshot_cannot_name_files_elsewhere() -> None:
    """Names come from a file that somebody may have changed."""
    data = zip_of('v1\n{"sstFiles":[{"localFileName":"8.sst","dfsSstFileName":"../../x","sizeBytes":1}]}')
    with pytest.raises(FormatError, match="not beside it"):
        decode_rocksdb_zip(data, "x.zip")


def test_logs_are_read_as_spark_writes_them() -> None:
    """Offsets, commits and operator metadata of Spark 4.3."""
    offsets = decode_offset_log(
        b'v1\n{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{"a":"b"}}\n{"logOffset":2}\n-', "offsets/1"
    )
    assert offsets == OffsetLog(5, 7, {"a": "b"}, ('{"logOffset":2}', None))
    commit = decode_commit_log(
        b'v2\n{"nextBatchWatermarkMs":9,"stateUniqueIds":{"0":[["u"],["w"]]}}', "commits/1"
    )
    assert commit == CommitLog(9, {0: (("u",), ("w",))})
    with pytest.raises(FormatError, match="torn"):
        decode_commit_log(b"", "commits/2")


def test_schema_paths_move_with_the_location() -> None:
    """Operator metadata version 2 holds absolute paths; a restored location needs its own."""
    stores = [
        {
            "storeName": "default",
            "numPartitions": 2,
            "stateSchemaFilePaths": ["file:/a/state/0/_stateSchema/default/0_u"],
        }
    ]
    data = b"v2\n" + orjson.dumps(
        {
            "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateExec"},
            "stateStoreInfo": stores,
        }
    )
    moved = relocate_operator_metadata(data, "m", "s3a://b/new/")
    assert b'"s3a://b/new/state/0/_stateSchema/default/0_u"' in moved
    assert decode_operator_metadata(moved, "m").name == "transformWithStateExec"


def test_versions_sort_by_number() -> None:
    """Version 10 comes after version 9, not after version 1."""
    owner = StoreId(0, 0)
    files = {StateFile(owner, v, StateFileKind.DELTA): FileFacts(1, v) for v in range(1, 12)}
    listing = sort_listing(
        {file.path: facts for file, facts in files.items()} | {p: FileFacts(1, 1) for p in logs(9, 10)}
    )
    one = {0: OperatorInfo(0, "stateStoreSave", (StoreInfo("default", 1),))}
    state = [f.path for f in plan(listing, 10, operators=one).operators[0].partitions[0]]
    assert state == [f"state/0/0/{v}.delta" for v in range(1, 12)]


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("_schema_log_7c1e/0", True),
        ("tracking/_schema_log_7c1e_west/3", True),
        ("_schemas/0", True),
        ("bronze/_schemas/0/part", True),
        ("_schemas", True),
        ("_schemaless/0", False),
        ("state/_schemas/0", False),
        ("offsets/_schemas", False),
        ("sources/0/_schemas/0", False),
        ("notes.txt", False),
    ],
)
def test_schema_logs_that_sources_keep_in_the_location_are_known(path: str, *, is_one: bool) -> None:
    assert is_source_schema(path) is is_one
    assert (path in sort_listing({path: FileFacts(1, 1)}).source_schemas) is is_one


def test_schema_logs_of_sources_belong_to_a_checkpoint() -> None:
    """Delta's source would begin with another schema, or not at all."""
    found = plan(listing_of(*logs(0), *deltas(0, 1), *deltas(1, 1), "_schema_log_a/0", "notes.txt"), 0)
    names = [file.path for file in found.files]
    assert "_schema_log_a/0" in names
    assert "notes.txt" not in names


def test_more_schema_logs_than_a_checkpoint_takes_are_refused() -> None:
    """A checkpoint that silently lacked some of them would restore another query."""
    rest = [*logs(0), *deltas(0, 1), *deltas(1, 1)]
    plan(listing_of(*rest, *(f"_schemas/{n}" for n in range(MAX_SOURCE_SCHEMAS))), 0)
    with pytest.raises(RefusedError, match=r"one of 65"):
        plan(listing_of(*rest, *(f"_schemas/{n}" for n in range(MAX_SOURCE_SCHEMAS + 1))), 0)
    large = {path: FileFacts(10, 1) for path in rest}
    large["_schemas/0"] = FileFacts(MAX_SOURCE_SCHEMA_BYTES + 1, 1)
    with pytest.raises(RefusedError, match=r"_schemas/0 is too large"):
        plan(sort_listing(large), 0)
