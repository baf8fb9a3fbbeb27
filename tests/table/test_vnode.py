"""Layout of keyed tables: which partition owns what, and how repartitioning moves it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.table.murmur3 import spark_hash
from pyspark_checkpoint.table.vnode import (
    check_layout,
    default_vnodes,
    parse_vnodes,
    sources_of,
    vnodes_of,
)


def test_known_values_of_sparks_hash() -> None:
    """What Spark answers to ``SELECT hash(...)`` for a few values; tests/sink asks it about all types."""
    assert spark_hash([pa.array([1], pa.int32())]).view(np.int32).tolist() == [-559580957]
    assert spark_hash([pa.array([1], pa.int64())]).view(np.int32).tolist() == [-1712319331]
    assert spark_hash([pa.array(["Spark"])]).view(np.int32).tolist() == [228093765]
    assert spark_hash([pa.array([None], pa.string())]).view(np.int32).tolist() == [42]


@given(st.lists(st.binary(max_size=9), min_size=1), st.integers(0, 9))
def test_texts_of_one_length_hash_as_they_do_among_others(texts: list[bytes], length: int) -> None:
    """There is a faster way for columns of equal lengths, and it must not be another hash."""
    equal = [(text * 10)[:length].ljust(length, b"x") for text in texts]
    alone = spark_hash([pa.array(equal, pa.binary())]).tolist()
    mixed = spark_hash([pa.array([*equal, b"another length"], pa.binary())]).tolist()[:-1]
    assert alone == mixed


@given(st.integers(1, 400))
def test_default_vnodes_is_the_smallest_multiple_from_256_on(partitions: int) -> None:
    """A table can always be split by its default number of vnodes."""
    vnodes = default_vnodes(partitions)
    assert vnodes % partitions == 0
    assert vnodes >= 256
    assert vnodes - partitions < 256


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8, 16]), st.lists(st.integers()))
def test_split_anew_finds_each_row_in_the_partitions_it_reads(
    old: int, new: int, values: list[int]
) -> None:
    """Whatever the two numbers of partitions, a row's new partition reads the row's old one."""
    keys = pa.array([value % 2**63 for value in values], pa.int64())
    for vnode in vnodes_of([keys], 256).tolist():
        assert vnode % old in sources_of(vnode % new, new, old)


@pytest.mark.parametrize(
    ("old", "new", "partition", "sources"), [(4, 16, 6, (2,)), (16, 4, 1, (1, 5, 9, 13))]
)
def test_split_anew_reads_no_more_than_it_must(
    old: int, new: int, partition: int, sources: tuple[int, ...]
) -> None:
    """Four partitions become sixteen by splitting each into four, and the other way round."""
    assert sources_of(partition, new, old) == sources


def test_partitions_must_divide_the_vnodes() -> None:
    """The message names numbers that would do."""
    with pytest.raises(SettingsError, match="choose one of 2, 4, 8") as caught:
        check_layout(7, 256)
    assert "7 partitions do not divide" in str(caught.value)


def test_parse_vnodes_reads_ranges() -> None:
    """Numbers and ranges, joined."""
    assert parse_vnodes("0-3, 9,2", 16) == (0, 1, 2, 3, 9)


@pytest.mark.parametrize("text", ["", "a", "3-1", "16", "1-", "-1", "\u00b2", "0-\u00b2"])
def test_parse_vnodes_refuses_what_the_table_does_not_have(text: str) -> None:
    """A list that means nothing is an error, not everything."""
    with pytest.raises(SettingsError):
        parse_vnodes(text, 16)
