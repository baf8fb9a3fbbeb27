"""The options of ``ckpt-sink``, taken apart and checked. Pure.

Names are Spark's style (``keyColumns``) and may be typed in any case. An option that nobody knows is an
error that names the nearest one. What begins with ``__ckpt.`` comes from the jar: facts about the query.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.format.keys import check_name
from pyspark_checkpoint.sink.query import FACT_PREFIX, WriterFacts, facts_from_options
from pyspark_checkpoint.store.options import is_store_option
from pyspark_checkpoint.table.codec import Compression
from pyspark_checkpoint.table.compaction import DEFAULT_MAX_DELTAS

DEFAULT_OPERATOR = "table"
DEFAULT_RETAIN = 20
DEFAULT_INLINE_TASK_BYTES = 1024 * 1024
DEFAULT_INLINE_BATCH_BYTES = 64 * 1024 * 1024
DEFAULT_INLINE_READ_BYTES = 8 * 1024 * 1024
MOST_INLINE_READ_BYTES = 64 * 1024 * 1024
"""Below what Spark takes in the message of a task (``spark.rpc.message.maxSize``), should it be one row."""
MOST_INLINE_BYTES = 512 * 1024 * 1024
STATE_MODES = ("auto", "off", "on")

_SHARED = ("path", "operator", "encryptionKeyFile")
_WRITE = (
    "keyColumns",
    "partitions",
    "vnodes",
    "sequenceColumn",
    "opColumn",
    "maxDeltas",
    "retain",
    "state",
    "codec",
    "codecLevel",
    "takeOver",
    "inlineTaskBytes",
    "inlineBatchBytes",
)
_READ = (
    "checkpointId",
    "epoch",
    "savepoint",
    "timestampAsOf",
    "vnodes",
    "changes",
    "startingEpoch",
    "inlineReadBytes",
)
_SPARK = ("checkpointLocation", "queryName", "maxFilesPerTrigger")


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """What reading and writing have in common. ``store_options`` may hold secrets; its repr is hidden."""

    path: str
    operator: str
    key_file: str | None
    store_options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a query writes its table. None means: what the table has recorded, or the default."""

    shared: SharedOptions
    facts: WriterFacts
    keys: tuple[str, ...] = ()
    partitions: int | None = None
    vnodes: int | None = None
    sequence_column: str | None = None
    op_column: str | None = None
    max_deltas: int = DEFAULT_MAX_DELTAS
    retain: int | None = DEFAULT_RETAIN
    compression: Compression = field(default_factory=Compression)
    take_over: bool = False
    state: str = "auto"
    """Whether Spark's own state is committed with the rows."""
    inline_task_bytes: int = DEFAULT_INLINE_TASK_BYTES
    """Rows of a task up to here are written by the driver; 0: every task writes its own."""
    inline_batch_bytes: int = DEFAULT_INLINE_BATCH_BYTES
    """What all tasks of a batch may send to the driver."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a query reads. At most one of checkpoint_id, epoch, savepoint, timestamp is given."""

    shared: SharedOptions
    checkpoint_id: int | None = None
    epoch: int | None = None
    savepoint: str | None = None
    timestamp: str | None = None
    vnodes: str | None = None
    changes: bool = False
    starting_epoch: str | None = None
    own_scan: bool = False
    """Whether the jar scans the table: it hands filters down, and takes rows that come with the plan."""
    inline_bytes: int = DEFAULT_INLINE_READ_BYTES
    """Up to here the process that plans reads the rows itself; 0: tasks read them."""

    @property
    def names_checkpoint(self) -> bool:
        """Whether one is chosen, instead of the newest."""
        chosen = (self.checkpoint_id, self.epoch, self.savepoint, self.timestamp)
        return any(one is not None for one in chosen)


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check everything that can be checked without the table."""
    values = _known(options, (*_SHARED, *_WRITE), "writing", other=_READ)
    codec = values.get("codec", "zstd").lower()
    level = _number(values, "codecLevel", 1)
    retain = values.get("retain", str(DEFAULT_RETAIN))
    return WriteOptions(
        shared=_shared(options, values),
        facts=facts_from_options(options),
        keys=split_columns(values.get("keyColumns", "")),
        partitions=_number(values, "partitions", 1),
        vnodes=_number(values, "vnodes", 1),
        sequence_column=values.get("sequenceColumn"),
        op_column=values.get("opColumn"),
        max_deltas=_number(values, "maxDeltas", 1) or DEFAULT_MAX_DELTAS,
        retain=None if retain.lower() == "all" else _number({"retain": retain}, "retain", 1),
        compression=Compression(codec, level) if level else Compression(codec),
        take_over=_flag(values, "takeOver"),
        state=_choice(values, "state", STATE_MODES, "auto"),
        inline_task_bytes=_bytes(values, "inlineTaskBytes", DEFAULT_INLINE_TASK_BYTES),
        inline_batch_bytes=_bytes(values, "inlineBatchBytes", DEFAULT_INLINE_BATCH_BYTES),
    )


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check everything that can be checked without the table."""
    values = _known(options, (*_SHARED, *_READ), "reading", other=_WRITE)
    points = [name for name in ("checkpointId", "epoch", "savepoint", "timestampAsOf") if name in values]
    if len(points) > 1:
        raise SettingsError(f"{' and '.join(points)} each choose a checkpoint", hint="give one of them")
    streaming = str(options.get(f"{FACT_PREFIX}streaming", "false")).lower() == "true"
    return ReadOptions(
        shared=_shared(options, values),
        checkpoint_id=_number(values, "checkpointId", 1),
        epoch=_number(values, "epoch", 0),
        savepoint=values.get("savepoint"),
        timestamp=values.get("timestampAsOf"),
        vnodes=values.get("vnodes"),
        changes=_flag(values, "changes", default=streaming),
        starting_epoch=values.get("startingEpoch"),
        own_scan=options.get(f"{FACT_PREFIX}scan") == "own",
        inline_bytes=_bytes(values, "inlineReadBytes", DEFAULT_INLINE_READ_BYTES, MOST_INLINE_READ_BYTES),
    )


