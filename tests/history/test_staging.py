"""Staging and reading: few requests, every byte checked, encrypted or plain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_checkpoint.crypto.keyring import parse_key_ring
from pyspark_checkpoint.errors import FormatError, IntegrityError, MissingKey, RefusedError
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact, stream_stored
from pyspark_checkpoint.history.staging import Staged, StagedItem, stage
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.testing.faulty_store import FaultKind, fault_on
from tests.support.history_kit import History

UUID = "01890a5d-ac96-774b-bcce-b302099a8057"
ATTEMPT = CheckpointId(7, UUID)
RING = parse_key_ring('{"active": "k1", "keys": {"k1": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}')


def items(count: int, size_bytes: int) -> list[StagedItem]:
    return [
        StagedItem(bytes([n % 251]) * size_bytes, True, 3, operator="agg", partition=n)
        for n in range(count)
    ]


def wanted(work: list[StagedItem], staged: Staged) -> list[WantedArtifact]:
    return [
        WantedArtifact(ref, item.operator, item.partition)
        for item, ref in zip(work, staged.refs, strict=True)
    ]


def test_400_partitions_of_2_kb_commit_in_three_puts() -> None:
    """One pack, the manifest, the pointer."""
    history = History()
    run = history.run("run-a")
    run.claim()
    attempt = run.attempt()
    work = items(400, 2048)
    staged: list[Staged] = []

    def publish() -> None:
        staged.append(stage(history.store, attempt, work, clock=history.clock))
        parts = tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in enumerate(staged[0].refs))
        draft = CheckpointManifest(
            checkpoint_id=0, epoch=3, operators={"agg": OperatorSnapshotEntry(parts)}
        )
        run.publish(replace(draft, requests=staged[0].requests), attempt)

    calls = history.calls(publish)
    assert [verb for verb, _ in calls].count("put") == 3
    assert history.head().requests.puts == 2
    reader = ArtifactReader(history.store)
    reads = history.calls(lambda: reader.read_many(wanted(work, staged[0])))
    assert len(reads) == 1
    assert reader.read_many(wanted(work, staged[0])) == [item.data for item in work]


@pytest.mark.parametrize("limit", [1, 4])
def test_tiny_ones_travel_inline_small_ones_in_packs_large_ones_alone(limit: int) -> None:
    """In any mix, each item gets its own bytes back, in order."""
    history = History()
    bounds = PackBounds(64, 200, 4096, 2048)
    sizes = [10, 64, 65, 500, 3000, 0, 2047, 2048, 100, 30, 60, 61, 1900, 1900, 1900]
    work = [
        StagedItem(bytes([n]) * size, n % 2 == 0, 3, operator="op", partition=n % 3)
        for n, size in enumerate(sizes)
    ]
    staged = stage(
        history.store, ATTEMPT, work, bounds=bounds, max_concurrent_uploads=limit, clock=history.clock
    )
    assert sum(ref.size_bytes for ref in staged.refs if ref.inline is not None) <= 200
    assert staged.requests.puts == len(history.keys())
    reader = ArtifactReader(history.store, max_concurrent_reads=limit)
    assert reader.read_many(wanted(work, staged)) == [item.data for item in work]
    assert [ref.made_by for ref in staged.refs] == [7] * len(work)


def test_an_encrypted_artifact_opens_only_as_what_it_is() -> None:
    """Inline, packed and alone; as another partition, kind or name it does not open."""
    history = History()
    cipher = StoreCipher(history.inner, "store", RING, history.clock)
    bounds = PackBounds(64, 1000, 4096, 2048)
    work = [
        StagedItem(b"x" * size, False, 3, operator="op", partition=n, name="f")
        for n, size in enumerate((1, 300, 400, 5000))
    ]
    staged = stage(
        history.inner, ATTEMPT, work, store_id="store", cipher=cipher, bounds=bounds, clock=history.clock
    )
    stored = b"".join(history.inner.get(key) for key in history.keys("checkpoints/"))
    assert b"x" * 20 not in stored
    reader = ArtifactReader(history.inner, store_id="store", cipher=cipher)
    assert reader.read_many(wanted(work, staged)) == [item.data for item in work]
    for ref in staged.refs:
        with pytest.raises(FormatError):
            reader.read(ref, "op", 9)
        with pytest.raises(FormatError):
            reader.read(replace(ref, is_delta=True), "op", work[staged.refs.index(ref)].partition)
        with pytest.raises(MissingKey, match="encrypted"):
            ArtifactReader(history.inner).read(ref, "op", 0)


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
def test_an_upload_whose_answer_was_lost_is_repeated(kind: FaultKind) -> None:
    """The same bytes are there already, or are now."""
    history = History()
    history.plan = fault_on("put", "pack", kind, times=2)
    staged = stage(history.store, ATTEMPT, items(3, 600), clock=history.clock)
    assert ArtifactReader(history.inner).read(staged.refs[2], "agg", 2) == bytes([2]) * 600


def test_an_artifact_is_never_replaced_by_other_bytes() -> None:
    """A second staging under the same attempt is refused unless it says the same."""
    history = History()
    stage(history.inner, ATTEMPT, items(3, 600), clock=history.clock)
    stage(history.inner, ATTEMPT, items(3, 600), clock=history.clock)
    with pytest.raises(RefusedError, match="other bytes"):
        stage(history.inner, ATTEMPT, items(3, 601), clock=history.clock)


def test_damage_is_found_when_reading() -> None:
    """A flipped byte, a short object, a missing one: an error that names the object, never bytes."""
    history = History()
    refs = stage(history.inner, ATTEMPT, items(3, 5_000_000), clock=history.clock).refs
    history.flip(refs[0].path or "", 4_999_999)
    history.inner.put(refs[1].path or "", b"short")
    history.inner.delete([refs[2].path or ""])
    reader = ArtifactReader(history.inner)
    for ref, error in zip(refs, (IntegrityError, FormatError, FormatError), strict=True):
        with pytest.raises(error, match="partition-0000"):
            reader.read(ref, "agg", 0)
        with pytest.raises(error, match="partition-0000"):
            list(stream_stored(history.inner, ref, chunk_bytes=1_000_000))


def test_an_inline_artifact_is_checked_too() -> None:
    """Its digest is recorded like any other."""
    ref = stage(History().inner, ATTEMPT, items(1, 5)).refs[0]
    assert ref.inline is not None
    with pytest.raises(IntegrityError):
        ArtifactReader(History().inner).read(replace(ref, inline=b"other"))


def test_there_is_a_result_for_every_request_whatever_the_limit() -> None:
    """Fault 1 of the seed system: its concurrent upload returned as many results as its limit."""
    for limit in (1, 2, 3, 8, 50):
        assert run_bounded(lambda n: n * n, range(37), limit) == [n * n for n in range(37)]


def test_the_first_error_ends_a_bounded_run() -> None:
    """And what had not begun is not begun."""
    begun = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise RefusedError("no")
        return number

    with pytest.raises(RefusedError):
        run_bounded(work, range(1000), 4)
    assert len(begun) < 20
