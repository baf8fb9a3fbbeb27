"""Iceberg tables: a snapshot of the streaming sink names its query and batch in its summary.

Iceberg finds a query's newest batch by walking from the current snapshot to its ancestors, and drops what
it has already. So does this module. The table goes back in one step: its main branch is set to the snapshot
before the first one that has to go, if the branch still is where it was when that was planned.

1. The catalog says which metadata is current. Without one, the files of a hadoop catalog say it too, by
   ``version-hint.text``; of any other catalog's the newest is not certainly the current one.
2. The snapshots from the current one down to the newest of a batch that stays are what goes. Those of
   others among them are named, and so are rewrites, which change no rows.
3. Once snapshots have expired, the walk is cut: what the table has is not known then. A tag on the snapshot
   of a batch keeps that one, and ``pin`` makes such a tag.

After going back, the metadata has two snapshots of one batch; only ancestors of the current one count.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from pyspark_checkpoint.errors import Diverged, FormatError, InUse, NotFound, StaleAttempt, Unsupported
from pyspark_checkpoint.outputs.output import Output, OutputKind, OutputPin, OutputPosition, RollBackPlan
from pyspark_checkpoint.store.base import ObjectStore

METADATA = "metadata/"
HINT = f"{METADATA}version-hint.text"
QUERY_ID, EPOCH_ID = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
MAIN = "main"
TAG_PREFIX = "ckpt-"
MAX_METADATA_BYTES = 256 << 20
_CATALOG_HINT = "give a Spark session that has the catalog (spark=, --conf), or configure pyiceberg for it"
_WRITERS = ("spark.app.id", "engine-name", QUERY_ID)
_FILE = re.compile(r"metadata/v(\d{1,18})(?:\.gz)?\.metadata\.json(?:\.gz)?\Z", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class IcebergTable(Protocol):
    """A table as its catalog knows it: the one place that says which metadata is current."""

    def read_metadata(self) -> bytes:
        """The current metadata as JSON, as the Iceberg specification writes it, read anew."""

    def set_reference(self, name: str, snapshot_id: int | None, expected_id: int | None) -> None:
        """Point the branch ``main`` or a tag to a snapshot, if it points to ``expected_id``, in one step.

        None is no snapshot: the tag is not there, or the table is empty.

        Raises:
            StaleAttempt: It points elsewhere, or somebody has just committed. Nothing was changed.
            OutcomeUnknown: The catalog did not say whether it was done. Looking again tells.
            StoreError: The catalog cannot be reached.
        """


FindTable = Callable[[str], IcebergTable | None]
"""Finds a table by its name with its catalog, or by its path; None, NotFound or Unsupported if not."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    summary: Mapping[str, str]
    sequence_number: int

    def batch_of(self, query_id: str) -> int | None:
        """The batch of the query that it has written; None if it is of somebody else."""
        if self.summary.get(QUERY_ID) != query_id:
            return None
        return int(self.summary[EPOCH_ID])

    @property
    def is_first(self) -> bool:
        """Whether nothing was before it. pyiceberg's expiry takes the parent away from what it leaves."""
        if self.parent_id is not None:
            return False
        total, added = self.summary.get("total-data-files"), self.summary.get("added-data-files", "0")
        return self.sequence_number == 1 or total == added

    @property
    def is_rewrite(self) -> bool:
        """Whether it has replaced files and changed no rows, as a compaction does."""
        return self.summary.get("operation") == "replace"

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
        who = ", ".join(f"{name} {self.summary[name]}" for name in _WRITERS if name in self.summary)
        said = f"snapshot {self.snapshot_id} of {when}, {self.summary.get('operation', 'unknown')}"
        return _UNPRINTABLE.sub("?", f"{said} by {who or 'an unknown writer'}")[:300]


@dataclass(frozen=True, slots=True)
class _History:
    """The snapshots from the current one backwards, as far as they are there."""

    current_id: int | None
    ancestors: tuple[_Snapshot, ...] = ()
    is_cut: bool = False
    """Whether there were others before the oldest of them, which have expired."""
    by_id: Mapping[int, _Snapshot] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)

    def tagged(self, query_id: str, batch_id: int) -> dict[int, str]:
        """Snapshots of a batch that are kept by tags."""
        found = {}
        for tag, number in self.tags.items():
            snapshot = self.by_id.get(number)
            if snapshot is not None and snapshot.batch_of(query_id) == batch_id:
                found[number] = tag
        return found


