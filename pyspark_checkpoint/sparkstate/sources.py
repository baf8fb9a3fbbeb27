"""Which files of the sources' own logs belong to an epoch. Pure.

A file source keeps a log of the files it has seen, numbered on its own. Left in too long it makes a
restored query skip or merge files silently, so it is cut exactly; and where it is not certain which
offset belongs to which log, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.sparkstate.logs import OffsetLog, file_source_offset

COMPACT_SUFFIX = ".compact"


def plan_source_logs(
    logs: Mapping[str, tuple[str, ...]], offsets: OffsetLog, newest: OffsetLog | None = None
) -> tuple[str, ...]:
    """The files of all sources' logs that belong to ``offsets``.

    ``newest`` is the newest offset log that there is: it tells what kind a source is that had no offset
    yet. A file source without an offset keeps nothing; any other keeps what it has.
    """
    now, later = _by_directory(logs, offsets), _by_directory(logs, newest or offsets)
    chosen: list[str] = []
    for source, paths in logs.items():
        if now.get(source) is None and file_source_offset(later.get(source)) is not None:
            continue
        chosen += source_log_files(paths, now.get(source))
    return tuple(chosen)


def source_log_files(paths: tuple[str, ...], offset: str | None) -> tuple[str, ...]:
    """The files of a source's own log that belong to an offset.

    A file source's log is cut: the newest compacted entry at or below the offset, and the entries
    after it. Other sources keep a few small files there (a start time, initial offsets): all of them.
    """
    last = file_source_offset(offset)
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
            hint="Spark removes compacted entries after a while; take a newer epoch",
        )
    return tuple(entries[n] for n in wanted)


def _by_directory(logs: Mapping[str, tuple[str, ...]], offsets: OffsetLog) -> dict[str, str | None]:
    """The offset that belongs to each source's directory.

    Spark numbers directories by source and writes an offset for each place of a source in the plan: a
    frame that is read in two places has two equal offsets and one directory.
    """
    values = offsets.offsets
    if offsets.names:
        return dict(zip(offsets.names, values, strict=True))
    by_place = {str(index): value for index, value in enumerate(values)}
    by_source = {str(index): value for index, value in enumerate(dict.fromkeys(values))}
    used = [source for source in logs if by_place.get(source) != by_source.get(source)]
    if not used or len(logs) == len(values):
        return by_place
    if len(logs) == len(by_source):
        return by_source
    raise RefusedError(
        "it cannot be told which offset belongs to which source's log",
        hint="a source is read in several places of the plan beside others; name the sources, or read "
        "each place by a frame of its own",
    )


def _entry_number(path: str) -> int:
    name = path.rsplit("/", 1)[-1].removesuffix(COMPACT_SUFFIX)
    return int(name) if name.isdigit() else -1
