"""Where a query's history is below the URL that several queries share, and what records may lead to.

``{url}/{query id}/`` is a store of its own, and ``{url}/names/{name}.json`` points to the newest query of
that name. So two applications with one query name never share a history, and starting over after
deleting a checkpoint location begins a new one. ``{url}/apps/{application}/{query id}.json`` is there for
every query that an application has run: an automatic restore looks there.

Records and manifests name tables and checkpoint locations by URL, and whoever can write to a store can
write them. An Azure URL even names a host. So a table is opened with the user's credentials only in the
account or bucket that the user typed, or in one that the option ``trustedStores`` lists. A checkpoint
location may be anywhere that Spark reaches; only a host that is neither a cloud's own nor one that the user
typed is refused. These checks send nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark_checkpoint.crypto.keyring import KEY_FILE_OPTION
from pyspark_checkpoint.errors import (
    AlreadyExists,
    Busy,
    Conflict,
    FormatError,
    NoCheckpoint,
    NotFound,
    RefusedError,
    SettingsError,
    UnknownVersion,
)
from pyspark_checkpoint.format.envelope import decode_record, encode_record, sha256_hex
from pyspark_checkpoint.format.keys import CONTROL_KEY
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.manifest_reader import exists, find_record, read_record, read_stored
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.base import ObjectStore, Stored
from pyspark_checkpoint.store.open import StoreHome, home_of, open_object_store
from pyspark_checkpoint.store.options import TRUSTED_STORES, is_store_option
from pyspark_checkpoint.store.url import AZURE_SUFFIXES, parse_store_url

Options = Mapping[str, str]
NAMES_PREFIX = "names/"
APPS_PREFIX = "apps/"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
DAMAGED_HINT = (
    "the history itself is at {URL}/{query id}, and can be given by that URL; the next start of the query "
    "writes a new record"
)
NO_CHECKPOINTS_HINT = "check the URL; ckpt list shows the queries below one"
_MAX_NAME = 150
_RACES = 20
_UNSAFE = re.compile(r"[^A-Za-z0-9_=-]")


@dataclass(frozen=True, slots=True)
class QueryRoot:
    """A query that has a history below a URL."""

    name: str
    query_id: str
    app_name: str
    timestamp_ms: int
    table: str = ""
    """Where the table of its ckpt-sink is, if it writes to one."""
    checkpoint_location: str = ""


@dataclass(frozen=True, slots=True)
class DamagedName:
    """A name whose record cannot be read. The history that it points to may be intact."""

    key: str
    name: str
    problem: str

    def error(self) -> FormatError:
        """What to raise where just this name is asked for."""
        return FormatError(self.problem, hint=DAMAGED_HINT)


@dataclass(frozen=True, slots=True)
class QueryNames:
    """All names below a URL: the queries that they point to, and the damaged ones."""

    roots: tuple[QueryRoot, ...] = ()
    damaged: tuple[DamagedName, ...] = ()


def plain_options(options: Options | None) -> dict[str, str]:
    """The options of the store itself, without those of the history in it."""
    return {name: value for name, value in (options or {}).items() if name != KEY_FILE_OPTION}


def root_url(url: str, query_id: str) -> str:
    """The URL of one query's own store."""
    if _UUID.match(query_id) is None:
        raise RefusedError(
            f"not a query id: {query_id[:80]!r}",
            hint="give the id that ckpt list shows, or the query's name",
        )
    return f"{url.rstrip('/')}/{query_id}"


def name_key(name: str) -> str:
    """Where the pointer of a query name is; characters that not every store holds are spelled out."""
    return f"{NAMES_PREFIX}{_spelled(name)}.json"


def parse_name_key(key: str) -> str:
    """The name of a pointer; of a very long one what its key has of it."""
    return unquote(key.removeprefix(NAMES_PREFIX).removesuffix(".json"))


def app_prefix(app_name: str) -> str:
    """Where the queries of an application are listed."""
    return f"{APPS_PREFIX}{_spelled(app_name)}/"


def _spelled(name: str) -> str:
    safe = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8")), name)
    if len(safe) > _MAX_NAME:
        safe = f"{safe[:_MAX_NAME]}-{sha256_hex(name.encode('utf-8'))[:32]}"
    return safe


