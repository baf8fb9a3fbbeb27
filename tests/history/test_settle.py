"""Settled parts of append tables: what a list is, and that a commit costs the same at any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import encode_sealed, sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.manifest_codec import decode_manifest, encode_manifest
from pyspark_checkpoint.format.settled import (
    LIST_LISTS,
    LIST_PARTS,
    MAX_LEVEL,
    MAX_LIST_BYTES,
    ListRef,
    NewList,
    SettledList,
    SettledPart,
    build_list,
    read_list_bytes,
)
from pyspark_checkpoint.format.summary import decode_summary, summarize_manifest
from pyspark_checkpoint.history.settle import plan_settle
from pyspark_checkpoint.table.compaction import SETTLED_BYTES

PART_BYTES = 128 * 1024 * 1024


def attempt(number: int) -> CheckpointId:
    return CheckpointId(number, f"01890a5d-ac96-774b-bcce-{number:012x}")


def part(
    number: int, partition: int = 0, *, epoch: int | None = None, key: str | None = None
) -> ArtifactRef:
    """A part that was settled the day it was made: too large to be joined."""
    path = CheckpointPaths.delta(attempt(number), "table", partition)
    made_for = number if epoch is None else epoch
    digest = f"{number:048x}{partition:016x}"
    return ArtifactRef(
        path, PART_BYTES, digest, True, made_for, data_key_id=key, decoded_bytes=SETTLED_BYTES + 1
    )


def list_of(count: int = 3, number: int = 9) -> NewList:
    parts = tuple(SettledPart(n % 2, part(n + 1, n % 2, key="k" if n else None)) for n in range(count))
    return build_list(attempt(number), SettledList(parts=parts))


def test_a_list_is_read_back_and_named_by_its_digest() -> None:
    """Parts with their partitions and keys; and lists of lists."""
    new = list_of()
    content = read_list_bytes(new.ref, new.data)
    assert [(one.partition, one.ref.epoch, one.ref.data_key_id) for one in content.parts] == [
        (0, 1, None),
        (1, 2, "k"),
        (0, 3, "k"),
    ]
    assert new.ref.path == f"checkpoints/{attempt(9)}/list-{sha256_hex(new.data)}.json"
    assert (new.ref.part_count, new.ref.below_bytes, new.ref.oldest, new.ref.newest, new.ref.epoch) == (
        3,
        3 * PART_BYTES,
        1,
        3,
        3,
    )
    above = build_list(attempt(10), SettledList(lists=(new.ref, list_of(4).ref)))
    assert read_list_bytes(above.ref, above.data).lists == (new.ref, list_of(4).ref)
    assert (above.ref.level, above.ref.part_count, above.ref.oldest, above.ref.newest) == (1, 7, 1, 9)
    assert above.ref.below_bytes == 7 * PART_BYTES + new.ref.size_bytes + list_of(4).ref.size_bytes


def test_the_reference_names_every_field_of_a_list() -> None:
    """``docs/format.md`` has what is stored."""
    reference = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    for name in orjson.loads(list_of().data):
        assert f"`{name}`" in reference
    assert f"moves {LIST_PARTS} parts at a time" in reference
    assert f"the oldest {LIST_LISTS} lists" in reference
    assert f"at most\n{MAX_LIST_BYTES >> 20} MiB" in reference
    assert f"at most {MAX_LEVEL}" in reference


def test_every_flipped_byte_of_a_list_is_found() -> None:
    """The manifest has its digest."""
    new = list_of()
    for at in range(len(new.data)):
        data = bytearray(new.data)
        data[at] ^= 1
        with pytest.raises(FormatError):
            read_list_bytes(new.ref, bytes(data))


@pytest.mark.parametrize(
    "field", ["part_count", "below_bytes", "oldest", "newest", "epoch", "level", "size_bytes"]
)
def test_a_list_that_holds_something_else_than_is_recorded_of_it_is_damage(field: str) -> None:
    """Clean-up trusts what the manifest says of a list without a look into it."""
    for new in (list_of(), build_list(attempt(10), SettledList(lists=(list_of().ref,)))):
        lying = replace(new.ref, **{field: getattr(new.ref, field) + 1})
        with pytest.raises(FormatError):
            read_list_bytes(lying, new.data)


def test_a_list_that_names_one_list_twice_is_damage() -> None:
    """Else a few small lists would stand for any number of parts."""
    with pytest.raises(FormatError, match="twice"):
        twice = build_list(attempt(10), SettledList(lists=(list_of().ref, list_of().ref)))
        read_list_bytes(twice.ref, twice.data)


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"version": 1},
        {"version": 1, "level": 0, "objects": ["../x"], "data_keys": [], "parts": [], "lists": []},
        {"version": 1, "level": 0, "objects": [], "data_keys": [], "parts": [[0]], "lists": []},
        {"version": 1, "level": 0, "objects": [], "data_keys": [], "parts": [], "lists": [[0] * 9]},
        {"version": 1, "level": 0, "objects": 5, "data_keys": [], "parts": [], "lists": []},
        {"version": 1, "level": 0, "objects": [], "data_keys": [], "parts": [], "lists": []},
        {
            "version": 1,
            "level": 0,
            "objects": [],
            "data_keys": [],
            "parts": [[0, "YQ==", 1, 1, "ypeBEsobvcr6wjGzmiPcTaeG7_gUfE5yuYB3ha_uSLs", 0, 0]],
            "lists": [],
        },
    ],
    ids=["version", "fields", "path", "part", "list", "type", "empty", "inline"],
)
def test_strange_content_with_a_right_digest_is_damage(fields: dict[str, object]) -> None:
    """Whoever writes to the store can make the digest right, and raises nothing foreign by it."""
    data = encode_sealed(fields)
    digest = sha256_hex(data)
    ref = ListRef(CheckpointPaths.settled(attempt(1), digest), len(data), digest, 0, 0, 0, 0, 0, 0)
    with pytest.raises(FormatError):
        read_list_bytes(ref, data)


def manifest_with(entry: OperatorSnapshotEntry, number: int) -> CheckpointManifest:
    return CheckpointManifest(
        checkpoint_id=number, epoch=number, timestamp_ms=1, operators={"table": entry}, partition_count=1
    )


def test_a_manifest_with_lists_is_read_back_and_summed_up() -> None:
    """Sizes count what is below the lists, and paths the lists themselves."""
    direct = (PartitionSnapshotEntry(0, (part(20),)),)
    manifest = manifest_with(OperatorSnapshotEntry(direct, "table", (list_of().ref,)), 20)
    data = encode_manifest(manifest)
    assert decode_manifest(data, "x") == manifest
    assert manifest.total_size_bytes == 4 * PART_BYTES + list_of().ref.size_bytes
    assert manifest.operators["table"].total_bytes == manifest.total_size_bytes
    assert manifest.paths() == {part(20).path, list_of().ref.path}
    assert decode_summary(data, "x") == summarize_manifest(manifest)
    assert manifest.validate() == []
    later = replace(manifest, epoch=2)
    assert any("settled parts of a later epoch" in issue.message for issue in later.validate())


@pytest.mark.parametrize("row", [[], [0] * 9, [0, 1, "x", 0, 0, 0, 0, 0, 0], None, [9] * 9])
def test_a_strange_row_of_a_list_is_damage_in_a_manifest(row: object) -> None:
    """Each of its fields is checked when the manifest is read."""
    manifest = manifest_with(OperatorSnapshotEntry((), "table", (list_of().ref,)), 20)
    fields = orjson.loads(encode_manifest(manifest))
    fields.pop("self_sha256")
    fields["operators"]["table"]["settled"] = [row]
    with pytest.raises(FormatError):
        decode_manifest(encode_sealed(fields), "x")
    with pytest.raises(FormatError):
        decode_summary(encode_sealed(fields), "x")


def test_what_may_still_change_stays_in_the_manifest() -> None:
    """The tail that is joined, and whatever is of the manifest's own epoch."""
    small = [replace(part(n), decoded_bytes=10) for n in range(1, LIST_PARTS + 10)]
    tail = OperatorSnapshotEntry((PartitionSnapshotEntry(0, tuple(small)),), "table")
    assert plan_settle(tail, attempt(9000), 9000).lists == ()
    own = [part(5, n, epoch=7) for n in range(LIST_PARTS + 1)]
    entry = OperatorSnapshotEntry(
        tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in enumerate(own)), "table"
    )
    assert plan_settle(entry, attempt(6), 7).lists == ()
    assert len(plan_settle(entry, attempt(6), 8).lists) == 1


