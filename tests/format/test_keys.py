"""Names: built and parsed in pairs, sorted as numbers are, and refused when a store could not hold them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format import keys
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths, StatusKey
from pyspark_checkpoint.store.base import check_key
from tests.format.strategies import attempts, names, numbers, partitions

BAD_NAMES = [
    "",
    "a/b",
    "/",
    "..",
    ".",
    "a\\b",
    "a\nb",
    "a\x00",
    "\x7f",
    "é" * 61,
    "x" * 300,
    "a.",
    " a",
    "a ",
]
failures = st.integers(0, 999_999_999)


@given(numbers)
def test_manifest_and_seal_keys_are_read_back(number: int) -> None:
    """Each name parses to its own number, and to nothing under the other's parser."""
    assert keys.parse_manifest_key(keys.manifest_key(number)) == number
    assert keys.parse_seal_key(keys.seal_key(number)) == number
    assert keys.parse_manifest_key(keys.seal_key(number)) is None
    assert keys.parse_seal_key(keys.manifest_key(number)) is None
    assert keys.parse_status_key(keys.manifest_key(number)) is None
    assert keys.parse_status_key(keys.seal_key(number)) is None


@given(numbers, names, failures)
def test_status_keys_are_read_back(number: int, sink: str, failure: int) -> None:
    """Whatever the sink is called, also if its name looks like a part of a status key."""
    committed, failed = keys.committed_key(number, sink), keys.failed_key(number, sink, failure)
    assert keys.parse_status_key(committed) == StatusKey(number, sink, None)
    assert keys.parse_status_key(failed) == StatusKey(number, sink, failure)
    for key in (committed, failed):
        assert keys.parse_manifest_key(key) is None


@given(numbers, failures)
def test_a_sink_named_like_a_suffix_is_read_back(number: int, failure: int) -> None:
    """The parser takes the last suffix, so that none of these names is cut."""
    for sink in ("seal", "x.committed", "x.failed-1", "json", "a.committed.json"):
        assert keys.parse_status_key(keys.committed_key(number, sink)) == StatusKey(number, sink, None)
        failed = keys.failed_key(number, sink, failure)
        assert keys.parse_status_key(failed) == StatusKey(number, sink, failure)


@given(attempts, names, partitions)
def test_artifact_keys_are_read_back_and_accepted(
    attempt: CheckpointId, operator: str, partition: int
) -> None:
    """Each lies below its attempt, is an artifact path, and is a key that every store can hold."""
    made = [
        CheckpointPaths.snapshot(attempt, operator, partition),
        CheckpointPaths.delta(attempt, operator, partition),
        CheckpointPaths.pack(attempt, partition),
        CheckpointPaths.file(attempt, partition),
    ]
    assert len(set(made)) == 4
    for key in made:
        parsed = keys.parse_attempt_key(key)
        assert parsed is not None
        assert parsed[0] == attempt
        assert key == CheckpointPaths.checkpoint_dir(attempt) + parsed[1]
        assert keys.check_artifact_path(key) == check_key(key)
    assert CheckpointId.parse(str(attempt)) == attempt


@given(names)
def test_every_accepted_name_makes_a_key_that_every_store_holds(name: str) -> None:
    """The strictest service decides, not the one in use today."""
    check_key(keys.committed_key(1, name))
    check_key(keys.failed_key(1, name, 999_999_999))


@given(st.text(st.characters(), max_size=200))
def test_any_text_is_either_refused_or_a_good_key(name: str) -> None:
    """There is no name between: what ``check_name`` lets through works."""
    try:
        keys.check_name(name, "operator")
    except RefusedError:
        return
    check_key(keys.committed_key(1, name))


@given(numbers, numbers)
def test_names_sort_as_their_numbers(one: int, other: int) -> None:
    """Fault 14 of the seed system: six digits, sorted as text, were wrong after 999,999."""
    assert (one < other) == (keys.manifest_key(one) < keys.manifest_key(other))
    assert (one < other) == (keys.pad(one) < keys.pad(other))


