"""Sizes, times and tables as people read them, and what people may type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import parse_options, parse_span_ms
from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.history.lookup import parse_timestamp_ms


@pytest.mark.parametrize(
    ("size_bytes", "told"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_999, "1.00 MB"),
        (-2500, "-2.50 kB"),
        (5 * 10**18, "5000 PB"),
    ],
)
def test_a_size_has_three_digits_that_count(size_bytes: int, told: str) -> None:
    """And the unit in which it has them."""
    assert text.size(size_bytes) == told


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [
        (0, "0 ms"),
        (350, "350 ms"),
        (4_000, "4.0 s"),
        (59_999, "59 s"),
        (60_000, "1 m"),
        (3_725_000, "1 h 2 m"),
        (90_000_000, "1 d 1 h"),
        (86_405_000, "1 d"),
    ],
)
def test_a_span_has_its_two_largest_units(milliseconds: int, told: str) -> None:
    """Nothing is said that does not matter."""
    assert text.span(milliseconds) == told


@given(st.integers(0, 10**13))
def test_what_is_told_as_seconds_can_be_typed(milliseconds: int) -> None:
    """A span in one unit is read back exactly."""
    assert parse_span_ms(f"{milliseconds}ms") == milliseconds


@pytest.mark.parametrize(
    ("typed", "milliseconds"), [("30s", 30_000), ("1.5h", 5_400_000), ("7d", 604_800_000), ("10", 10_000)]
)
def test_a_length_of_time_as_people_type_it(typed: str, milliseconds: int) -> None:
    """A number and a unit; a bare number is seconds."""
    assert parse_span_ms(typed) == milliseconds


@pytest.mark.parametrize("typed", ["", "soon", "-5s", "5 years"])
def test_what_is_no_length_of_time_is_refused(typed: str) -> None:
    """With an example."""
    with pytest.raises(SettingsError):
        parse_span_ms(typed)


def test_times_are_utc_unless_said() -> None:
    """ISO 8601 or milliseconds."""
    assert parse_timestamp_ms("1970-01-01T00:00:01", "--as-of") == 1000
    assert parse_timestamp_ms("1970-01-01T01:00:01+01:00", "--as-of") == 1000
    assert parse_timestamp_ms("1234", "--as-of") == 1234
    with pytest.raises(SettingsError, match="--as-of is not a time"):
        parse_timestamp_ms("noon", "--as-of")


def test_options_are_split_at_the_first_equals_sign() -> None:
    """A secret may have others; the key file's option is known in any case of letters."""
    assert parse_options(["secretKey=a=b==", "ENCRYPTIONKEYFILE=k"]) == {
        "secretKey": "a=b==",
        "encryptionKeyFile": "k",
    }
    with pytest.raises(SettingsError) as found:
        parse_options(["hunter2"])
    assert "hunter2" not in str(found.value)


@given(st.sets(st.integers(1, 60)))
def test_ranges_name_every_number_once(numbers: set[int]) -> None:
    """However they lie."""
    named: set[int] = set()
    for part in filter(None, text.ranges(numbers).split(", ")):
        low, _, high = part.partition("-")
        span = set(range(int(low), int(high or low) + 1))
        assert not named & span
        named |= span
    assert named == numbers


def test_a_table_keeps_its_columns() -> None:
    """Numbers to the right, words to the left, nothing after the last word."""
    assert text.table((">n", "word"), [("1", "a"), ("10", "")]) == [" n  word", " 1  a", "10"]


@pytest.mark.parametrize(
    ("timestamp_ms", "told"),
    [
        (None, ""),
        (0, "1970-01-01 00:00:00Z"),
        (253_402_300_799_999, "9999-12-31 23:59:59Z"),
        (253_402_300_800_000, "253402300800000 ms since 1970"),
        (2**63 - 1, "9223372036854775807 ms since 1970"),
        (-(2**63), "-9223372036854775808 ms since 1970"),
    ],
)
def test_a_moment_that_no_calendar_has_is_a_number(timestamp_ms: int | None, told: str) -> None:
    """A watermark is whatever the data says, also one beyond the year 9999."""
    assert text.moment(timestamp_ms) == told