class Played:
    """An append table that grows by one large part a partition and commit. Nothing is read or stored."""

    def __init__(self, partitions: int, settled: tuple[ListRef, ...] = (), number: int = 0) -> None:
        self.partitions = partitions
        self.number = number
        self.entry = OperatorSnapshotEntry((), "table", settled)
        self.lists: dict[str, NewList] = {}

    def commit(self) -> tuple[NewList, ...]:
        """One epoch; the lists that it creates."""
        self.number += 1
        chains = {one.partition_id: one.artifacts for one in self.entry.partitions}
        grown = tuple(
            PartitionSnapshotEntry(n, (*chains.get(n, ()), part(self.number, n)))
            for n in range(self.partitions)
        )
        plan = plan_settle(replace(self.entry, partitions=grown), attempt(self.number), self.number)
        self.entry = plan.entry
        self.lists |= {new.ref.path: new for new in plan.lists}
        return plan.lists

    def levels(self) -> list[int]:
        """How many lists of each level the manifest names, the lowest first."""
        found = [ref.level for ref in self.entry.settled]
        return [found.count(level) for level in range(max(found, default=-1) + 1)]

    def manifest_bytes(self) -> int:
        return len(encode_manifest(manifest_with(self.entry, self.number)))


def test_nothing_is_lost_or_named_twice_on_the_way_to_lists() -> None:
    """Every part is in one place, in the order of its chain, at every commit."""
    partitions = 320
    played, commits = Played(partitions), 2 * LIST_PARTS * LIST_LISTS // partitions
    for _ in range(commits):
        played.commit()
    found: dict[int, list[int]] = {n: [] for n in range(played.partitions)}

    def walk(refs: tuple[ListRef, ...]) -> None:
        for ref in refs:
            content = read_list_bytes(ref, played.lists[ref.path].data)
            walk(content.lists)
            for one in content.parts:
                found[one.partition].append(one.ref.epoch)

    walk(played.entry.settled)
    full, rest = divmod(partitions * (commits - 1) // LIST_PARTS, LIST_LISTS)
    assert played.levels() == [rest, full]
    for one in played.entry.partitions:
        assert found[one.partition_id] == sorted(found[one.partition_id])
        every = found[one.partition_id] + [ref.epoch for ref in one.artifacts]
        assert every == list(range(1, commits + 1))


def grown_to(stored_bytes: int) -> tuple[tuple[ListRef, ...], int]:
    """The lists of a table of this size, as the test above has seen them come: by digits, base 64.

    And the number of the newest checkpoint, as long as a number can be.
    """
    leaves = stored_bytes // (LIST_PARTS * PART_BYTES)
    refs, level, below = [], 0, LIST_PARTS * PART_BYTES
    while leaves:
        leaves, count = divmod(leaves, LIST_LISTS)
        for at in range(count):
            digest = sha256_hex(f"{level} {at}".encode())
            path = CheckpointPaths.settled(attempt(9_000_000_000 - at), digest)
            parts = LIST_PARTS * LIST_LISTS**level
            facts = (level, parts, below, 8_000_000_000, 9_000_000_000, 8_000_000_000)
            refs.append(ListRef(path, 90_000, digest, *facts))
        level, below = level + 1, below * LIST_LISTS + 90_000 * LIST_LISTS
    return tuple(sorted(refs, key=lambda ref: -ref.level)), 9_000_000_000


def test_the_cost_of_a_commit_does_not_grow_up_to_a_petabyte() -> None:
    """Parts of 128 MB, a thousand a commit: bytes of the manifest, and what is written beside it.

    Nothing is read by a commit. The last sizes are one list short of a new level, where most are named.
    """
    sizes = [10**12, 10**13, 10**14, 10**15, (LIST_LISTS**2 - 1) * LIST_PARTS * PART_BYTES]
    manifests, written, puts = [], 0, 0
    for size in sizes:
        settled, number = grown_to(size)
        played = Played(1000, settled, number)
        largest = 0
        for _ in range(6):
            made = played.commit()
            assert all(len(new.data) <= MAX_LIST_BYTES // 4 for new in made)
            written = max(written, sum(len(new.data) for new in made))
            puts = max(puts, len(made))
            largest = max(largest, played.manifest_bytes())
        assert played.entry.total_bytes >= size
        manifests.append(largest)
    assert max(manifests) <= 1.15 * manifests[0], manifests
    assert max(manifests) <= 500_000, manifests
    assert puts <= 1000 // LIST_PARTS + 1 + 3
    assert written <= (1000 // LIST_PARTS + 1 + 3) * MAX_LIST_BYTES // 4