@given(attempts, attempts)
def test_attempts_sort_by_number_first(one: CheckpointId, other: CheckpointId) -> None:
    """As values and as text alike."""
    assert (one < other) == (str(one) < str(other))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_operator_or_sink_name_is_refused_with_the_cure(name: str) -> None:
    """Slash, dots, control characters and 300 characters: refused before anything is written."""
    attempt = CheckpointId(1, "01890a5d-ac96-774b-bcce-b302099a8057")
    makers: tuple[Callable[[], str], ...] = (
        lambda: CheckpointPaths.snapshot(attempt, name, 0),
        lambda: CheckpointPaths.delta(attempt, name, 0),
        lambda: keys.committed_key(1, name),
        lambda: keys.failed_key(1, name, 0),
    )
    for make in makers:
        with pytest.raises(RefusedError, match="without slashes") as caught:
            make()
        assert len(str(caught.value)) < 400


def test_a_lone_surrogate_in_a_name_is_refused() -> None:
    """It is text in Python and nowhere else."""
    with pytest.raises(RefusedError, match="unicode"):
        keys.check_name("a\ud800", "operator")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "_control",
        "/etc/passwd",
        "../outside",
        "manifests/manifest-0000000001.json",
        "checkpoints/0000000001-01890a5d-ac96-774b-bcce-b302099a8057/../../x",
        "checkpoints/0000000001-01890a5d-ac96-774b-bcce-b302099a8057/./x",
        "checkpoints/0000000001-01890a5d-ac96-774b-bcce-b302099a8057//x",
        "checkpoints/0000000001-01890a5d-ac96-774b-bcce-b302099a8057/a\\..\\x",
        "checkpoints/0000000001-01890a5d-ac96-774b-bcce-b302099a8057/a\x00b",
        "checkpoints/0000000001-01890a5d-ac96-774b-bcce-b302099a8057/",
        "checkpoints/1-01890a5d-ac96-774b-bcce-b302099a8057/x",
        "checkpoints/0000000001-not-a-uuid/x",
        "x/checkpoints/0000000001-01890a5d-ac96-774b-bcce-b302099a8057/x",
    ],
)
def test_a_path_that_is_no_artifact_of_the_store_is_refused(path: str) -> None:
    """A manifest that was tampered with cannot make a reader leave the store's artifacts."""
    with pytest.raises(FormatError):
        keys.check_artifact_path(path)


@pytest.mark.parametrize("number", [-1, keys.MAX_NUMBER + 1])
def test_a_number_that_would_not_sort_is_refused(number: int) -> None:
    """Eleven digits would sort before ten."""
    for make in (keys.manifest_key, keys.seal_key, keys.pad):
        with pytest.raises(FormatError):
            make(number)


def test_partition_pack_and_failure_numbers_have_bounds() -> None:
    """A negative one would be another name, not an error, at the store."""
    attempt = CheckpointId(1, "01890a5d-ac96-774b-bcce-b302099a8057")
    makers: tuple[Callable[[], str], ...] = (
        lambda: CheckpointPaths.pack(attempt, -1),
        lambda: CheckpointPaths.snapshot(attempt, "a", 100_000_000),
        lambda: keys.failed_key(1, "s", -1),
    )
    for make in makers:
        with pytest.raises(FormatError):
            make()


@given(st.uuids(version=4).map(str))
def test_data_key_names_are_read_back(data_key_id: str) -> None:
    """And refuse what is not an id."""
    assert keys.parse_data_key_key(keys.data_key_key(data_key_id)) == data_key_id
    for bad in ("", "../x", "A" * 8, "0" * 65):
        with pytest.raises(FormatError):
            keys.data_key_key(bad)


@given(st.text(max_size=60))
def test_parsers_return_none_for_other_keys(key: str) -> None:
    """A stray object in the bucket is not an error."""
    for parse in (
        keys.parse_manifest_key,
        keys.parse_seal_key,
        keys.parse_status_key,
        keys.parse_attempt_key,
        keys.parse_data_key_key,
    ):
        assert parse(key) is None


@pytest.mark.parametrize(
    "key", ["manifests/manifest-0000000001.json\n", "manifests/manifest-0000000001.s.failed-01.json"]
)
def test_a_key_that_is_not_exactly_ours_is_not_parsed(key: str) -> None:
    """A trailing newline, or a number with a leading zero, would make two names of one object."""
    assert keys.parse_manifest_key(key) is None
    assert keys.parse_status_key(key) is None
