"""Packs: where artifacts go, the bytes of a pack, and reading many artifacts with few requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpoint.errors import FormatError, IntegrityError, UnknownVersion
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.pack import (
    DEFAULT_BOUNDS,
    MAX_INLINE_BYTES,
    MAX_INLINE_TOTAL_BYTES,
    PACK_HEADER,
    Pack,
    PackBounds,
    Part,
    build_pack,
    pack_tail_bytes,
    plan_packs,
    read_pack,
    read_pack_index,
)
from pyspark_checkpoint.format.ranges import MAX_RANGE_BYTES, coalesce_ranges, cut_range
from tests.format.strategies import inline_refs, names, partitions, stored_refs

PATH = "checkpoints/0000000007-01890a5d-ac96-774b-bcce-b302099a8057/pack-00000.pack"
parts = st.builds(Part, names | st.just(""), partitions, inline_refs)
bounds = st.builds(
    PackBounds, st.integers(0, 40), st.integers(0, 300), st.integers(50, 500), st.integers(1, 200)
)


def small_pack() -> Pack:
    given_parts = [
        Part("agg", 0, ArtifactRef.of_inline(b"first", is_delta=False, epoch=3)),
        Part("agg", 1, ArtifactRef.of_inline(b"", is_delta=True, epoch=4, name="4.delta")),
        Part("", 0, ArtifactRef.of_inline(b"third", is_delta=True, epoch=4)),
    ]
    return build_pack(PATH, given_parts)


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(0, 400), bounds)
def test_a_plan_places_every_artifact_once_and_keeps_every_bound(
    sizes: list[int], used: int, limit: PackBounds
) -> None:
    """No artifact is lost or duplicated, and inline total, pack size and the size for alone hold."""
    plan = plan_packs(sizes, inline_used_bytes=used, bounds=limit)
    placed = [*plan.inline, *(at for pack in plan.packs for at in pack), *plan.alone]
    assert sorted(placed) == list(range(len(sizes)))
    assert all(sizes[at] <= limit.max_inline_bytes for at in plan.inline)
    inline_bytes = sum(sizes[at] for at in plan.inline)
    assert inline_bytes == 0 or inline_bytes + used <= limit.max_inline_total_bytes
    for pack in plan.packs:
        assert len(pack) > 1
        assert list(pack) == sorted(pack)
        assert sum(sizes[at] for at in pack) <= limit.pack_target_bytes
        assert all(sizes[at] < limit.min_alone_bytes for at in pack)


def test_400_deltas_of_2_kb_make_one_pack() -> None:
    """The common small epoch: one object, so that a commit is pack, manifest and pointer."""
    plan = plan_packs([2048] * 400)
    assert (len(plan.packs), plan.inline, plan.alone) == (1, (), ())


def test_tiny_artifacts_are_inlined_until_the_manifest_is_full() -> None:
    """The total over all manifests in a row counts, not the total of one commit."""
    plan = plan_packs([MAX_INLINE_BYTES] * 10, inline_used_bytes=MAX_INLINE_TOTAL_BYTES - 1024)
    assert len(plan.inline) == 2
    assert len(plan.packs) == 1


def test_a_large_artifact_is_alone_and_does_not_split_a_pack() -> None:
    """The small ones around a large one still share an object."""
    plan = plan_packs([2000, DEFAULT_BOUNDS.min_alone_bytes, 2000])
    assert plan.alone == (1,)
    assert plan.packs == ((0, 2),)


@given(st.lists(parts, min_size=1, max_size=12))
def test_a_pack_is_read_back_without_a_manifest(given_parts: list[Part]) -> None:
    """Index and references agree with each other and with the bytes."""
    pack = build_pack(PATH, given_parts)
    entries = read_pack(PATH, pack.data)
    assert [(e.operator, e.partition, e.ref) for e in entries] == [
        (p.operator, p.partition, ref) for p, ref in zip(given_parts, pack.refs, strict=True)
    ]
    for part, ref in zip(given_parts, pack.refs, strict=True):
        assert pack.data[ref.offset : ref.offset + ref.size_bytes] == part.data
    tail = pack.data[-pack_tail_bytes(PATH, pack.data[-8:]) :]
    assert read_pack_index(PATH, pack.data[:8], tail, object_size_bytes=len(pack.data)) == entries


def test_every_flipped_byte_of_a_pack_is_found() -> None:
    """Header, parts, index and footer alike."""
    data = small_pack().data
    for at in range(len(data)):
        for bit in (0x01, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= bit
            with pytest.raises(FormatError):
                read_pack(PATH, bytes(damaged))


def test_a_pack_cut_at_any_length_is_refused() -> None:
    """Also one that has grown."""
    data = small_pack().data
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read_pack(PATH, data[:size])
    with pytest.raises(FormatError):
        read_pack(PATH, data + b"x")
    with pytest.raises(FormatError, match="index does not know"):
        read_pack(PATH, PACK_HEADER + b"x" * 5 + data[8 + 10 :])


def test_a_pack_of_a_later_version_is_refused_by_name() -> None:
    """The version is in the first bytes, so nothing behind it is read."""
    data = bytearray(small_pack().data)
    data[4] = 2
    with pytest.raises(UnknownVersion, match="pack version 2"):
        read_pack(PATH, bytes(data))


def test_a_part_whose_bytes_changed_names_the_place() -> None:
    """The error has path, expected and actual digest."""
    data = bytearray(small_pack().data)
    data[8] ^= 1
    with pytest.raises(IntegrityError) as caught:
        read_pack(PATH, bytes(data))
    assert caught.value.path == f"{PATH}@8"


@given(st.lists(stored_refs | inline_refs, max_size=30), st.integers(0, 2**40), st.integers(0, 2**48))
def test_coalescing_reads_each_artifact_once(
    wanted: list[ArtifactRef], max_gap: int, max_range: int
) -> None:
    """Every stored artifact lies within exactly one range; a range is over its limit only if alone."""
    ranges = coalesce_ranges(wanted, max_gap, max_range)
    read = [ref for r in ranges for ref in r.refs]
    stored = [ref for ref in wanted if ref.path is not None]
    assert sorted(map(repr, read)) == sorted(map(repr, stored))
    for r in ranges:
        assert r.start == min(ref.offset for ref in r.refs)
        assert r.end == max(ref.offset + ref.size_bytes for ref in r.refs)
        assert {ref.path for ref in r.refs} == {r.path}
        assert r.end - r.start <= max_range or len(r.refs) == 1


@given(st.lists(parts, min_size=1, max_size=12), st.integers(0, 200), st.integers(1, 400))
@settings(max_examples=50)
def test_ranges_of_a_pack_cut_into_the_bytes_that_went_in(
    given_parts: list[Part], max_gap: int, max_range: int
) -> None:
    """What is read by ranges is what was packed, whatever the gap."""
    pack = build_pack(PATH, given_parts)
    expected = {ref: p.data for p, ref in zip(given_parts, pack.refs, strict=True)}
    for r in coalesce_ranges(pack.refs, max_gap, max_range):
        for ref, data in cut_range(r, pack.data[r.start : r.end]):
            assert data == expected[ref]


def test_a_pack_is_read_with_one_request_and_a_gap_with_two() -> None:
    """Neighbours are joined; what is far apart is not downloaded for nothing."""
    refs = build_pack(
        PATH, [Part("a", n, ArtifactRef.of_inline(b"x" * 2048, is_delta=True, epoch=1)) for n in range(400)]
    ).refs
    assert len(coalesce_ranges(refs)) == 1
    assert len(coalesce_ranges([refs[0], refs[399]])) == 2
    assert len(coalesce_ranges([refs[0], refs[399]], MAX_RANGE_BYTES)) == 1


def test_a_short_or_damaged_range_is_refused() -> None:
    """A range is checked before its first artifact is given out."""
    (r,) = coalesce_ranges(small_pack().refs)
    data = small_pack().data[r.start : r.end]
    with pytest.raises(FormatError, match="shorter"):
        list(cut_range(r, data[:-1]))
    with pytest.raises(IntegrityError):
        list(cut_range(r, b"x" + data[1:]))
