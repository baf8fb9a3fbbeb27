"""The log of a Delta table, read without Spark: commits of JSON lines, and checkpoints of the log.

What a version of a table consists of is found from its commit back to the newest checkpoint of the log
that is not later. Nothing is held in memory but what is asked for: the files of a table may be millions.
Everything here was written by others: sizes are bounded, and types are looked at.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import orjson

from pyspark_checkpoint.errors import FormatError, MissingExtra, Unsupported
from pyspark_checkpoint.store.base import ObjectStore

LOG = "_delta_log/"
MAX_CHECKPOINT_BYTES = 512 << 20
MAX_COMMIT_BYTES = 256 << 20
REPAIR = "repair the table before its query goes on"
_COMMIT = re.compile(r"_delta_log/(\d{20})\.json\Z", re.ASCII)
_CHECKPOINT = re.compile(
    r"_delta_log/(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)\Z", re.ASCII
)
_STAGED = re.compile(r"_delta_log/(?:_staged_commits|_commits)/(\d{20})\.[0-9a-f-]{36}\.json\Z", re.ASCII)
"""A commit on which a catalog decides, until it is published under its number alone."""
_SIDECAR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z", re.ASCII)

Action = dict[str, Any]
FileKey = tuple[str, str]
"""What a file of a table is known by: its path, and the id of its deletion vector ("" without one)."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What one version of a table says of the things that were asked for."""

    transaction: int | None = None
    metadata: Action | None = None
    protocol: Action | None = None
    files: Mapping[FileKey, Action] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """Which commits and checkpoints of a log there are, by their versions.

    Attributes:
        store: Opened at the table's path.
        target: The table, as people write it.
        commits: The bytes of each commit file.
        checkpoints: The files of each whole checkpoint of the log.
        newest_staged: The newest commit that was proposed to a catalog; -1 if none was.
    """

    store: ObjectStore = field(repr=False)
    target: str
    commits: Mapping[int, int]
    checkpoints: Mapping[int, tuple[str, ...]]
    newest_staged: int = -1

    @staticmethod
    def of(store: ObjectStore, target: str) -> DeltaLog:
        """List a table's log."""
        commits, found, parts = dict[int, int](), dict[int, tuple[str, ...]](), dict[int, int]()
        staged = -1
        for info in store.list(LOG):
            if commit := _COMMIT.match(info.key):
                commits[int(commit[1])] = info.size_bytes
            elif checkpoint := _CHECKPOINT.match(info.key):
                number = int(checkpoint[1])
                if checkpoint[3] is None:
                    found[number], parts[number] = (info.key,), 1
                elif parts.get(number) != 1:
                    found[number] = (*found.get(number, ()), info.key)
                    parts[number] = int(checkpoint[3])
            elif proposed := _STAGED.match(info.key):
                staged = max(staged, int(proposed[1]))
        whole = {number: keys for number, keys in found.items() if len(keys) == parts[number]}
        return DeltaLog(store, target, commits, whole, staged)

    @property
    def is_behind(self) -> bool:
        """Whether a catalog may have newer commits of the table than its log."""
        return self.newest_staged > self.newest

    @property
    def newest(self) -> int:
        """The table's version; -1 if there is no table."""
        return max((*self.commits, *self.checkpoints), default=-1)

    def commits_below(self, version: int) -> list[int] | None:
        """The commits that make ``version`` of a checkpoint, newest first; None if one is not there."""
        base = self._base(version)
        needed = list(range(version, base, -1))
        return needed if all(number in self.commits for number in needed) else None

    def state(
        self, version: int, query_id: str, names: Set[str], files: Set[FileKey] = frozenset()
    ) -> TableState | None:
        """What ``version`` says; None if the log no longer has all of that version.

        Args:
            version: -1 is the table before its first commit.
            query_id: Whose ``txn`` is looked for.
            names: Which of ``txn``, ``metaData`` and ``protocol`` are looked for.
            files: Which files are looked for.
        """
        numbers = self.commits_below(version)
        if numbers is None:
            return None
        finder = _Finder(query_id, set(names), set(files))
        for number in numbers:
            finder.see(self.actions(number, finder.wanted()))
            if finder.is_done():
                return finder.state
        base = self._base(version)
        for key in self.checkpoints.get(base, ()):
            finder.see(self._checkpoint_actions(key, finder.wanted() - {"remove"}, finder.paths()))
        return finder.state

    def actions(self, version: int, names: Set[str]) -> Iterator[tuple[str, Action]]:
        """The actions of a commit that have these names, in its order."""
        if self.commits[version] > MAX_COMMIT_BYTES:
            raise Unsupported(
                f"commit {version} of Delta table {self.target} has {self.commits[version]} bytes",
                hint=f"at most {MAX_COMMIT_BYTES >> 20} MiB are read; ask the table with Spark",
            )
        return self._json_actions(f"{LOG}{version:020d}.json", names)

    def batches(self, version: int, query_id: str) -> list[int]:
        """The batches of the query that a commit has; one, or none."""
        found = (batch_of(action, query_id) for _, action in self.actions(version, {"txn"}))
        return [batch for batch in found if batch is not None]

    def _base(self, version: int) -> int:
        return max((number for number in self.checkpoints if number <= version), default=-1)

    def _json_actions(self, key: str, names: Set[str]) -> Iterator[tuple[str, Action]]:
        marks, rest = [f'"{name}"'.encode() for name in names], b""
        for chunk in (*self.store.stream(key), b"\n"):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if any(mark in line for mark in marks):
                    yield from self._parse(line, key, names)

    def _parse(self, line: bytes, key: str, names: Set[str]) -> Iterator[tuple[str, Action]]:
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise FormatError(f"{key} of Delta table {self.target} is not JSON", hint=REPAIR) from None
        if not isinstance(found, dict):
            raise FormatError(f"{key} of Delta table {self.target} holds no actions", hint=REPAIR)
        for name, action in found.items():
            if name in names and action is not None:
                if not isinstance(action, dict):
                    raise FormatError(
                        f"{key} of Delta table {self.target} has a {name} that is none", hint=REPAIR
                    )
                yield name, action

    def _checkpoint_actions(
        self, key: str, names: Set[str], paths: Set[str]
    ) -> Iterator[tuple[str, Action]]:
        """The actions of a part of a checkpoint, of files those at ``paths``, also from its sidecars."""
        with_sidecars = names | {"sidecar"} if "add" in names else names
        if key.endswith(".json"):
            self._check_size(key)
            found = self._json_actions(key, with_sidecars)
        else:
            found = self._parquet_actions(key, with_sidecars, paths)
        for name, action in found:
            if name != "sidecar":
                yield name, action
                continue
            file = action.get("path")
            if not isinstance(file, str) or not _SIDECAR.match(file):
                raise FormatError(f"{key} of Delta table {self.target} names no sidecar", hint=REPAIR)
            yield from self._parquet_actions(f"{LOG}_sidecars/{file}", {"add"}, paths)

    def _check_size(self, key: str) -> None:
        size = self.store.head(key).size_bytes
        if size > MAX_CHECKPOINT_BYTES:
            raise Unsupported(
                f"the checkpoint of Delta table {self.target} has {size} bytes",
                hint="let Delta write a newer commit with this query, or look up its txn with Spark",
            )

    def _parquet_actions(self, key: str, names: Set[str], paths: Set[str]) -> Iterator[tuple[str, Action]]:
        try:
            import pyarrow as pa  # noqa: PLC0415 - most questions are answered by the newest commit
            import pyarrow.parquet as pq  # noqa: PLC0415
        except ImportError:
            raise MissingExtra(
                f"the log of Delta table {self.target} has a checkpoint, which pyarrow reads",
                hint="pip install 'pyspark-checkpoint[delta]'",
            ) from None
        self._check_size(key)
        try:
            file = pq.ParquetFile(io.BytesIO(self.store.get(key)))
            for name in sorted(names & set(file.schema_arrow.names)):
                kind = file.schema_arrow.field(name).type
                columns = [f"{name}.{one.name}" for one in kind if not one.name.endswith("_parsed")]
                columns += [f"{name}.stats_parsed.numRecords"] if name == "add" else []
                for batch in file.iter_batches(columns=columns):
                    rows = batch.column(name)
                    there = rows.field("path").to_pylist() if name == "add" else None
                    for at in range(len(rows)):
                        if there is None or there[at] in paths:
                            row = rows[at].as_py()
                            if row is not None:
                                yield name, _without_nulls(rows.type, row)
        except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
            raise FormatError(
                f"{key} of Delta table {self.target} cannot be read ({type(error).__name__})", hint=REPAIR
            ) from None


