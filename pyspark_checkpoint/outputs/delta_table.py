"""Delta tables: a commit of Delta's streaming sink carries ``txn``, the query's id and its batch.

The table is asked through its log, without Spark. Spark does not run the plan of a batch that the sink
drops, so that a stateful query loses state too. The same holds for what ``foreachBatch`` writes with
``txnAppId``, whose value then stands for the query's id.

A table goes back to batch N by one commit of our own, created under the number that follows the version
which was planned on, so that of two writers one wins:

1. Walk from the newest commit back to the first one of a batch after N: the table goes back to the version
   before it. What others committed between N and that commit stays.
2. Add the files that this version has and the newest one has not, remove those that only the newest has.
   A deletion vector is part of what a file is known by, so that each goes back with its file.
3. Set the query's ``txn`` to N, which the protocol allows to fall; the sink then takes batch N + 1.

Files that are added again must still be there (VACUUM removes them), and the table must not have features
whose rules for a commit are unknown here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

import orjson

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import (
    AlreadyExists,
    Diverged,
    FormatError,
    NotFound,
    StaleAttempt,
    StoreError,
    Unsupported,
)
from pyspark_checkpoint.outputs.delta_log import (
    LOG,
    REPAIR,
    Action,
    DeltaLog,
    FileKey,
    TableState,
    batch_of,
    file_key,
)
from pyspark_checkpoint.outputs.output import Output, OutputKind, OutputPin, OutputPosition, RollBackPlan
from pyspark_checkpoint.store.base import ObjectStore, check_key
from pyspark_checkpoint.store.parallel import iter_bounded, run_bounded
from pyspark_checkpoint.store.probe import require_conditional_writes

KNOWN_FEATURES = frozenset(
    re.findall(
        r"\S+",
        "allowColumnDefaults appendOnly changeDataFeed checkConstraints checkpointProtection clustering "
        "columnMapping deletionVectors domainMetadata generatedColumns identityColumns inCommitTimestamp "
        "invariants rowTracking timestampNtz typeWidening typeWidening-preview v2Checkpoint "
        "vacuumProtocolCheck variantType variantType-preview",
    )
)
"""Features whose rules for a commit that adds and removes whole files are kept here."""
LISTED_FROM = 1000
"""From so many files on they are looked for in one listing."""
_CONCURRENCY = 8
_READ_AHEAD = 4
"""So many commits are read at once; what they say is in memory until it is looked at."""
_ROW_TRACKING = "delta.rowTracking"
_OF_REMOVE = (
    "path",
    "partitionValues",
    "size",
    "stats",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
)
_COMMIT_TIMESTAMP = "inCommitTimestamp"
_DURATION = re.compile(r"(?:interval\s+)?([0-9]{1,9} [a-z]{1,12})\Z", re.IGNORECASE | re.ASCII)
_CHANGES = frozenset(("add", "remove", "metaData", "protocol", "domainMetadata", "txn", "commitInfo"))
_SPARK_WAY = (
    "use Spark: RESTORE TABLE, then set the query's txn by a commit of a SetTransaction action; or let the "
    "query write to another table"
)
_Z85 = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)


class DeltaOutput(Output):
    """A Delta table at a path."""

    kind = OutputKind.DELTA
    runs_skipped_batches = False

    def __init__(self, target: str, store: ObjectStore, clock: Clock = SYSTEM_CLOCK) -> None:
        """``store`` is opened at the table's path."""
        super().__init__(target)
        self._store = store
        self._clock = clock

    def position(self, query_id: str) -> OutputPosition:
        """The newest ``txn`` of the query, and the table's version."""
        return self._position(DeltaLog.of(self._store, self.target), query_id)

    def plan_roll_back(self, query_id: str, batch_id: int) -> RollBackPlan | None:
        """Plan the commit that takes the query's batches after ``batch_id`` back. See the module."""
        found = self._plan(query_id, batch_id)
        return None if found is None else found.plan

    def roll_back(self, plan: RollBackPlan) -> None:
        """Make the planned commit; it is there whole, or not at all."""
        require_conditional_writes(self._store)
        found = self._plan(plan.query_id, plan.batch_id)
        if found is None:
            return
        if (found.plan.from_version, found.plan.to_version) != (plan.from_version, plan.to_version):
            raise self._stale(plan)
        commit = b"\n".join(map(orjson.dumps, self._new_commit(found)))
        try:
            self._store.put(f"{LOG}{int(plan.from_version) + 1:020d}.json", commit, if_absent=True)
        except AlreadyExists:
            raise self._stale(plan) from None

    def pin(self, name: str, query_id: str, batch_id: int) -> OutputPin | None:  # noqa: ARG002
        """Name the version; Delta has nothing that keeps one."""
        log = DeltaLog.of(self._store, self.target)
        if log.newest < 0:
            return None
        first = self._first_dropped(log, query_id, batch_id)
        version = log.newest if first is None else first - 1
        state = log.state(log.newest, query_id, {"metaData"})
        settings = _settings(None if state is None else state.metadata)
        files = _duration(settings.get("delta.deletedFileRetentionDuration"), "7 days")
        commits = _duration(settings.get("delta.logRetentionDuration"), "30 days")
        return OutputPin(
            str(version),
            is_kept=False,
            until=f"files that are replaced later can be had for {files}, then VACUUM removes them; "
            f"the log can be had for {commits}",
        )

    def _position(self, log: DeltaLog, query_id: str) -> OutputPosition:
        if log.newest < 0:
            return OutputPosition(None)
        state = log.state(log.newest, query_id, {"txn"})
        if state is None:
            raise FormatError(
                f"the log of Delta table {self.target} has a gap below version {log.newest}",
                hint="a commit file is missing: repair the table before its query goes on",
            )
        batch = state.transaction
        known = None if batch is None or batch < 0 else batch
        return OutputPosition(known, str(log.newest), is_known=not log.is_behind)

    def _first_dropped(self, log: DeltaLog, query_id: str, batch_id: int) -> int | None:
        """The oldest commit of those newest ones of the query that are of batches after ``batch_id``."""
        first, numbers = None, list(takewhile(log.commits.__contains__, range(log.newest, -1, -1)))
        found = iter_bounded(lambda number: log.batches(number, query_id), numbers, _READ_AHEAD)
        for number, batches in zip(numbers, found, strict=True):
            if batches and batches[-1] <= batch_id:
                break
            first = number if batches else first
        return first

    def _plan(self, query_id: str, batch_id: int) -> _Planned | None:
        log = DeltaLog.of(self._store, self.target)
        position = self._position(log, query_id)
        if not position.is_known:
            raise self._unsupported("a catalog decides on its commits, and has some that its log has not")
        if position.batch_id is None or position.batch_id <= batch_id:
            return None
        first = self._first_dropped(log, query_id, batch_id)
        if first is None:
            raise self._log_is_gone(batch_id, position.batch_id)
        changes = _Changes.read(log, first, query_id)
        asked = {"txn", "metaData"}
        now = log.state(log.newest, query_id, asked | {"protocol"})
        then = log.state(first - 1, query_id, asked, changes.newest.keys())
        if now is None or then is None or (then.transaction is not None and then.transaction > batch_id):
            raise self._log_is_gone(batch_id, first)
        self._check_table(now, then, changes)
        newest = {key for key, add in changes.newest.items() if add is not None}
        added = [then.files[key] for key in sorted(then.files.keys() - newest)]
        removed = [add for key, add in sorted(changes.newest.items()) if add and key not in then.files]
        if "rowTracking" in _features(now.protocol) and any(add.get("baseRowId") is None for add in added):
            raise self._unsupported("files without row ids are from before its row tracking")
        self._check_files(added, first - 1)
        plan = RollBackPlan(
            self.kind,
            self.target,
            query_id,
            batch_id,
            from_version=str(log.newest),
            to_version=str(first - 1),
            dropped=tuple(reversed(changes.dropped)),
            others=tuple(reversed(changes.others)),
        )
        return _Planned(plan, now, then, changes, added, removed)

    def _check_table(self, now: TableState, then: TableState, changes: _Changes) -> None:
        protocol, settings = now.protocol, _settings(now.metadata)
        if protocol is None or now.metadata is None:
            raise FormatError(f"the log of Delta table {self.target} says no protocol", hint=REPAIR)
        reader, writer = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
        if type(reader) is not int or type(writer) is not int or reader > 3 or writer > 7:
            raise self._unsupported("its protocol is unknown here")
        unknown = sorted(_features(protocol) - KNOWN_FEATURES)
        if unknown:
            raise self._unsupported(f"it has the feature {_shown(unknown[0])}")
        if any(name.startswith("delta.coordinatedCommits.commitCoordinator") for name in settings):
            raise self._unsupported("a catalog decides on its commits")
        if settings.get("delta.appendOnly", "").lower() == "true":
            raise Unsupported(
                f"Delta table {self.target} is append-only: nothing may be removed from it",
                hint="set delta.appendOnly to false until the table has gone back",
            )
        if changes.domains and then.metadata is not None:
            raise self._unsupported(f"{_shown(changes.domains[0])} of it was changed since")
        if changes.has_metadata and then.metadata is not None:
            before = _settings(then.metadata)
            name = "delta.enableInCommitTimestamps"
            if before.get(name) != settings.get(name):
                raise self._unsupported(f"{name} was changed since")
            if '"delta.identity.' in str(now.metadata.get("schemaString")):
                raise self._unsupported("it has identity columns")

    def _check_files(self, added: list[Action], version: int) -> None:
        keys = sorted({key for add in added for key in self._keys(add)})
        if len(keys) >= LISTED_FROM:
            there: Set[str] = {info.key for info in self._store.list()}
            missing = [key for key in keys if key not in there]
        else:
            missing = [key for key in run_bounded(self._find_missing, keys, _CONCURRENCY) if key]
        if missing:
            raise Diverged(
                f"{len(missing)} files of version {version} of Delta table {self.target} are gone, such as "
                f"{_shown(missing[0])}: VACUUM has removed them",
                hint="restore a checkpoint of a later batch, or let the query write to another table",
            )

    def _find_missing(self, key: str) -> str:
        try:
            self._store.head(key)
        except NotFound:
            return key
        return ""

    def _keys(self, add: Action) -> Iterator[str]:
        """The objects that a file consists of: its data, and its deletion vector if that is a file."""
        path = unquote(add["path"])
        vector = add.get("deletionVector")
        if (
            ":" in path.partition("/")[0]
            or path.startswith("/")
            or (vector or {}).get("storageType") == "p"
        ):
            raise self._unsupported("its files are at another place, as those of a shallow clone")
        try:
            yield check_key(path)
            if vector and vector.get("storageType") == "u":
                yield check_key(_vector_path(vector["pathOrInlineDv"]))
        except (StoreError, ValueError):
            raise FormatError(
                f"the log of Delta table {self.target} names {_shown(path)}, which is no file", hint=REPAIR
            ) from None

    def _new_commit(self, found: _Planned) -> Iterator[Action]:
        plan, now_ms = found.plan, self._clock.now_ms()
        settings = _settings(found.metadata)
        info: Action = {"timestamp": now_ms}
        if settings.get("delta.enableInCommitTimestamps", "").lower() == "true":
            newest = found.changes.commit_info.get(_COMMIT_TIMESTAMP)
            if type(newest) is not int:
                raise FormatError(
                    f"the newest commit of Delta table {self.target} has no time", hint=REPAIR
                )
            info[_COMMIT_TIMESTAMP] = max(now_ms, newest + 1)
        info |= {
            "operation": "RESTORE",
            "operationParameters": {"version": plan.to_version},
            "readVersion": int(plan.from_version),
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            "engineInfo": "pyspark-checkpoint",
            "txnId": self._clock.uuid7(),
        }
        yield {"commitInfo": info}
        yield {"txn": {"appId": plan.query_id, "version": plan.batch_id, "lastUpdated": now_ms}}
        if found.metadata is not found.now.metadata:
            yield {"metaData": found.metadata}
        for add in found.removed:
            remove = {name: add[name] for name in _OF_REMOVE if add.get(name) is not None}
            times = {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
            yield {"remove": remove | times}
        for add in found.added:
            there = {name: value for name, value in add.items() if value is not None}
            yield {"add": there | {"dataChange": True}}

    def _log_is_gone(self, batch_id: int, later: int) -> Diverged:
        return Diverged(
            f"the log of Delta table {self.target} no longer has the version of batch {batch_id}: Delta's "
            f"clean-up has removed commits below {later}",
            hint="restore a checkpoint of a later batch, or let the query write to another table",
        )

    def _unsupported(self, why: str) -> Unsupported:
        return Unsupported(f"Delta table {self.target} cannot go back from here: {why}", hint=_SPARK_WAY)

    def _stale(self, plan: RollBackPlan) -> StaleAttempt:
        return StaleAttempt(
            f"somebody committed to Delta table {self.target} after version {plan.from_version}",
            hint="nothing was changed; see who writes to the table, and repeat",
        )


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan with what its commit is made of."""

    plan: RollBackPlan
    now: TableState
    then: TableState
    changes: _Changes
    added: list[Action]
    removed: list[Action]

    @property
    def metadata(self) -> Action | None:
        """The metadata that the table has afterwards; the present one, unless it was changed since."""
        is_other = self.changes.has_metadata and self.then.metadata not in (None, self.now.metadata)
        return self.then.metadata if is_other else self.now.metadata


@dataclass(slots=True)
class _Changes:
    """What the commits that go have changed."""

    newest: dict[FileKey, Action | None]
    """Each file that they added or removed, as the newest version has it; None if it has not."""
    dropped: list[str]
    others: list[str]
    domains: list[str]
    commit_info: Action
    """Of the newest commit."""
    has_metadata: bool = False

    @staticmethod
    def read(log: DeltaLog, first: int, query_id: str) -> _Changes:
        """Read the commits from ``first`` on."""
        changes = _Changes({}, [], [], [], {})
        numbers = range(first, log.newest + 1)
        commits = iter_bounded(lambda number: list(log.actions(number, _CHANGES)), numbers, _READ_AHEAD)
        for number, actions in zip(numbers, commits, strict=True):
            changes._see(number, actions, query_id)
        return changes

    def _see(self, number: int, actions: list[tuple[str, Action]], query_id: str) -> None:
        self.commit_info = next((action for name, action in actions if name == "commitInfo"), {})
        batch, has_changed, has_files = None, False, False
        for name, action in actions:
            if name in ("add", "remove"):
                has_files = True
                has_changed = has_changed or action.get("dataChange") is not False
                self.newest[file_key(action)] = action if name == "add" else None
            elif name == "metaData":
                self.has_metadata = has_changed = True
            elif name == "domainMetadata" and action.get("domain") != _ROW_TRACKING:
                self.domains.append(f"domain {action.get('domain')}")
            elif name == "txn":
                found = batch_of(action, query_id)
                batch = batch if found is None else found
        if batch is not None:
            self.dropped.append(f"version {number}: batch {batch}")
        elif has_changed:
            self.others.append(_described(number, actions))
        elif has_files:
            self.dropped.append(f"{_described(number, actions)}; it changes no rows")


def _described(number: int, actions: list[tuple[str, Action]]) -> str:
    info: Action = next((action for name, action in actions if name == "commitInfo"), {})
    text = f"version {number}: {_shown(info.get('operation') or 'unknown operation')}"
    made = info.get("timestamp")
    if type(made) is int and 0 <= made < 1 << 45:
        text += f" at {datetime.fromtimestamp(made // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    if info.get("engineInfo"):
        text += f" by {_shown(info['engineInfo'])}"
    for name, action in actions:
        if name == "txn":
            return f"{text}, {_shown(action.get('version'))} of application {_shown(action.get('appId'))}"
    return text


def _shown(text: object) -> str:
    """What somebody else wrote, short and without control characters."""
    plain = "".join(one if one.isprintable() else "?" for one in str(text)[:121])
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def _features(protocol: Action | None) -> set[str]:
    lists = [(protocol or {}).get(name) or [] for name in ("readerFeatures", "writerFeatures")]
    return {str(feature) for features in lists if isinstance(features, list) for feature in features}


def _settings(metadata: Action | None) -> dict[str, str]:
    found: Any = (metadata or {}).get("configuration")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _duration(text: str | None, usual: str) -> str:
    match = _DURATION.match((text or "").strip())
    return match[1] if match else usual


def _vector_path(text: str) -> str:
    """Where a deletion vector is: a random prefix, which may be empty, and a UUID in Z85."""
    prefix, encoded = text[:-20], text[-20:]
    number = base64.b85decode(encoded.encode("ascii").translate(_Z85)).hex()
    name = "-".join((number[:8], number[8:12], number[12:16], number[16:20], number[20:]))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"
