"""Work in groups: bounded by bytes, in order, with nothing left out."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.store.parallel import group_by_size


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([0], [(0,)]),
        ([0, 0, 10, 0], [(0, 0, 10, 0)]),
        ([4, 6, 1], [(4, 6), (1,)]),
        ([25, 1, 25], [(25,), (1,), (25,)]),
    ],
)
def test_a_group_is_full_or_one_larger_item(sizes: list[int], groups: list[tuple[int, ...]]) -> None:
    """Also of empty files, by which a restore may begin."""
    assert list(group_by_size(sizes, lambda size: size, 10)) == groups