class _Finder:
    """Sees the actions of a log, newest first, and keeps the first answer to each question."""

    def __init__(self, query_id: str, names: set[str], files: set[FileKey]) -> None:
        self._query_id, self._names, self._files = query_id, names, files
        self._found: dict[FileKey, Action] = {}
        self.state = TableState(files=self._found)

    def wanted(self) -> set[str]:
        """What is still asked for, as actions are named."""
        return self._names | ({"add", "remove"} if self._files else set())

    def paths(self) -> set[str]:
        """The paths of the files that are still asked for."""
        return {path for path, _ in self._files}

    def is_done(self) -> bool:
        """Whether everything is answered."""
        return not self._names and not self._files

    def see(self, actions: Iterator[tuple[str, Action]]) -> None:
        """Take what one commit says, or one part of a checkpoint."""
        seen: dict[str, Any] = {}
        for name, action in actions:
            if name == "txn":
                batch = batch_of(action, self._query_id)
                if batch is not None:
                    seen[name] = batch
            elif name in ("add", "remove"):
                key = file_key(action)
                if key in self._files:
                    self._files.discard(key)
                    if name == "add":
                        self._found[key] = action
            else:
                seen[name] = action
        self._names -= seen.keys()
        self.state = TableState(
            seen.get("txn", self.state.transaction),
            seen.get("metaData", self.state.metadata),
            seen.get("protocol", self.state.protocol),
            self._found,
        )


