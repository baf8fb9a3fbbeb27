"""Which files of the sources' own logs belong to an epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.spark_files.logs import OffsetLog, decode_offset_log
from pyspark_checkpoint.spark_files.source_logs import plan_source_logs


def offsets_of(*values: str | None, names: tuple[str, ...] = ()) -> OffsetLog:
    return OffsetLog(0, 0, {}, values, names)


def source_log_files(paths: tuple[str, ...], offset: str) -> tuple[str, ...]:
    """What is kept of the log of a query's only source."""
    return plan_source_logs({"only": paths}, offsets_of(offset, names=("only",)))


def test_a_file_sources_log_is_cut_to_the_offset() -> None:
    """Later entries would make a restored query skip files silently."""
    log = (*tuple(f"sources/0/{n}" for n in (*range(9), 10, 11, 12)), "sources/0/9.compact")
    assert source_log_files(log, '{"logOffset":11}') == (
        "sources/0/9.compact",
        "sources/0/10",
        "sources/0/11",
    )
    assert source_log_files(log, '{"logOffset":3}') == tuple(f"sources/0/{n}" for n in range(4))
    assert source_log_files(log, '{"logOffset":9}') == ("sources/0/9.compact",)
    with pytest.raises(RefusedError, match="entry 13"):
        source_log_files(log, '{"logOffset":13}')


def test_other_sources_keep_all_their_files() -> None:
    """Kafka's initial offsets and the rate source's start time are not numbered logs."""
    assert source_log_files(("sources/0/0",), '{"topic":{"0":12}}') == ("sources/0/0",)


def test_a_file_source_that_had_no_offset_yet_keeps_nothing() -> None:
    """Its log would tell a restored query that files were seen which were not."""
    logs_ = {"0": ("sources/0/0",), "1": ("sources/1/0", "sources/1/1")}
    then, now = (
        offsets_of('{"logOffset":0}', None),
        offsets_of('{"logOffset":5}', '{"logOffset":1}'),
    )
    assert plan_source_logs(logs_, then, now) == ("sources/0/0",)
    assert plan_source_logs(logs_, then, offsets_of(None, '{"t":{"0":1}}'))[1:] == logs_["1"]


def test_a_source_read_twice_has_one_log_and_two_offsets() -> None:
    """Spark writes an offset for each place in the plan; what cannot be told apart is refused."""
    a, b = '{"logOffset":0}', '{"logOffset":1}'
    two = {"0": ("sources/0/0", "sources/0/1"), "1": ("sources/1/0", "sources/1/1")}
    assert plan_source_logs(two, offsets_of(a, a, b)) == ("sources/0/0", "sources/1/0", "sources/1/1")
    assert plan_source_logs(two, offsets_of(a, a)) == ("sources/0/0", "sources/1/0")
    with pytest.raises(RefusedError, match="cannot match source offsets"):
        plan_source_logs({"2": ("sources/2/0",)}, offsets_of(a, a, b))


def log_of(source: int, *entries: int | str) -> tuple[str, ...]:
    return tuple(f"sources/{source}/{entry}" for entry in entries)


FILE, NEXT, OTHER = '{"logOffset":3}', '{"logOffset":5}', '{"n":17}'


@pytest.mark.parametrize(
    ("directories", "values"), [((0, 2), (FILE, OTHER, FILE)), ((1, 2), (OTHER, FILE, FILE))]
)
def test_two_file_sources_at_one_offset_are_both_cut(
    directories: tuple[int, ...], values: tuple[str, ...]
) -> None:
    """Beside a source without a directory they must not be taken for one that is read twice."""
    logs_ = {str(number): log_of(number, *range(6)) for number in directories}
    later = offsets_of(*(NEXT if value == FILE else value for value in values))
    expected = tuple(path for number in directories for path in log_of(number, *range(4)))
    assert plan_source_logs(logs_, offsets_of(*values), later) == expected


