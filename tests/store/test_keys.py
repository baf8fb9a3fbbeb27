"""Which keys every backend can hold."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_checkpoint.errors import Invalid
from pyspark_checkpoint.store.base import check_key


def can_hold(key: str) -> bool:
    """The rule of ``check_key``, said once more, segment by segment."""
    segments = key.split("/")
    return (
        len(key.encode("utf-8", "surrogatepass")) <= 900
        and not any("\ud800" <= character <= "\udfff" for character in key)
        and not any(character < " " or character in "\x7f\\" for character in key)
        and all(segment and not segment.endswith(".") for segment in segments)
        and all(len(segment.encode("utf-8", "surrogatepass")) <= 255 for segment in segments)
    )


@given(st.text(alphabet="aZ09_=-./\\ %é\n\x7f\ud800", max_size=12))
@example("a" * 255)
@example("a" * 256)
@example("/".join(["a" * 224] * 4))
@example("/".join(["a" * 225] * 4))
@example("a.")
@example(".a")
@example("a\n")
@example("")
def test_a_key_is_taken_exactly_when_the_rule_allows_it(key: str) -> None:
    """The quick look at plain keys lets nothing through that the rule forbids, and forbids nothing."""
    if can_hold(key):
        assert check_key(key) == key
    else:
        with pytest.raises(Invalid):
            check_key(key)