def register(parent: ObjectStore, root: QueryRoot) -> None:
    """Point a query's name, or its id if it has none, at its newest history; list it by application.

    A query that began later keeps the name, however late this one is registered.
    """
    fields = {
        "name": root.name,
        "query_id": root.query_id,
        "app_name": root.app_name,
        "timestamp_ms": root.timestamp_ms,
        "table": root.table,
        "checkpoint_location": root.checkpoint_location,
    }
    record = encode_record(fields)
    _put_newest(parent, name_key(root.name or root.query_id), record, root.timestamp_ms)
    if root.app_name:
        key = f"{app_prefix(root.app_name)}{root.query_id}.json"
        _put_newest(parent, key, record, root.timestamp_ms)


def _put_newest(parent: ObjectStore, key: str, record: bytes, timestamp_ms: int) -> None:
    for _ in range(_RACES):
        found = _find_stored(parent, key)
        if found is not None and _timestamp_ms(found.data, key) > timestamp_ms:
            return
        try:
            if found is None:
                parent.put(key, record, if_absent=True)
            else:
                parent.put(key, record, if_match=found.version)
        except (AlreadyExists, Conflict):
            continue
        return
    raise Busy(f"gave up after {_RACES} conflicting writes to {key}", hint="try again")


def _find_stored(parent: ObjectStore, key: str) -> Stored | None:
    try:
        return read_stored(parent, key)
    except NotFound:
        return None


def _timestamp_ms(data: bytes, key: str) -> int:
    """When the query began that a record speaks of. One that is damaged is older than all others."""
    try:
        return _decode(data, key).timestamp_ms
    except UnknownVersion:
        raise
    except FormatError:
        return -1


def read_names(parent: ObjectStore) -> QueryNames:
    """The queries that have a history below a URL, by name. One damaged record does not hide the others."""
    roots: list[QueryRoot] = []
    damaged: list[DamagedName] = []
    for info in parent.list(NAMES_PREFIX):
        try:
            roots.append(_decode(read_record(parent, info.key), info.key))
        except FormatError as error:
            damaged.append(DamagedName(info.key, parse_name_key(info.key), error.message))
    return QueryNames(tuple(roots), tuple(damaged))


def list_queries(parent: ObjectStore) -> list[QueryRoot]:
    """All queries that have a history below a URL, by name; an error if one of them is damaged."""
    names = read_names(parent)
    for damaged in names.damaged:
        raise damaged.error()
    return list(names.roots)


def find_query(parent: ObjectStore, name: str) -> QueryRoot | None:
    """The newest query of that name, or without a name of that id; None if there is none."""
    key = name_key(name)
    data = find_record(parent, key)
    return None if data is None else _decode(data, key)


def list_app_queries(parent: ObjectStore, app_name: str) -> list[QueryRoot]:
    """The queries that an application of this name has run with checkpoints below a URL.

    A damaged one is an error: an automatic restore must not leave it out.
    """
    return [_decode(read_record(parent, info.key), info.key) for info in parent.list(app_prefix(app_name))]


def resolve_root(url: str, query: str | None, options: Options | None = None) -> str:
    """The URL of the history that is meant: ``url`` itself, or the one query below it, or the named one.

    A query whose ckpt-sink commits its state with its rows has its history in its table.
    """
    parent = open_object_store(url, plain_options(options))
    if query is None and is_history(parent):
        return url
    names = read_names(parent)
    chosen = [root for root in names.roots if query in (None, root.name, root.query_id)]
    if len(chosen) == 1 and (query is not None or not names.damaged):
        return history_url(url, chosen[0], options)
    return _resolve_unnamed(url, query, names, parent.url)