def test_a_log_that_may_be_a_file_sources_is_never_left_uncut() -> None:
    """One file source in two places and another log, or two file sources and none: what tells them apart
    is used, what fits both is kept, and where nothing does the capture is refused."""
    places = offsets_of(FILE, FILE, OTHER)
    both = {"0": log_of(0, *range(6)), "1": log_of(1, *range(6))}
    cut = (*log_of(0, *range(4)), *log_of(1, *range(4)))
    for newest in (None, offsets_of(NEXT, NEXT, OTHER)):
        with pytest.raises(RefusedError, match="cannot match source offsets"):
            plan_source_logs(both, places, newest)
    # Later on they stand at different offsets: they are two.
    assert plan_source_logs(both, places, offsets_of(NEXT, FILE, OTHER)) == cut
    # Kafka's initial offsets: no file source is at entry 3 with such a log.
    kafka = {"0": log_of(0, *range(6)), "1": log_of(1, 0)}
    assert plan_source_logs(kafka, places) == (*log_of(0, *range(4)), *log_of(1, 0))
    # Nothing is later than the offset: the whole log is right for either.
    same = {"0": log_of(0, *range(4)), "1": log_of(1, 0, 1, "2.compact", 3)}
    assert plan_source_logs(same, places) == (*log_of(0, *range(4)), *log_of(1, 0, 1, "2.compact", 3))


def test_file_sources_without_an_offset_yet_are_told_from_others() -> None:
    """Both had none at the epoch; which directory is whose is told by the newest batch."""
    none_yet, later = offsets_of(None, None, OTHER), offsets_of(FILE, FILE, OTHER)
    kafka = {"0": log_of(0, *range(4)), "1": log_of(1, 0)}
    assert plan_source_logs(kafka, none_yet, later) == log_of(1, 0)
    with pytest.raises(RefusedError, match="cannot match source offsets"):
        plan_source_logs({**kafka, "1": log_of(1, *range(4))}, none_yet, later)


def test_logs_that_fit_no_reading_of_the_plan_are_refused() -> None:
    """A file source with an offset has a log; and a query has one number of sources for ever."""
    with pytest.raises(RefusedError, match="cannot match source offsets"):
        plan_source_logs({"1": log_of(1, 0)}, offsets_of(FILE, OTHER))
    with pytest.raises(RefusedError, match="cannot match source offsets"):
        plan_source_logs({"0": log_of(0, *range(6))}, offsets_of(FILE), offsets_of(FILE, FILE))


def test_many_places_at_one_offset_are_read_at_once() -> None:
    """The ways to number them are more than could be tried."""
    logs_ = {str(number): log_of(number, *range(6)) for number in range(20)}
    found = plan_source_logs(logs_, offsets_of(*[FILE] * 40))
    assert found == tuple(path for number in range(20) for path in log_of(number, *range(4)))


@given(st.data())
def test_no_way_to_number_the_sources_leaves_later_entries(data: st.DataObject) -> None:
    """Whatever the plan is: what is kept of a file source's log ends at its offset, or it is refused."""
    sources = data.draw(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=4))
    first = list(range(len(sources)))
    places = [
        place for at in first for place in (at, *data.draw(st.lists(st.sampled_from(first[: at + 1]))))
    ]
    logs_ = {
        str(at): log_of(at, *range(last + 1 + data.draw(st.integers(0, 2))))
        for at, last in enumerate(sources)
        if last is not None
    }
    for at, last in enumerate(sources):
        if last is None and data.draw(st.booleans()):
            logs_[str(at)] = log_of(at, *range(data.draw(st.integers(1, 4))))
    texts = [OTHER if last is None else f'{{"logOffset":{last}}}' for last in sources]
    try:
        found = plan_source_logs(dict(sorted(logs_.items())), offsets_of(*(texts[at] for at in places)))
    except RefusedError:
        return
    for source, paths in logs_.items():
        last = sources[int(source)]
        wanted = paths if last is None else paths[: last + 1]
        assert tuple(path for path in found if path in paths) == wanted


def test_named_sources_are_matched_by_name() -> None:
    """Version 2 of the offset log has names, and so have the directories."""
    offsets = decode_offset_log(
        b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{}}\nb:{"logOffset":0}\na:-', "offsets/1"
    )
    assert offsets == OffsetLog(0, 7, {}, ('{"logOffset":0}', None), ("b", "a"))
    logs_ = {"a": ("sources/a/0",), "b": ("sources/b/0", "sources/b/1")}
    assert plan_source_logs(logs_, offsets) == ("sources/a/0", "sources/b/0")
    with pytest.raises(FormatError, match="version 3"):
        decode_offset_log(b'v3\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n-', "offsets/1")
