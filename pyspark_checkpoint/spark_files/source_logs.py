"""Which files of the sources' own logs belong to a batch. Pure.

A file source keeps a log of the files it has seen, numbered on its own. Left in too long it makes a
restored query skip or merge files silently, so it is cut exactly; and where it is not certain which
offset belongs to which log, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.fields import number_in
from pyspark_checkpoint.spark_files.logs import OffsetLog, file_source_offset

COMPACT_SUFFIX = ".compact"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one place of a source in the plan stands: at the batch, and in the newest batch."""

    now: str | None
    later: str | None

    @property
    def last(self) -> int | None:
        """The last entry of its log that belongs to the batch, -1 if none does; None if it has no such log.

        What kind a source is that had no offset yet is told by the newest batch.
        """
        if self.now is None:
            return None if file_source_offset(self.later) is None else -1
        return file_source_offset(self.now)

    def may_have(self, paths: tuple[str, ...]) -> bool:
        """Whether a source that stands here can have this log: a file source has the entry it stands at."""
        last = file_source_offset(self.later if self.now is None else self.now)
        return last is None or last <= _newest_entry(paths)


def plan_source_logs(
    logs: Mapping[str, tuple[str, ...]], offsets: OffsetLog, newest: OffsetLog | None = None
) -> tuple[str, ...]:
    """The files of all sources' logs that belong to ``offsets``.

    ``newest`` is the newest offset log that there is: it tells what kind a source is that had no offset
    yet. A file source without an offset keeps nothing; any other keeps what it has. A directory that no
    source of the plan can have is none of Spark's, and kept.
    """
    if not logs:
        return ()
    newest = newest or offsets
    if bool(offsets.names) != bool(newest.names):
        raise _unknown()
    if offsets.names:
        now, later = _by_name(offsets), _by_name(newest)
        found = {name: {_Place(now.get(name), later.get(name))} for name in logs}
    else:
        found = _by_number(logs, _places(offsets, newest))
    return tuple(path for source, paths in logs.items() for path in _files_of(paths, found.get(source)))


def _cut(paths: tuple[str, ...], last: int | None) -> tuple[str, ...]:
    """The files of a source's own log up to entry ``last``.

    A file source's log is cut: the newest compacted entry at or below the offset, and the entries
    after it. Other sources keep a few small files there (a start time, initial offsets): all of them.
    """
    if last is None:
        return paths
    entries = {number: path for path in paths if (number := _entry_number(path)) >= 0}
    compacted = [n for n, path in entries.items() if path.endswith(COMPACT_SUFFIX) and n <= last]
    first = max(compacted, default=0)
    wanted = [n for n in sorted(entries) if first <= n <= last]
    missing = sorted(set(range(first, last + 1)) - set(wanted))
    if missing:
        raise RefusedError(
            f"entry {missing[0]} of the file source's log is gone",
            hint="Spark removes compacted entries after a while; take a newer batch",
        )
    return tuple(entries[n] for n in wanted)


def _files_of(paths: tuple[str, ...], places: Set[_Place] | None) -> tuple[str, ...]:
    """The files of a directory that is of one of these places; None for one that is not Spark's.

    If they differ, the whole log is right for each of them where nothing in it is later than any of their
    offsets; otherwise one of them would be wrong.
    """
    if places is None:
        return paths
    lasts = {place.last for place in places}
    if len(lasts) == 1:
        return _cut(paths, lasts.pop())
    if lasts and all(last is None or last >= _newest_entry(paths) for last in lasts):
        return paths
    raise _unknown()


def _by_name(offsets: OffsetLog) -> dict[str, str | None]:
    return dict(zip(offsets.names, offsets.offsets, strict=True))


def _places(offsets: OffsetLog, newest: OffsetLog) -> list[_Place]:
    """Both logs beside each other: without names, a query has the same places for ever."""
    if len(offsets.offsets) != len(newest.offsets):
        raise _unknown()
    pairs = zip(offsets.offsets, newest.offsets, strict=True)
    return [_Place(now, later) for now, later in pairs]


def _by_number(logs: Mapping[str, tuple[str, ...]], places: Sequence[_Place]) -> dict[str, set[_Place]]:
    """The places that the source of each directory may have, by every way to read the plan that fits.

    Spark writes an offset for each place of a source in the plan, and numbers directories by source, in
    the order of their first places: a frame that is read in two places has two equal offsets and one
    directory. Two sources may stand at equal offsets, too, so that equal places prove nothing. A reading
    fits if every directory has a source, and every file source with an offset a log that has its entry.
    """
    directories = [number for number in range(len(places)) if str(number) in logs]

    def begins(number: int, place: _Place) -> bool:
        return place.may_have(logs.get(str(number), ()))

    counts = [{0}]  # before each place: how many sources there may be so far
    for at, place in enumerate(places):
        first = {count + 1 for count in counts[at] if begins(count, place)}
        counts.append(first | (counts[at] if place in places[:at] else set()))
    fitting = {count for count in counts.pop() if count > max(directories, default=-1)}
    found: dict[str, set[_Place]] = {str(number): set() for number in directories}
    for at in reversed(range(len(places))):
        place = places[at]
        first = {count for count in counts[at] if count + 1 in fitting and begins(count, place)}
        for number in first & set(directories):
            found[str(number)].add(place)
        fitting = first | (fitting & counts[at] if place in places[:at] else set())
    return found


def _unknown() -> RefusedError:
    return RefusedError(
        "cannot match source offsets to source logs: the plan reads one source in several places beside "
        "others, or two file sources stand at one offset",
        hint="name the sources, or read each place by a DataFrame of its own",
    )


def _newest_entry(paths: tuple[str, ...]) -> int:
    return max(map(_entry_number, paths), default=-1)


def _entry_number(path: str) -> int:
    name = path.rsplit("/", 1)[-1].removesuffix(COMPACT_SUFFIX)
    number = number_in(name)
    return -1 if number is None else number
