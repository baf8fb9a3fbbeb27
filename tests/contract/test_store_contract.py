"""Every sentence of the store's contract that one caller alone can check, on every backend."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    Conflict,
    Invalid,
    NotFound,
    SettingsError,
    TooLarge,
)
from pyspark_checkpoint.store.base import Body, ObjectStore, Version
from tests.conftest import KEEPS_CONDITIONAL_COPY, Place

STALE = Version("0")


def test_put_then_get_gives_the_same_bytes(store: ObjectStore) -> None:
    """What was put is what every reading verb gives, with one version."""
    data = bytes(range(256)) * 5
    version = store.put("a/b", data)
    assert store.get("a/b") == data
    assert store.read("a/b").data == data
    assert b"".join(store.stream("a/b")) == data
    info = store.head("a/b")
    assert (info.key, info.size_bytes) == ("a/b", len(data))
    assert {version} == {info.version, store.read("a/b").version, next(iter(store.list())).version}


@pytest.mark.parametrize("size_bytes", [0, 1, 100_000])
def test_every_kind_of_body_is_taken(store: ObjectStore, size_bytes: int, tmp_path: Path) -> None:
    """Bytes, bytearray, memoryview and files from where they stand; none of them is changed."""
    data = b"x" * size_bytes
    path = tmp_path / "body"
    path.write_bytes(b"skipped" + data)
    with path.open("rb") as file:
        file.seek(7)
        bodies: list[Body] = [data, bytearray(data), memoryview(data), io.BytesIO(data), file]
        for index, body in enumerate(bodies):
            store.put(f"body-{index}", body)
            assert store.get(f"body-{index}") == data
            assert store.head(f"body-{index}").size_bytes == size_bytes


def test_a_text_file_is_refused(store: ObjectStore) -> None:
    """A body that is not bytes is Invalid and leaves nothing."""
    with pytest.raises(Invalid):
        store.put("text", io.StringIO("text"))  # type: ignore[arg-type]
    assert list(store.list()) == []


def test_a_body_changed_after_the_put_does_not_change_the_object(store: ObjectStore) -> None:
    """The store keeps no reference to what it was given."""
    body = bytearray(b"before")
    store.put("k", body)
    body[:] = b"after!"
    assert store.get("k") == b"before"


def test_plain_put_replaces(store: ObjectStore) -> None:
    """Without a condition the newest put is what is read, under a new version."""
    first = store.put("k", b"one")
    second = store.put("k", b"other")
    assert first != second
    assert store.read("k").data == b"other"
    assert store.head("k").version == second


def test_create_is_refused_when_the_key_exists(store: ObjectStore) -> None:
    """if_absent creates once, then AlreadyExists, and the first bytes stay."""
    store.put("k", b"one", if_absent=True)
    with pytest.raises(AlreadyExists) as caught:
        store.put("k", b"two", if_absent=True)
    assert caught.value.key == "k"
    assert store.get("k") == b"one"


def test_create_is_refused_for_equal_bytes_too(store: ObjectStore) -> None:
    """Equal content is no excuse: the key was taken by another put."""
    store.put("k", b"same", if_absent=True)
    with pytest.raises(AlreadyExists):
        store.put("k", b"same", if_absent=True)


def test_a_deleted_key_can_be_created_again(store: ObjectStore) -> None:
    """After a delete the key is absent for a condition as well."""
    store.put("k", b"one", if_absent=True)
    store.delete(["k"])
    store.put("k", b"two", if_absent=True)
    assert store.get("k") == b"two"


def test_swap_works_only_from_the_present_version(store: ObjectStore) -> None:
    """if_match replaces from the present version; from an older one it is a Conflict."""
    first = store.put("k", b"one")
    second = store.put("k", b"second", if_match=first)
    with pytest.raises(Conflict) as caught:
        store.put("k", b"third", if_match=first)
    assert caught.value.key == "k"
    assert store.read("k").data == b"second"
    assert store.read("k").version == second
    store.put("k", b"fourth", if_match=store.head("k").version)
    assert store.get("k") == b"fourth"


def test_swap_of_an_absent_key_is_a_conflict(store: ObjectStore) -> None:
    """if_match never creates: not where nothing was, and not after a delete."""
    with pytest.raises(Conflict):
        store.put("never", b"x", if_match=STALE)
    version = store.put("gone", b"one")
    store.delete(["gone"])
    with pytest.raises(Conflict):
        store.put("gone", b"two", if_match=version)
    assert list(store.list()) == []


def test_a_remade_object_has_another_version(store: ObjectStore) -> None:
    """Delete and create again with other bytes of the same size: the old version is gone for good."""
    old = store.put("k", b"one")
    store.delete(["k"])
    store.put("k", b"two")
    with pytest.raises(Conflict):
        store.put("k", b"six", if_match=old)
    assert store.get("k") == b"two"


def test_both_conditions_together_are_invalid(store: ObjectStore) -> None:
    """if_absent and if_match exclude each other."""
    with pytest.raises(Invalid):
        store.put("k", b"x", if_absent=True, if_match=STALE)
    assert list(store.list()) == []


def test_the_nonce_comes_back(place: Place, store: ObjectStore) -> None:
    """head gives the nonce of the put that made the object; a disk keeps none, a list need not."""
    store.put("k", b"x", if_absent=True, nonce="0123456789abcdef0123456789abcdef")
    kept = None if place.scheme == "file" else "0123456789abcdef0123456789abcdef"
    assert store.head("k").nonce == kept
    store.put("k", b"y", nonce="ffffffffffffffffffffffffffffffff")
    kept = None if place.scheme == "file" else "ffffffffffffffffffffffffffffffff"
    assert store.head("k").nonce == kept
    assert next(iter(store.list())).nonce in (None, kept)


def test_the_modification_time_is_about_now(store: ObjectStore) -> None:
    """modified_ms is when it was put, in milliseconds."""
    store.put("k", b"x")
    for info in (store.head("k"), next(iter(store.list()))):
        assert abs(info.modified_ms - SYSTEM_CLOCK.now_ms()) < 60_000


def test_absent_keys_are_not_found(store: ObjectStore) -> None:
    """Every reading verb says NotFound and names the key."""
    store.put("there/below", b"x")
    for key in ("absent", "there", "there/below/deeper"):
        for read in (store.get, store.read, store.head, lambda k: list(store.stream(k))):
            with pytest.raises(NotFound) as caught:
                read(key)
            assert caught.value.key == key
    with pytest.raises(NotFound):
        store.copy("absent", "target")
    with pytest.raises(NotFound):
        store.get("absent", start=1, end=2)
    assert [info.key for info in store.list()] == ["there/below"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, b"0123456789"),
        (0, 10, b"0123456789"),
        (0, 1, b"0"),
        (3, 7, b"3456"),
        (9, 10, b"9"),
        (4, None, b"456789"),
        (None, 4, b"0123"),
        (5, 1000, b"56789"),
        (4, 4, b""),
        (0, 0, b""),
        (10, None, b""),
        (10, 20, b""),
    ],
)
def test_a_range_is_a_slice(
    store: ObjectStore, start: int | None, end: int | None, expected: bytes
) -> None:
    """[start, end) as in slicing, cut at the object's end."""
    store.put("k", b"0123456789")
    assert store.get("k", start=start, end=end) == expected