class IcebergOutput(Output):
    """An Iceberg table, of a catalog or at a path."""

    kind = OutputKind.ICEBERG
    runs_skipped_batches = True

    def __init__(
        self, target: str, store: ObjectStore | None = None, table: IcebergTable | None = None
    ) -> None:
        """``store`` is opened at the table's location; without a ``table`` it can be asked, not changed."""
        super().__init__(target)
        self._store = store
        self._table = table

    def position(self, query_id: str) -> OutputPosition:
        """The batch of the newest ancestor that the query wrote, and the current snapshot."""
        history = self._history()
        if history is None:
            return OutputPosition(None, is_known=False)
        version = "" if history.current_id is None else str(history.current_id)
        for snapshot in history.ancestors:
            batch = snapshot.batch_of(query_id)
            if batch is not None:
                return OutputPosition(batch, version)
        return OutputPosition(None, version, is_known=not history.is_cut)

    def ancestors(self) -> tuple[int, ...] | None:
        """The current snapshot and those before it that the metadata still has, newest first.

        None if it is not known which metadata is the current one.
        """
        history = self._history()
        return None if history is None else tuple(each.snapshot_id for each in history.ancestors)

    def plan_roll_back(self, query_id: str, batch_id: int) -> RollBackPlan | None:
        """The main branch goes to the snapshot before the query's first one above the batch."""
        history = self._known_history()
        going = list[_Snapshot]()
        staying: _Snapshot | None = None
        for snapshot in history.ancestors:
            batch = snapshot.batch_of(query_id)
            if batch is not None and batch <= batch_id:
                staying = snapshot
                break
            going.append(snapshot)
        if staying is None and history.is_cut:
            return self._plan_by_tag(history, query_id, batch_id)
        while going and going[-1].batch_of(query_id) is None:
            going.pop()  # of others, before the query's first batch that goes: they stay
        if not going:
            return None
        return self._plan(history, query_id, batch_id, going, going[-1].parent_id)

    def roll_back(self, plan: RollBackPlan) -> None:
        """One commit of the catalog, refused if the current snapshot is another one than planned."""
        table = self._need_table()
        current = self._known_history().current_id
        expected, target = _number(plan.from_version), _number(plan.to_version)
        if current == target:
            return  # done before
        if current != expected:
            raise StaleAttempt(
                f"the {self} is at snapshot {current} now, and was at {expected} when planned"
            )
        table.set_reference(MAIN, target, expected)

    def pin(self, name: str, query_id: str, batch_id: int) -> OutputPin | None:
        """Tag the snapshot of the batch, or say that it is kept until it expires."""
        history = self._history()
        if history is None:
            return None
        found = next((each for each in history.ancestors if each.batch_of(query_id) == batch_id), None)
        if found is None:
            return None
        version, tag = str(found.snapshot_id), f"{TAG_PREFIX}{name}"
        if self._table is None:
            return OutputPin(version, is_kept=False, until="its snapshot is expired")
        held = history.tags.get(tag)
        if held is not None and held in history.by_id and history.by_id[held].batch_of(query_id) is None:
            raise InUse(
                f"tag {tag} of the {self} is on a snapshot of somebody else",
                hint="give the savepoint another name, or drop the tag",
            )
        if held != found.snapshot_id:
            self._table.set_reference(tag, found.snapshot_id, held)
        return OutputPin(version, is_kept=True)

    def unpin(self, name: str) -> None:
        """Drop the tag."""
        history = self._history() if self._table is not None else None
        held = None if history is None else history.tags.get(f"{TAG_PREFIX}{name}")
        if self._table is not None and held is not None:
            self._table.set_reference(f"{TAG_PREFIX}{name}", None, held)

    def _plan_by_tag(self, history: _History, query_id: str, batch_id: int) -> RollBackPlan:
        """Where ancestors have expired: a tag may have kept the snapshot of the batch."""
        tagged = history.tagged(query_id, batch_id)
        if len(tagged) != 1:
            found = f"{len(tagged)} tags name one" if tagged else "no tag keeps one"
            raise Diverged(
                f"the {self} has no snapshot of batch {batch_id} of query {query_id} among the ancestors "
                f"of the current one: older ones have expired, and {found}",
                hint="restore a newer checkpoint, or let the query write to another table; savepoints keep "
                "their snapshot by a tag",
            )
        ((target, tag),) = tagged.items()
        unknown = f"what was committed after snapshot {target} (tag {tag}) and has expired since"
        plan = self._plan(history, query_id, batch_id, history.ancestors, target)
        return replace(plan, others=(*plan.others, unknown))

    def _plan(
        self,
        history: _History,
        query_id: str,
        batch_id: int,
        going: Sequence[_Snapshot],
        target: int | None,
    ) -> RollBackPlan:
        if target is not None and target not in history.by_id:
            raise Diverged(
                f"snapshot {target} of the {self}, before batch {batch_id + 1}, has expired",
                hint="restore a newer checkpoint, or let the query write to another table",
            )
        self._need_table()
        dropped = []
        for snapshot in going:
            batch = snapshot.batch_of(query_id)
            if batch is not None:
                dropped.append(f"batch {batch}: snapshot {snapshot.snapshot_id}")
            elif snapshot.is_rewrite:
                dropped.append(f"{snapshot}: it rewrote files and changed no rows")
        others = [str(each) for each in going if each.batch_of(query_id) is None and not each.is_rewrite]
        return RollBackPlan(
            kind=self.kind,
            target=self.target,
            query_id=query_id,
            batch_id=batch_id,
            from_version=str(history.current_id),
            to_version="" if target is None else str(target),
            dropped=tuple(dropped),
            others=tuple(others),
        )

    def _need_table(self) -> IcebergTable:
        if self._table is None:
            raise Unsupported(f"the {self} can be changed by its catalog alone", hint=_CATALOG_HINT)
        return self._table

    def _known_history(self) -> _History:
        history = self._history()
        if history is None:
            raise Unsupported(
                f"which metadata of the {self} is the current one is known to its catalog alone",
                hint=_CATALOG_HINT,
            )
        return history

    def _history(self) -> _History | None:
        """What the current metadata says; None if nobody knows which one that is."""
        data = self._table.read_metadata() if self._table is not None else self._find_metadata()
        if data is None:
            return None
        try:
            return _parse_history(orjson.loads(data))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._damaged("its metadata is not JSON, or lacks a field") from None

    def _find_metadata(self) -> bytes | None:
        """The current metadata of a hadoop catalog's table, by its hint or what came after it."""
        if self._store is None:
            return None
        files = {
            int(found[1]): info.key
            for info in self._store.list(METADATA)
            if (found := _FILE.match(info.key)) is not None
        }
        if not files:
            return None
        number = self._hint()
        if number is None:
            number = max(files)
        while number + 1 in files:
            number += 1
        if number not in files:
            raise self._damaged(f"version {number} is not there, and its hint says so")
        data = self._store.read(files[number], max_bytes=MAX_METADATA_BYTES).data
        return self._unzip(data) if data[:2] == b"\x1f\x8b" else data

    def _hint(self) -> int | None:
        """The version that a hadoop catalog says is current; a later one is, if there is one."""
        try:
            text = self._store.read(HINT, max_bytes=64).data.strip() if self._store is not None else b""
        except NotFound:
            return None
        return int(text) if _NUMBER.fullmatch(text.decode("ascii", "replace")) else None

    def _unzip(self, data: bytes) -> bytes:
        reader = zlib.decompressobj(wbits=31)
        try:
            plain = reader.decompress(data, MAX_METADATA_BYTES)
        except zlib.error:
            raise self._damaged("its metadata cannot be unzipped") from None
        if not reader.eof:
            raise self._damaged("its metadata is cut off, or too large")
        return plain

    def _damaged(self, reason: str) -> FormatError:
        return FormatError(
            f"the Iceberg table {self.target} cannot be read: {reason}",
            hint="repair the table before its query goes on",
        )


