"""Listing, odd keys and deleting in bulk, on every backend."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_checkpoint.errors import Invalid
from pyspark_checkpoint.store.base import ObjectStore
from tests.conftest import KEEPS_A_BESIDE_A_B

ODD_KEYS = [
    "with space/and another",
    "ünï/çødé",
    "日本語/キー",
    "emoji-😀",
    "last-of-the-plane-\uffee",
    "100%/a%20b%2Fc",
    "%",
    "a+b",
    "question?x=1&y=2",
    "hash#fragment",
    "a&b=c;d,e",
    "quote'\"quote",
    "(x)[y]{z}<w>",
    "colon:at@dollar$",
    "*star!~tilde^caret`tick|pipe",
    "..hidden/.x/...y",
    "<Key>&amp;</Key>",
]


def keys_of(store: ObjectStore, prefix: str = "", start_after: str | None = None) -> list[str]:
    return [info.key for info in store.list(prefix, start_after=start_after)]


def put_all(store: ObjectStore, keys: Iterable[str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))


@pytest.mark.parametrize("key", ODD_KEYS)
def test_an_odd_key_works_with_every_verb(store: ObjectStore, key: str) -> None:
    """Spaces, unicode, percent signs, plus, question mark and hash are just characters."""
    version = store.put(key, b"odd", if_absent=True)
    store.put(key, b"odder", if_match=version)
    assert store.get(key) == b"odder"
    assert store.get(key, start=1, end=3) == b"dd"
    assert store.head(key).key == key
    assert keys_of(store) == [key]
    assert keys_of(store, key[:-1].rstrip("/")) == [key]
    store.copy(key, "copied/" + key)
    assert store.get("copied/" + key) == b"odder"
    store.delete([key, "copied/" + key])
    assert keys_of(store) == []


def test_odd_keys_together_are_listed_in_byte_order(store: ObjectStore) -> None:
    """The order is that of the UTF-8 bytes, also beyond the first unicode plane."""
    put_all(store, ODD_KEYS)
    assert keys_of(store) == sorted(ODD_KEYS, key=str.encode)
    store.delete(ODD_KEYS)
    assert keys_of(store) == []


def test_a_slash_is_a_character_with_its_place_in_the_order(store: ObjectStore) -> None:
    """Between dot and zero: the order is of whole keys, not of directories."""
    keys = ["a-b", "a.b", "a/b", "a/b-c", "a/b.c/d", "a/b0", "a0", "b"]
    put_all(store, keys)
    assert keys_of(store) == keys
    assert keys_of(store, "a") == keys[:-1]
    for after in [*keys, "a/", "a/b/", "a/b.c"]:
        expected = [key for key in keys if key.encode() > after.encode()]
        assert keys_of(store, start_after=after) == expected


def test_listing_is_by_text_and_not_by_directory(store: ObjectStore) -> None:
    """A prefix may end within a name."""
    keys = ["a/b", "a/b-c", "a/bc", "a/c/d", "a0", "b"]
    put_all(store, keys)
    assert keys_of(store) == keys
    assert keys_of(store, "a") == keys[:-1]
    assert keys_of(store, "a/") == ["a/b", "a/b-c", "a/bc", "a/c/d"]
    assert keys_of(store, "a/b") == ["a/b", "a/b-c", "a/bc"]
    assert keys_of(store, "a/c/") == ["a/c/d"]
    assert keys_of(store, "a/b/") == []
    assert keys_of(store, "a/x") == []
    assert keys_of(store, "x/y/z") == []


def test_start_after_leaves_out_what_comes_before(store: ObjectStore) -> None:
    """Keys up to and including start_after are left out; it need not exist."""
    keys = ["a/b/c", "a/b/d", "a/e", "a0", "b/c"]
    put_all(store, keys)
    for after in [*keys, "a/b", "a/b/cc", "a/", "0", "zz"]:
        expected = [key for key in keys if key.encode() > after.encode()]
        assert keys_of(store, start_after=after) == expected
    assert keys_of(store, "a/", start_after="a/b/c") == ["a/b/d", "a/e"]
    assert keys_of(store, "a/", start_after="0") == ["a/b/c", "a/b/d", "a/e"]
    assert keys_of(store, "a/", start_after="b") == []


def test_a_prefix_that_no_key_can_have_is_invalid(store: ObjectStore) -> None:
    """A malformed prefix is an error, not an empty answer."""
    for prefix in ("/a", "a//b", "a/../b", "\\"):
        with pytest.raises(Invalid):
            list(store.list(prefix))


def test_an_empty_store_lists_nothing(store: ObjectStore) -> None:
    """No object, no answer, no error; deleting there is fine too."""
    assert keys_of(store) == []
    assert keys_of(store, "a/b") == []
    store.delete(["a/b"])


def test_listing_and_deleting_go_beyond_one_page(store: ObjectStore) -> None:
    """1,100 keys: more than a page of a listing and more than any service deletes at once."""
    keys = [f"many/{index:05d}" for index in range(1100)]
    put_all(store, keys)
    store.put("other", b"stays")
    assert keys_of(store, "many/") == keys
    assert keys_of(store, "many/", start_after=keys[1049]) == keys[1050:]
    infos = list(store.list("many/"))
    assert {info.size_bytes for info in infos} == {len(keys[0])}
    assert infos[1050].version == store.head(keys[1050]).version
    store.delete(keys)
    assert keys_of(store) == ["other"]


def test_keys_that_were_listed_can_be_deleted_on_the_way(store: ObjectStore) -> None:
    """Deleting what a listing has given does not disturb the rest of it."""
    keys = [f"d{index % 3}/{index:03d}" for index in range(60)]
    put_all(store, keys)
    seen = []
    for info in store.list():
        seen.append(info.key)
        store.delete([info.key])
    assert seen == sorted(keys)
    assert keys_of(store) == []


BESIDE = [("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c/d")]


@pytest.mark.parametrize("place", ("memory", "file"), indirect=True)
@pytest.mark.parametrize(("first", "second"), BESIDE)
def test_a_disk_cannot_hold_a_key_beside_a_key_below_it(
    store: ObjectStore, first: str, second: str
) -> None:
    """Both a and a/b is Invalid on a disk, and memory is as strict; after a delete the other may come."""
    store.put(first, b"first")
    for condition in (False, True):
        with pytest.raises(Invalid):
            store.put(second, b"second", if_absent=condition)
    assert keys_of(store) == [first]
    store.delete([first])
    store.put(second, b"second", if_absent=True)
    assert store.get(second) == b"second"
    assert keys_of(store) == [second]


@pytest.mark.parametrize("place", KEEPS_A_BESIDE_A_B, indirect=True)
@pytest.mark.parametrize(("first", "second"), BESIDE)
def test_a_cloud_holds_a_key_beside_a_key_below_it(store: ObjectStore, first: str, second: str) -> None:
    """There a slash is just a character."""
    store.put(first, b"first")
    store.put(second, b"second", if_absent=True)
    assert store.get(first) == b"first"
    assert keys_of(store) == sorted([first, second])