@pytest.mark.parametrize(("start", "end"), [(11, None), (11, 12), (-1, None), (5, 4), (0, -1)])
def test_a_range_that_cannot_be_is_invalid(store: ObjectStore, start: int, end: int | None) -> None:
    """A start beyond the end, negative and backward ranges."""
    store.put("k", b"0123456789")
    with pytest.raises(Invalid):
        store.get("k", start=start, end=end)


def test_an_object_larger_than_the_reader_takes_is_refused(store: ObjectStore) -> None:
    """Up to the limit it is read; above, the error says how large it is, and the store can be used on."""
    store.put("k", b"0123456789")
    assert store.read("k", max_bytes=10).data == b"0123456789"
    for limit in (9, 1, 9):
        with pytest.raises(TooLarge, match="10 bytes") as caught:
            store.read("k", max_bytes=limit)
        assert caught.value.key == "k"
    assert store.read("k").data == b"0123456789"
    with pytest.raises(NotFound):
        store.read("absent", max_bytes=1)


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    """No bytes is not the same as no object."""
    store.put("empty", b"", if_absent=True)
    assert store.get("empty") == b""
    assert store.get("empty", start=0, end=5) == b""
    assert list(store.stream("empty")) in ([], [b""])
    assert store.head("empty").size_bytes == 0
    assert [info.key for info in store.list()] == ["empty"]
    with pytest.raises(AlreadyExists):
        store.put("empty", b"", if_absent=True)


def test_stream_keeps_to_its_chunk_size(store: ObjectStore) -> None:
    """Chunks are at most as large as asked and join to the whole."""
    data = bytes(range(251)) * 1000
    store.put("k", data)
    chunks = list(store.stream("k", chunk_bytes=10_000))
    assert max(map(len, chunks)) <= 10_000
    assert b"".join(chunks) == data