def _parse_history(metadata: Mapping[str, Any]) -> _History:
    by_id = {each.snapshot_id: each for each in map(_parse_snapshot, metadata.get("snapshots") or ())}
    current = metadata.get("current-snapshot-id")
    current = None if current in (None, -1) else _whole(current)
    ancestors = tuple(_walk(by_id, current))
    is_cut = not ancestors[-1].is_first if ancestors else current is not None
    tags = {
        str(name): _whole(reference["snapshot-id"])
        for name, reference in (metadata.get("refs") or {}).items()
        if reference["type"] == "tag"
    }
    return _History(current, ancestors, is_cut, by_id, tags)


def _walk(by_id: Mapping[int, _Snapshot], number: int | None) -> Iterator[_Snapshot]:
    seen = set[int]()
    while number is not None and number in by_id:
        if number in seen:
            raise ValueError("a snapshot is its own ancestor")
        seen.add(number)
        yield by_id[number]
        number = by_id[number].parent_id


def _parse_snapshot(value: Mapping[str, Any]) -> _Snapshot:
    parent, summary = value.get("parent-snapshot-id"), value.get("summary") or {}
    snapshot = _Snapshot(
        _whole(value["snapshot-id"]),
        None if parent is None or parent == -1 else _whole(parent),
        min(_whole(value.get("timestamp-ms", 0)), 10**14),
        {name: text for name, text in summary.items() if isinstance(text, str)},
        _whole(value.get("sequence-number", 0)),
    )
    if QUERY_ID in snapshot.summary and _NUMBER.fullmatch(snapshot.summary[EPOCH_ID]) is None:
        raise ValueError("an epoch is no number")
    return snapshot


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no whole number")
    return value


def _number(version: str) -> int | None:
    return int(version) if version else None