def batch_of(transaction: Action, query_id: str) -> int | None:
    """The batch of a ``txn``, if it is of this query."""
    version = transaction.get("version")
    return version if transaction.get("appId") == query_id and type(version) is int else None


def file_key(action: Action) -> FileKey:
    """What the file of an ``add`` or ``remove`` is known by."""
    path, vector = action.get("path"), action.get("deletionVector")
    if not isinstance(path, str) or not path:
        raise FormatError("the log of a Delta table has a file without a path", hint=REPAIR)
    if vector is None:
        return path, ""
    if not isinstance(vector, dict) or not isinstance(vector.get("pathOrInlineDv"), str):
        raise FormatError("the log of a Delta table has a deletion vector that is none", hint=REPAIR)
    offset = vector.get("offset")
    place = "" if offset is None else f"@{offset}"
    return path, f"{vector.get('storageType')}{vector['pathOrInlineDv']}{place}"


def _without_nulls(kind: Any, value: Any) -> Any:
    """A row of a checkpoint as the JSON of a commit has it: maps as such, absent fields left out."""
    if value is None:
        return None
    if hasattr(kind, "key_type"):
        return dict(value)
    if not isinstance(value, dict):
        return value
    row = {one.name: _without_nulls(one.type, value.get(one.name)) for one in kind}
    parsed = row.pop("stats_parsed", None)
    if parsed and row.get("stats") is None:
        row["stats"] = orjson.dumps(parsed).decode()
    return {name: field for name, field in row.items() if field is not None}