def test_a_stream_of_a_replaced_object_is_of_one_version(store: ObjectStore) -> None:
    """Replaced while it is read: all of the old bytes, or Conflict; never a mixture."""
    store.put("k", b"a" * 3_000_000)
    chunks = store.stream("k", chunk_bytes=100_000)
    seen = [next(chunks)]
    store.put("k", b"b" * 3_000_000)
    try:
        seen += chunks
    except Conflict:
        return
    assert b"".join(seen) == b"a" * 3_000_000


def test_delete_is_idempotent(store: ObjectStore) -> None:
    """Absent keys are fine; others are gone for every verb; the neighbours stay."""
    store.put("a/1", b"x")
    store.put("a/2", b"x")
    store.delete(iter(["a/1", "never", "a/never", "a/1"]))
    store.delete(["a/1"])
    store.delete([])
    with pytest.raises(NotFound):
        store.head("a/1")
    assert [info.key for info in store.list()] == ["a/2"]


def test_copy_copies_the_bytes_and_not_the_nonce(store: ObjectStore) -> None:
    """A copy is an object of its own: its version is the one returned, its nonce not the source's."""
    store.put("source", b"bytes", nonce="0123456789abcdef0123456789abcdef")
    version = store.copy("source", "deep/target")
    assert store.read("deep/target").data == b"bytes"
    assert store.head("deep/target").version == version
    assert store.head("deep/target").nonce != "0123456789abcdef0123456789abcdef"
    store.delete(["source"])
    assert store.get("deep/target") == b"bytes"


def test_copy_replaces_what_is_there(store: ObjectStore) -> None:
    """Without a condition a copy is a plain put of the source's bytes."""
    store.put("one", b"one")
    store.put("two", b"two")
    store.copy("one", "two")
    assert store.get("two") == b"one"
    store.copy("one", "three", if_absent=True)
    assert store.get("three") == b"one"


@pytest.mark.parametrize("place", KEEPS_CONDITIONAL_COPY, indirect=True)
def test_a_conditional_copy_is_refused_when_the_target_exists(store: ObjectStore) -> None:
    """With if_absent an existing target is AlreadyExists and stays."""
    store.put("one", b"one")
    store.put("two", b"two")
    with pytest.raises(AlreadyExists):
        store.copy("one", "two", if_absent=True)
    assert store.get("two") == b"two"


BAD_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/../b", "a\\b", "a\nb", "a\x00b", "a."]


@pytest.mark.parametrize("key", [*BAD_KEYS, "\ud800", "x" * 256, "/".join(["y" * 100] * 10)], ids=ascii)
def test_a_key_that_some_store_cannot_hold_is_refused(store: ObjectStore, key: str) -> None:
    """The rule of base.check_key holds on every verb, before anything is sent."""
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.read(key),
        lambda: list(store.stream(key)),
        lambda: store.delete([key]),
        lambda: store.copy(key, "ok"),
    ):
        with pytest.raises(Invalid):
            call()


def test_a_closed_store_can_be_used_again(store: ObjectStore) -> None:
    """close releases connections; the next call makes new ones."""
    store.put("k", b"x")
    store.close()
    store.close()
    assert store.get("k") == b"x"


def test_a_store_sees_only_what_is_below_its_prefix(place: Place) -> None:
    """Keys are relative; a neighbour whose name begins alike is not inside."""
    parent = place.open()
    parent.put("p/k", b"inside")
    parent.put("p2/k", b"beside")
    below = Place(place.scheme, f"{place.url}/p", place.options).open()
    assert [info.key for info in below.list()] == ["k"]
    assert below.get("k") == b"inside"
    below.put("new", b"x")
    below.delete(["k"])
    assert [info.key for info in parent.list()] == ["p/new", "p2/k"]
    parent.close()
    below.close()


def test_the_url_is_what_a_user_types(place: Place, store: ObjectStore) -> None:
    """The URL of a store opens the same store, and holds no credentials."""
    store.put("k", b"x")
    again = Place(place.scheme, store.url, place.options).open()
    assert again.get("k") == b"x"
    assert again.url == store.url
    for secret in ("accessKey", "secretKey", "connectionString"):
        assert place.options.get(secret, "no secret") not in store.url
    again.close()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_missing_bucket_says_so(request: pytest.FixtureRequest, scheme: str) -> None:
    """A bucket that does not exist is an error that names it, never an empty store."""
    server = request.getfixturevalue(f"{scheme}_server")
    url = server.url().replace("ckpt-test", "ckpt-missing")
    store = Place(scheme, url, {**server.options, "retrySeconds": "0"}).open()
    for call in (lambda: store.put("k", b"x"), lambda: list(store.list())):
        with pytest.raises(CheckpointError) as caught:
            call()
        assert isinstance(caught.value, Invalid | SettingsError)
        assert "ckpt-missing" in str(caught.value)
    with pytest.raises(CheckpointError) as caught:
        store.get("k")
    store.close()
