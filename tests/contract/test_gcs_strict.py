"""What fake-gcs-server does not keep, against a fake of our own that is stricter than Google.

See ``tests/support/servers/strict_gcs.py``: conditions on resumable uploads, copies, reads and deletes;
checksums that are verified; sessions that can be counted. The rest of the contract runs on fake-gcs-server.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import (
    AlreadyExists,
    ChecksumRefused,
    Conflict,
    Denied,
    Invalid,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.store.gcs.gcs_store import GcsStore
from pyspark_checkpoint.store.settings import GcsSettings
from tests.support.servers.strict_gcs import BUCKET, PART_MULTIPLE, StrictGcs, strict_gcs

BIG = bytes(range(256)) * 1024 * 3 + b"an odd end"
"""Four parts: more than fits into a single request of the stores below."""


@pytest.fixture
def strict_server() -> Iterator[StrictGcs]:
    with strict_gcs() as running:
        yield running


@pytest.fixture
def store(strict_server: StrictGcs) -> Iterator[GcsStore]:
    """A store that sends everything over 100 KB through a resumable session, in small parts."""
    settings = GcsSettings(
        BUCKET,
        "p",
        endpoint=strict_server.endpoint,
        anonymous=True,
        part_size_bytes=PART_MULTIPLE,
        timeout_seconds=10,
    )
    opened = GcsStore(settings, single_request_bytes=100_000)
    yield opened
    opened.close()


def race(threads: int, attempt: Callable[[int], object]) -> tuple[list[int], list[StoreError]]:
    """Let threads attempt the same thing at once; return who succeeded, and the errors of the others."""
    barrier = threading.Barrier(threads)
    won: list[int] = []
    lost: list[StoreError] = []

    def run(index: int) -> None:
        barrier.wait(30)
        try:
            attempt(index)
            won.append(index)
        except StoreError as error:
            lost.append(error)

    running = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return won, lost


def body_of(index: int) -> bytes:
    return bytes([index]) + BIG


def test_of_many_resumable_creates_one_wins(strict_server: StrictGcs, store: GcsStore) -> None:
    """The condition holds at the end of a large upload too, not only when it begins."""
    won, lost = race(8, lambda index: store.put("big", body_of(index), if_absent=True))
    assert len(won) == 1
    assert {type(error) for error in lost} == {AlreadyExists}
    assert store.get("big") == body_of(won[0])
    assert strict_server.sessions == {}
    assert sum("PUT /upload" in line for line in strict_server.requests) >= 4, "it was not resumable"


def test_of_many_resumable_swaps_one_wins(strict_server: StrictGcs, store: GcsStore) -> None:
    """Compare-and-swap of large objects: one winner, the others get Conflict."""
    version = store.put("big", BIG)
    won, lost = race(8, lambda index: store.put("big", body_of(index), if_match=version))
    assert len(won) == 1
    assert {type(error) for error in lost} == {Conflict}
    assert store.get("big") == body_of(won[0])
    assert strict_server.sessions == {}


@pytest.mark.parametrize("size_bytes", [1, 50_000, len(BIG)])
def test_a_flipped_bit_is_refused(strict_server: StrictGcs, store: GcsStore, size_bytes: int) -> None:
    """The service compares the checksum before anything is visible, in one request or in parts."""
    strict_server.damage = True
    with pytest.raises(ChecksumRefused):
        store.put("k", BIG[:size_bytes], if_absent=True)
    assert strict_server.objects == {}
    assert strict_server.sessions == {}
    strict_server.damage = False
    store.put("k", BIG[:size_bytes], if_absent=True)
    assert store.get("k") == BIG[:size_bytes]


def test_a_large_put_keeps_nonce_and_bytes(store: GcsStore, tmp_path: Path) -> None:
    """A file goes up in parts, from where it stands, with the nonce."""
    path = tmp_path / "body"
    path.write_bytes(b"skipped" + BIG)
    with path.open("rb") as file:
        file.seek(7)
        version = store.put("big", file, nonce="abc")
    assert store.head("big").nonce == "abc"
    assert store.read("big").version == version
    assert b"".join(store.stream("big", chunk_bytes=100_000)) == BIG


def test_a_server_that_keeps_less_of_a_part_gets_the_rest(
    strict_server: StrictGcs, store: GcsStore
) -> None:
    """Google may keep a shorter part than was sent; the upload goes on where the server stands."""
    strict_server.keep_bytes = PART_MULTIPLE // 2 + 1
    # The strict fake wants parts of whole multiples, so that only the last may be cut.
    store.put("k", BIG[: PART_MULTIPLE - 5])
    assert store.get("k") == BIG[: PART_MULTIPLE - 5]


def test_a_server_that_keeps_nothing_ends_the_upload(strict_server: StrictGcs, store: GcsStore) -> None:
    """No progress is an error, not an endless loop."""
    strict_server.keep_bytes = 0
    with pytest.raises(Unavailable):
        store.put("k", BIG)
    assert strict_server.objects == {}
    assert strict_server.sessions == {}


@pytest.mark.parametrize(
    ("status", "error"), [(503, Unavailable), (500, Unavailable), (403, Denied), (410, Unavailable)]
)
def test_a_failed_part_leaves_nothing(
    strict_server: StrictGcs, store: GcsStore, status: int, error: type[StoreError]
) -> None:
    """Before the last part nothing can have landed, whatever the answer; the session is cancelled."""
    strict_server.refuse_part = status
    with pytest.raises(error):
        store.put("k", BIG, if_absent=True)
    assert strict_server.objects == {}
    assert strict_server.sessions == {}


def test_an_unanswered_last_part_is_unknown(strict_server: StrictGcs, store: GcsStore) -> None:
    """A 500 to the part that would finish the object proves nothing."""
    strict_server.refuse_part = 500
    with pytest.raises(OutcomeUnknown):
        store.put("k", BIG[: PART_MULTIPLE + 5], if_absent=True)
    assert strict_server.sessions == {}


class ShrinkingFile(io.BytesIO):
    """A file that turns out shorter than it was when its size was taken."""

    def __init__(self, data: bytes, good_reads: int) -> None:
        super().__init__(data)
        self.good_reads = good_reads

    def read(self, size: int | None = -1, /) -> bytes:
        self.good_reads -= 1
        return super().read(size) if self.good_reads >= 0 else b""


def test_a_file_that_shrinks_is_not_stored(strict_server: StrictGcs, store: GcsStore) -> None:
    """Only a whole body becomes an object."""
    for data, good_reads in ((BIG, 0), (BIG, 1), (BIG, 2), (BIG[:90_000], 1)):
        with pytest.raises(Invalid):
            store.put("k", ShrinkingFile(data, good_reads))
    assert strict_server.objects == {}
    assert strict_server.sessions == {}


def test_of_many_conditional_copies_one_wins(strict_server: StrictGcs, store: GcsStore) -> None:
    """A copy carries the condition in each of its requests, and not the nonce of its source."""
    for index in range(6):
        store.put(f"source/{index}", body_of(index)[:5000], nonce="of the source")
    won, lost = race(6, lambda index: store.copy(f"source/{index}", "target", if_absent=True))
    assert len(won) == 1
    assert {type(error) for error in lost} == {AlreadyExists}
    assert store.get("target") == body_of(won[0])[:5000]
    assert store.head("target").nonce is None
    assert sum("rewriteTo" in line for line in strict_server.requests) > 6, (
        "the copy needed no second request"
    )


def test_a_stream_is_pinned_to_its_generation(store: GcsStore) -> None:
    """An object replaced while it is read ends the stream with Conflict."""
    store.put("k", b"a" * 50_000)
    chunks = store.stream("k", chunk_bytes=20_000)
    assert next(chunks) == b"a" * 20_000
    store.put("k", b"b" * 50_000)
    with pytest.raises(Conflict):
        next(chunks)


def test_listing_and_deleting_go_beyond_one_page(strict_server: StrictGcs, store: GcsStore) -> None:
    """Pages of three; a name outside the prefix, or of a folder marker, is not listed."""
    keys = [f"k/{index}" for index in range(8)]
    for key in keys:
        store.put(key, b"x")
    with strict_server.lock:
        strict_server.objects["p/k/"] = strict_server.objects["other/k"] = strict_server.objects["p/k/0"]
    assert [info.key for info in store.list()] == keys
    assert [info.key for info in store.list("k/", start_after="k/4")] == keys[5:]
    store.delete(keys)
    assert list(store.list()) == []