def split_columns(text: str) -> tuple[str, ...]:
    """Split names at commas; a name in backticks may have commas itself, and two backticks for one."""
    names, name, quoted = [], "", False
    for at, letter in enumerate(text + ","):
        if letter == "`":
            if not quoted and text[at - 1 : at] == "`":
                name += letter
            quoted = not quoted
        elif letter == "," and not quoted:
            names.append(name.strip())
            name = ""
        else:
            name += letter
    if quoted:
        raise SettingsError(
            f"keyColumns has a backtick without its other one: {text!r}",
            hint="write a backtick that is part of a name twice, inside backticks",
        )
    return tuple(found for found in names if found)


def _known(
    options: Mapping[str, str], names: tuple[str, ...], doing: str, *, other: tuple[str, ...]
) -> dict[str, str]:
    by_lower = {name.lower(): name for name in names}
    ignored = {name.lower() for name in _SPARK}
    values: dict[str, str] = {}
    for typed, value in options.items():
        lower = typed.lower()
        if lower in by_lower:
            values[by_lower[lower]] = str(value)
        elif not (lower.startswith(FACT_PREFIX) or lower in ignored or is_store_option(typed)):
            raise _unknown(typed, by_lower, doing, {name.lower(): name for name in other})
    return values


def _unknown(
    typed: str, by_lower: Mapping[str, str], doing: str, other: Mapping[str, str]
) -> SettingsError:
    if typed.lower() in other:
        return SettingsError(f"option {other[typed.lower()]} is not for {doing}", hint="leave it out")
    near = difflib.get_close_matches(typed.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]]}?" if near else f"known: {', '.join(by_lower.values())}"
    return SettingsError(f"unknown option {typed} of ckpt-sink", hint=hint)


def _shared(options: Mapping[str, str], values: Mapping[str, str]) -> SharedOptions:
    path = values.get("path", "")
    if not path:
        raise SettingsError(
            "ckpt-sink needs a path", hint='.option("path", "s3://bucket/prefix"), or start(path)'
        )
    if path.lower().startswith("memory:"):
        raise SettingsError(
            "a memory: store lives in one process, and Spark's driver and tasks are several",
            hint="use a directory: file:///tmp/table",
        )
    if ":" not in path:
        # Tasks run in directories of their own: a relative path is meant from where the driver is.
        path = str(Path(path).expanduser().absolute())
    store_options = {name: str(value) for name, value in options.items() if is_store_option(name)}
    operator = check_name(values.get("operator", DEFAULT_OPERATOR), "operator")
    return SharedOptions(path, operator, values.get("encryptionKeyFile"), store_options)


def _number(values: Mapping[str, str], name: str, minimum: int) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.strip().removeprefix("-").isdecimal() or int(text) < minimum:
        raise _wrong_value(name, text, f"a whole number of at least {minimum}")
    return int(text)


def _bytes(values: Mapping[str, str], name: str, default: int, most: int = MOST_INLINE_BYTES) -> int:
    """A bound of what travels in messages of Spark, which have less than 2 GB."""
    found = _number(values, name, 0)
    if found is not None and found > most:
        raise _wrong_value(name, values[name], f"at most {most}")
    return default if found is None else found


def _choice(values: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    text = values.get(name, default).strip().lower()
    if text not in choices:
        raise _wrong_value(name, values[name], f"one of {', '.join(choices)}")
    return text


def _flag(values: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    return _choice(values, name, ("true", "false"), str(default).lower()) == "true"


def _wrong_value(name: str, text: str, allowed: str) -> SettingsError:
    return SettingsError(f"option {name} cannot be {text!r}", hint=f"{name} is {allowed}")