def _resolve_unnamed(url: str, query: str | None, names: QueryNames, where: str) -> str:
    """The history of an id that no name leads to. A damaged record never counts as absent."""
    is_id = query is not None and _UUID.match(query) is not None
    is_lost = is_id and all(root.query_id != query for root in names.roots)
    for damaged in names.damaged:
        if is_lost or not names.roots or (query is not None and damaged.key == name_key(query)):
            raise damaged.error()
    if query is not None and is_id:
        return root_url(url, query)
    known = [root.name or root.query_id for root in names.roots]
    if not known:
        raise NoCheckpoint(f"{where} has no checkpoints", hint=NO_CHECKPOINTS_HINT)
    choices = ", ".join(sorted([*known, *(damaged.name for damaged in names.damaged)])[:20])
    if query is None:
        text = f"{where} holds the histories of several queries"
        raise RefusedError(text, hint=f"name one of: {choices}")
    raise NoCheckpoint(f"no query {query!r} below {where}", hint=f"name one of: {choices}")


def history_url(url: str, root: QueryRoot, options: Options | None = None) -> str:
    """Where a query's state is kept: in the history of its table if that has it, otherwise in its own.

    Refused if the table is in another account or bucket than ``url``, unless the options trust that one.
    """
    if root.table:
        check_named_table(root.table, url, options)
        if _has_state(root, options):
            return root.table
    return root_url(url, root.query_id)


def _has_state(root: QueryRoot, options: Options | None) -> bool:
    """Whether the table's newest checkpoint that can be read has the state of this query."""
    table = CheckpointStore.open(root.table, options)
    for number in reversed(table.list_ids()):
        try:
            manifest = table.load_by_id(number)
        except FormatError:
            continue  # verify reports what is damaged
        if manifest is not None:
            return manifest.query.id == root.query_id and manifest.state is not None
    return False


def is_history(store: ObjectStore) -> bool:
    """Whether a store is one query's history, and not only what several lie below."""
    return exists(store, CONTROL_KEY)


def _decode(data: bytes, name: str) -> QueryRoot:
    fields = decode_record(data, name)
    try:
        return QueryRoot(
            str(fields["name"]),
            str(fields["query_id"]),
            str(fields["app_name"]),
            int(fields["timestamp_ms"]),
            str(fields.get("table", "")),
            str(fields.get("checkpoint_location", "")),
        )
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{name} lacks a field, or has one of another type", hint=DAMAGED_HINT) from None


# --- which places that records name may be opened ------------------------------------------------


def check_named_table(
    table_url: str,
    typed_url: str,
    options: Options | None = None,
    table_options: Options | None = None,
) -> None:
    """Refuse a table that a record names elsewhere than in the account or bucket of ``typed_url``.

    ``table_options`` are what the table is opened with, if those are not ``options``.
    """
    home = _named_home(table_url, options if table_options is None else table_options)
    if home not in _trusted_homes(typed_url, options, table_options):
        raise RefusedError(
            f"a record names the table {table_url!r}, in another account or bucket than {typed_url}",
            hint=f"if it is yours, give the option {TRUSTED_STORES}={home.spelled} (--option, "
            f"spark.ckpt.option.{TRUSTED_STORES}), or the table's own URL",
        )


def check_named_location(location_url: str, typed_url: str, options: Options | None = None) -> None:
    """Refuse a checkpoint location that a record names on a host which no cloud has and nobody typed."""
    if not location_url or LocationSpec(location_url).is_foreign:
        return
    suffix = parse_store_url(location_url).azure_suffix
    if suffix is None or suffix in AZURE_SUFFIXES:
        return
    home = _named_home(location_url, options)
    if home not in _trusted_homes(typed_url, options):
        raise RefusedError(
            f"a record names the checkpoint location {location_url!r} on a host that is none of Azure's",
            hint=f"if it is yours, give the option {TRUSTED_STORES}={home.spelled}",
        )


def _named_home(url: str, options: Options | None) -> StoreHome:
    try:
        return _home(url, options)
    except SettingsError as error:
        raise RefusedError(
            f"a record names {url!r}, which cannot be opened: {error.message}",
            hint=error.hint or "give the URL of the table or history itself",
        ) from None


def _trusted_homes(typed_url: str, *options: Options | None) -> Iterator[StoreHome]:
    yield _home(typed_url, options[0])
    for given in options:
        for name, value in (given or {}).items():
            if name.lower() == TRUSTED_STORES.lower():
                yield from (_home(url.strip(), given) for url in value.split(",") if url.strip())


def _home(url: str, options: Options | None) -> StoreHome:
    return home_of(url, {name: value for name, value in (options or {}).items() if is_store_option(name)})
