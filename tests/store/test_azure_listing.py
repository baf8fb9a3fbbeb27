"""Azure lists by UTF-16 units; the contract is the order of UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.store.azure.azure_transfer import in_key_order, is_folder
from pyspark_checkpoint.store.base import ObjectInfo, Version

LETTERS = st.sampled_from("a/-z\ud7ff\ue000\uffee\U00010000\U0001f600")


def infos(keys: list[str]) -> list[ObjectInfo]:
    return [ObjectInfo(key, 0, Version("v"), 0) for key in keys]


@given(st.lists(st.text(LETTERS, min_size=1, max_size=5), unique=True))
def test_a_listing_comes_in_the_order_of_utf8(keys: list[str]) -> None:
    """Whatever characters the keys have, from the order of UTF-16 to that of UTF-8."""
    listed = infos(sorted(keys, key=lambda key: key.encode("utf-16-be")))
    assert [info.key for info in in_key_order(listed)] == sorted(keys, key=str.encode)


def test_usual_keys_are_passed_on_at_once() -> None:
    """Nothing is held back that is in order already, so that pages are fetched as they are needed."""
    taken = []

    def listed() -> Iterator[ObjectInfo]:
        for info in infos([f"k/{index:03}é" for index in range(100)]):
            taken.append(info.key)
            yield info

    first = next(in_key_order(listed()))
    assert first.key == "k/000é"
    assert len(taken) == 1


def test_a_directory_of_a_hierarchical_namespace_is_no_object() -> None:
    """Such accounts list directories as empty blobs with a mark."""
    assert is_folder(SimpleNamespace(metadata={"hdi_isfolder": "true"}))
    assert not is_folder(SimpleNamespace(metadata={"hdi_isfolder": "false"}))
    assert not is_folder(SimpleNamespace(metadata={}))
    assert not is_folder(SimpleNamespace(metadata=None))
