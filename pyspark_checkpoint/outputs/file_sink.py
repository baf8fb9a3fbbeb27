"""Spark's file sink: parquet, ORC, JSON, CSV and text below a path, with a log in ``_spark_metadata``.

The log has one entry a batch, named by its number, with the files that the batch wrote. Every tenth is
``N.compact`` and begins with all entries before it; Spark deletes those later. The sink is not keyed by the
query: whoever writes batch N to the path when the log has N is dropped, without its plan being run. So
nobody can say which query wrote an entry, and going back drops what anybody has written since.

Going back to N, so that whoever reads the log meanwhile sees the files of some batch from N to the newest:

1. Record which files go: those that the entries above N name, and the entry of N does not.
2. Delete the entries above N, the highest first, each after its ``.crc``: Spark fails on one left behind.
3. If Spark has deleted the entries up to N, a savepoint's pin says how many files of the first later
   compaction they were. That compaction moves down to the last one at or below N.
4. Delete the files, then the record.

What an entry says is not trusted: a file that is not below the sink's own path stops everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from pyspark_checkpoint.errors import Diverged, FormatError, Invalid, NotFound, SettingsError, StaleAttempt
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.outputs.output import Output, OutputKind, OutputPin, OutputPosition, RollBackPlan
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.base import ObjectStore, check_key
from pyspark_checkpoint.store.url import parse_store_url

LOG = "_spark_metadata/"
OWN = "_ckpt/"
"""Where this module keeps what the log does not say. Readers of the directory leave such names out."""
_MARK, _PENDING, _PINS = f"{OWN}base", f"{OWN}rollback", f"{OWN}pins/"
_ENTRY = re.compile(r"_spark_metadata/(\d{1,18})(\.compact)?\Z", re.ASCII)
_CHECKSUM = re.compile(r"_spark_metadata/\.(\d{1,18})(?:\.compact)?\.crc\Z", re.ASCII)
_VERSION = b"v1"
_USUAL_INTERVAL = 10
"""``spark.sql.streaming.fileSink.log.compactInterval``."""
_DAMAGED = "repair the sink's log, or let the query write to another target"


class FileSinkOutput(Output):
    """A directory that Spark's file sink writes to."""

    kind = OutputKind.FILE
    runs_skipped_batches = False
    records_every_batch = True

    def __init__(self, target: str, store: ObjectStore) -> None:
        """``store`` is opened at the sink's path."""
        super().__init__(target)
        self.store = store
        self._is_foreign = LocationSpec(store.url).is_foreign
        self._has_checksums = not self._is_foreign and parse_store_url(store.url).scheme == "file"

    def position(self, query_id: str) -> OutputPosition:  # noqa: ARG002 - the log knows no queries
        """The newest entry of the log, whichever query wrote it: that is what the sink compares with."""
        numbers = [int(found[1]) for info in self.store.list(LOG) if (found := _ENTRY.match(info.key))]
        newest = max(numbers, default=None)
        return OutputPosition(newest, "" if newest is None else str(newest))

    def plan_roll_back(self, query_id: str, batch_id: int) -> RollBackPlan | None:
        """Plan to drop every batch after ``batch_id``, of whichever query: the log does not say."""
        back = self._plan(batch_id)
        if back is None:
            return None
        return RollBackPlan(
            self.kind,
            self.target,
            query_id,
            batch_id,
            from_version=str(back.log.newest),
            to_version=str(back.batch_id),
            dropped=back.dropped,
            details={"log": back.log.digest, "files": str(len(back.files))},
        )

    def roll_back(self, plan: RollBackPlan) -> None:
        """Carry a plan out, if the log is still the one that it was made from."""
        back = self._plan(plan.batch_id)
        if back is None or back.log.digest != plan.details["log"]:
            raise self._stale()
        log = back.log
        if back.files:
            self._put_own(_PENDING, {"batch": back.batch_id, "files": back.files})
        for name in log.pins_above(back.batch_id):
            self.store.delete([f"{_PINS}{name}"])
        if back.base is not None:
            self._put_own(_MARK, {"batch": back.batch_id, "interval": log.interval})
        stays = None if back.base is None else log.compaction_above(back.batch_id)
        for number in log.numbers_above(back.batch_id):
            if number != stays:
                self._drop_entry(log, number)
        if back.base is not None:
            self._move_base(log, back.batch_id, back.base)
        self.store.delete(self._with_checksums(back.files))
        self.store.delete([_PENDING])
        if (newest := self.position("").batch_id) is not None and newest > back.batch_id:
            raise self._stale()

    def begin(self, batch_id: int) -> None:
        """Let the log of a new path begin with empty batches: Spark reads them all, from the first."""
        if self.can_begin(batch_id):
            for key in _beginning(batch_id):
                self._put_entry(key, _VERSION)

    def can_begin(self, batch_id: int) -> bool:
        """Whether there is no log yet, or no more than what ``begin`` had written when it was killed."""
        there, wanted = set(self._log().entries.values()), _beginning(batch_id)
        is_begun = len(there) < len(wanted) and there == set(wanted[: len(there)])
        return is_begun and all(self.store.get(key) == _VERSION for key in there)

    def pin(self, name: str, query_id: str, batch_id: int) -> OutputPin | None:  # noqa: ARG002
        """Remember how many files there are at the batch, and their digest: what later compactions keep."""
        log = self._log()
        lines = (
            self._entries_at(log, batch_id) if log.newest is not None and batch_id <= log.newest else None
        )
        if lines is None:
            return None
        self._put_own(
            f"{_PINS}{name}", {"batch": batch_id, "entries": len(lines), "sha256": _digest(lines)}
        )
        until = "the sink's option retention, if it is set, takes older files out of its log"
        return OutputPin(str(batch_id), is_kept=True, until=until)

    def unpin(self, name: str) -> None:
        """Forget it."""
        self.store.delete([f"{_PINS}{name}"])

    def _plan(self, batch_id: int) -> _Back | None:
        """What going back comes to; None if nothing is after the batch, and nothing was left half done."""
        log = self._log()
        numbers, todo = sorted(log.numbers_above(batch_id)), self._own(_PENDING)
        if not numbers and todo is None:
            return None
        target = min(batch_id, log.newest)
        kept, base = self._entries_at(log, target), None
        if kept is None:
            kept = base = self._pinned_entries(log, target)
        if kept is None:
            raise self._purged(log, target)
        seen = {entry.key for entry in kept}
        files = dict.fromkeys(key for key in _texts(todo, "files") if key not in seen)
        dropped, last = [f"the pin of savepoint {name}" for name in log.pins_above(target)], target
        for number in numbers:
            new = [entry for entry in self._read(log, number) if entry.key not in seen]
            if number in log.entries:
                batches = f"batch {number}" if number == last + 1 else f"batches {last + 1} to {number}"
                size = sum(entry.size_bytes for entry in new)
                dropped.append(f"{batches}, of whichever query: {len(new)} files, {size:,} bytes")
                last = number
            seen.update(entry.key for entry in new)
            files.update(dict.fromkeys(entry.key for entry in new))
        return _Back(log, target, [self._checked(key) for key in files], base, tuple(reversed(dropped)))

    def _log(self) -> _Log:
        listed = [info for prefix in (LOG, OWN) for info in self.store.list(prefix)]
        pins = {
            info.key.removeprefix(_PINS): self._own(info.key) or {}
            for info in listed
            if info.key.startswith(_PINS)
        }
        has_mark = any(info.key == _MARK for info in listed)
        mark = (self._own(_MARK) if has_mark else None) or {"batch": -1}
        return _Log.of(
            [info.key for info in listed],
            sha256_hex(orjson.dumps([[info.key, info.version.token] for info in listed])),
            {name: _Pin.of(fields) for name, fields in pins.items()},
            _whole(mark, "batch", -1),
            _whole(mark, "interval", 0) if "interval" in mark else 0,
        )

    def _entries_at(self, log: _Log, batch_id: int) -> list[_Entry] | None:
        """The files of a batch and all before it; None if the log no longer says which those are."""
        if 0 <= batch_id < log.mark:
            return None
        first = max((number for number in log.compactions if number <= batch_id), default=0)
        numbers = range(first, batch_id + 1)
        if any(number not in log.entries for number in numbers):
            return None
        return [entry for number in numbers for entry in self._read(log, number)]

    def _pinned_entries(self, log: _Log, batch_id: int) -> list[_Entry] | None:
        """How the first later compaction begins, if a savepoint says that these are the batch's files."""
        later = log.compaction_above(batch_id)
        pins = {pin for pin in log.pins.values() if pin.batch_id == batch_id}
        entries = [] if later is None or not pins else self._read(log, later)
        return next((entries[: pin.entries] for pin in pins if pin.matches(entries)), None)

    def _read(self, log: _Log, number: int) -> list[_Entry]:
        name = log.entries.get(number)
        if name is None:
            return []  # all that is left of it is a checksum
        version, *lines = self.store.get(name).split(b"\n")
        if version != _VERSION:
            raise FormatError(
                f"{name} of {self} begins with {version[:20]!r}, not v1",
                hint="upgrade this package if a newer Spark wrote it",
            )
        return [self._entry(line, name) for line in lines if line]

    def _entry(self, line: bytes, name: str) -> _Entry:
        try:
            fields = orjson.loads(line)
            path, size_bytes, action = fields["path"], fields["size"], fields.get("action", "add")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise FormatError(f"{name} of {self} is not a log of Spark", hint=_DAMAGED) from None
        if type(path) is not str or type(size_bytes) is not int or action != "add":
            raise FormatError(f"{name} of {self} has an entry that Spark 4 does not write", hint=_DAMAGED)
        return _Entry(line, self._key(path, name), size_bytes)

    def _key(self, path: str, name: str) -> str:
        """The key of a file that an entry names; refused if it is not below the sink's path."""
        key = _key_below(self.store.url, path)
        if key is None or key.startswith((LOG, OWN)):
            raise self._outside(name, path)
        return key

    def _checked(self, key: str) -> str:
        try:
            if not key.startswith((LOG, OWN)):
                return check_key(key)
        except Invalid:
            pass
        raise self._outside(_PENDING, key)

    def _outside(self, name: str, path: str) -> FormatError:
        return FormatError(
            f"{name} of {self} names {path[:300]!r}, which is no file of rows below it", hint=_DAMAGED
        )

    def _move_base(self, log: _Log, batch_id: int, entries: Sequence[_Entry]) -> None:
        """Bring the only compaction that is left down to the batch.

        Spark takes the distance of the newest two compactions for their interval, so each step down is
        one that divides what it starts from: then every state on the way can be read. At the end there
        are two again where there is room, which say the interval.
        """
        data, interval = _encode(entries), log.interval
        newest, last = log.compaction_above(batch_id), (batch_id + 1) // interval
        if newest is None or (newest + 1) % interval:
            raise FormatError(f"the compactions of {self} are not evenly spaced", hint=_DAMAGED)
        step = (newest + 1) // interval
        while step > max(last, 1):
            size = step & -step
            while step - size < max(last, 1):
                size //= 2
            step -= size
            if step == last:
                self._fill(range(step * interval, batch_id + 1))
                if step > 1:
                    self._put_entry(_compaction((step - 1) * interval - 1), data)
            self._put_entry(_compaction(step * interval - 1), data)
            self.store.delete(self._with_checksums([_compaction(newest)]))
            newest = step * interval - 1
        if last == 0:
            self._fill(range(1, batch_id + 1))
            self._put_entry(f"{LOG}0", data)
            self.store.delete(self._with_checksums([_compaction(newest)]))

    def _fill(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._put_entry(f"{LOG}{number}", _VERSION)

    def _put_entry(self, key: str, data: bytes) -> None:
        if self._has_checksums:
            self.store.delete([_checksum_of(key)])
        self.store.put(key, data)

    def _drop_entry(self, log: _Log, number: int) -> None:
        self.store.delete(log.checksums.get(number, ()))
        if number in log.entries:
            self.store.delete([log.entries[number]])

    def _with_checksums(self, keys: Iterable[str]) -> Iterable[str]:
        for key in keys:
            if self._has_checksums:
                yield _checksum_of(key)
            yield key

    def _own(self, key: str) -> dict[str, Any] | None:
        try:
            fields = orjson.loads(self.store.get(key))
        except NotFound:
            return None
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict) or fields.get("version") != 1:
            raise FormatError(f"{key} of {self} is damaged, or of a newer version", hint=_DAMAGED)
        return fields

    def _put_own(self, key: str, fields: dict[str, Any]) -> None:
        self.store.put(key, orjson.dumps({"version": 1, **fields}))

    def _purged(self, log: _Log, batch_id: int) -> Diverged:
        oldest = log.mark if log.mark in log.entries else min(log.compactions, default=0)
        return Diverged(
            f"the {self} cannot go back to batch {batch_id}: Spark has deleted the entries of its log up "
            "to there, and no savepoint says which files they named",
            hint=f"restore a checkpoint of batch {oldest} or later, or a savepoint that has pinned its "
            "output, or write to another target",
        )

    def _stale(self) -> StaleAttempt:
        return StaleAttempt(
            f"the log of the {self} has changed since it was read",
            hint="stop the query that writes there, and repeat it",
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    line: bytes
    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Pin:
    batch_id: int
    entries: int
    sha256: str

    @staticmethod
    def of(fields: dict[str, Any]) -> _Pin:
        return _Pin(_whole(fields, "batch", 0), _whole(fields, "entries", 0), str(fields.get("sha256")))

    def matches(self, entries: Sequence[_Entry]) -> bool:
        return self.entries <= len(entries) and _digest(entries[: self.entries]) == self.sha256


@dataclass(frozen=True)
class _Log:
    """What is in the log by name. ``mark``: below that batch a moved base hides whose files are whose."""

    entries: dict[int, str]
    compactions: frozenset[int]
    checksums: dict[int, list[str]]
    digest: str
    pins: dict[str, _Pin]
    mark: int
    known_interval: int

    @staticmethod
    def of(keys: Iterable[str], digest: str, pins: dict[str, _Pin], mark: int, known_interval: int) -> _Log:
        entries, compactions, checksums = dict[int, str](), set[int](), dict[int, list[str]]()
        for key in keys:  # "9" sorts before "9.compact", which is the one that counts
            if found := _ENTRY.match(key):
                entries[int(found[1])] = key
                if found[2]:
                    compactions.add(int(found[1]))
            elif found := _CHECKSUM.match(key):
                checksums.setdefault(int(found[1]), []).append(key)
        return _Log(entries, frozenset(compactions), checksums, digest, pins, mark, known_interval)

    @property
    def newest(self) -> int:
        return max(self.entries, default=-1)

    @cached_property
    def interval(self) -> int:
        """As Spark finds it: the distance of the newest two compactions, else what fits the only one.

        While a base moves those two say something else.
        """
        known = self.known_interval
        if known > 0 and all((number + 1) % known == 0 for number in self.compactions):
            return known
        *_, before, last = (-1, *sorted(self.compactions))
        if len(self.compactions) >= 2:
            return last - before
        divisors = (number for number in range(_USUAL_INTERVAL, last + 1) if (last + 1) % number == 0)
        return next(divisors, last + 1)

    def numbers_above(self, batch_id: int) -> list[int]:
        """The batches after one that have an entry, or a checksum left of one, the newest first."""
        return sorted((n for n in {*self.entries, *self.checksums} if n > batch_id), reverse=True)

    def compaction_above(self, batch_id: int) -> int | None:
        return min((number for number in self.compactions if number > batch_id), default=None)

    def pins_above(self, batch_id: int) -> list[str]:
        return sorted(name for name, pin in self.pins.items() if pin.batch_id > batch_id)


@dataclass(frozen=True, slots=True)
class _Back:
    """Going back to a batch: which files go; ``base`` are the entries to write first, if any are."""

    log: _Log
    batch_id: int
    files: list[str]
    base: list[_Entry] | None
    dropped: tuple[str, ...]


def _key_below(root: str, path: str) -> str | None:
    """What follows a sink's path in the path of one of its files; None if that is elsewhere."""
    plain = unquote(path)
    try:
        if LocationSpec(root).is_foreign:
            at, found = urlsplit(root), urlsplit(plain)
            is_same = at[:2] == found[:2] and not found.query and not found.fragment
            base, name = at.path.strip("/"), found.path.removeprefix("/")
        else:
            store, file = parse_store_url(root), parse_store_url(plain)
            is_same = (store.scheme, store.bucket) == (file.scheme, file.bucket)
            is_same = is_same and (None in (store.account, file.account) or store.account == file.account)
            base, name = store.path.strip("/"), file.path.removeprefix("/")
        prefix = f"{base}/" if base else ""
        if not is_same or not name.startswith(prefix):
            return None
        return check_key(name.removeprefix(prefix))
    except (SettingsError, Invalid, ValueError):
        return None


def _beginning(batch_id: int) -> list[str]:
    """The empty entries with which a log begins that goes on after a batch, in the order to write them."""
    last = (batch_id + 1) // _USUAL_INTERVAL * _USUAL_INTERVAL - 1
    pair = (last - _USUAL_INTERVAL, last)  # their distance tells Spark the interval
    compactions = [_compaction(number) for number in pair if number > 0]
    return compactions + [f"{LOG}{number}" for number in range(last + 1, batch_id + 1)]


def _compaction(batch_id: int) -> str:
    return f"{LOG}{batch_id}.compact"


def _checksum_of(key: str) -> str:
    directory, slash, name = key.rpartition("/")
    return f"{directory}{slash}.{name}.crc"


def _encode(entries: Iterable[_Entry]) -> bytes:
    return b"\n".join([_VERSION, *(entry.line for entry in entries)])


def _digest(entries: Iterable[_Entry]) -> str:
    return sha256_hex(orjson.dumps([[entry.key, entry.size_bytes] for entry in entries]))


def _whole(fields: dict[str, Any], name: str, least: int) -> int:
    value = fields.get(name)
    if type(value) is not int or value < least:
        raise FormatError(f"a record in {OWN} of a file sink has no {name}", hint=_DAMAGED)
    return value


def _texts(fields: dict[str, Any] | None, name: str) -> list[str]:
    values = [] if fields is None else fields.get(name)
    if not isinstance(values, list) or not all(type(value) is str for value in values):
        raise FormatError(f"a record in {OWN} of a file sink has no {name}", hint=_DAMAGED)
    return values
