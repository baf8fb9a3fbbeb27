"""From what was typed to open histories: one of them, or those of all queries below a URL.

A command that works on several prints one line or record a query and ends with one status. What is wrong
with one query is told for that query, and the command goes on with the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import Address, address_of
from pyspark_checkpoint.cli.console import Console, error_line
from pyspark_checkpoint.errors import CheckpointError, FormatError, NoCheckpoint, RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest, ConnectorCheckpoint
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.lookup import choose_number, no_checkpoint
from pyspark_checkpoint.history.manifest_diff import flatten_offsets
from pyspark_checkpoint.history.overview import Entry
from pyspark_checkpoint.outputs.output import RollBackPlan
from pyspark_checkpoint.registry.queries import (
    QueryNames,
    QueryRoot,
    history_url,
    is_history,
    plain_options,
    read_names,
    resolve_root,
)
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store

REFERENCE = "a checkpoint id, a savepoint, epoch=N or latest"
"""What CHECKPOINT may be, for ``--help``."""
DAMAGED = "damaged"
UNKNOWN = "unknown"


# --- one history ---------------------------------------------------------------------------------


def open_history(address: Address) -> CheckpointStore:
    """The history that is meant; ``RefusedError`` if there is none, or several."""
    return CheckpointStore.open(resolve_root(address.url, address.query, address.options), address.options)


def open_parent(address: Address) -> ObjectStore:
    """What is at the URL itself."""
    return open_object_store(address.url, plain_options(address.options))


def resolve_id(history: CheckpointStore, typed: str) -> int:
    """The id that was typed, or that of the savepoint, of ``epoch=N`` or of ``latest``."""
    try:
        return choose_number(history.store, typed)
    except NoCheckpoint:
        raise NoCheckpoint(
            f"{history.store.url} has no checkpoint {typed!r}",
            hint=f"give {REFERENCE}; ckpt list shows what there is",
        ) from None


def chosen_manifest(history: CheckpointStore, typed: str) -> CheckpointManifest:
    """The manifest of the checkpoint that was typed."""
    checkpoint_id = resolve_id(history, typed)
    manifest = history.load_by_id(checkpoint_id)
    if manifest is None:
        raise no_checkpoint(history.store, checkpoint_id)
    return manifest


# --- all queries below a URL ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """A query below a URL, and where its history is, or why that is not known."""

    root: QueryRoot
    url: str = ""
    problem: CheckpointError | None = None

    @property
    def label(self) -> str:
        """What people call it."""
        return self.root.name or self.root.query_id

    def open(self, address: Address) -> CheckpointStore:
        """Its history. Raises what is wrong with it."""
        if self.problem is not None:
            raise self.problem
        return CheckpointStore.open(self.url, address.options)


def find_queries(address: Address) -> QueryNames | None:
    """The queries below the URL; None if one is chosen, or if the URL is a history itself."""
    names = QueryNames() if address.query is not None else find_names(address)[1]
    return names if names.roots or names.damaged else None


def find_names(address: Address) -> tuple[ObjectStore, QueryNames]:
    """What is at the URL, and the queries below it that are meant; none if it is a history itself."""
    parent = open_parent(address)
    if address.query is None and is_history(parent):
        return parent, QueryNames()
    names = read_names(parent)
    if address.query is None:
        return parent, names
    return parent, QueryNames(
        tuple(root for root in names.roots if address.query in (root.name, root.query_id))
    )


def iter_queries(address: Address, names: QueryNames) -> Iterator[Query]:
    """Every query with its history's URL, found when its turn comes; those whose name is damaged last."""
    for root in names.roots:
        try:
            yield Query(root, history_url(address.url, root, address.options))
        except CheckpointError as error:
            yield Query(root, problem=error)
    for damaged in names.damaged:
        yield Query(QueryRoot(damaged.name, "", "", 0), problem=damaged.error())


@dataclass(frozen=True, slots=True)
class Done:
    """What was done with one history."""

    line: str
    result: Any
    """What ``--json`` prints of this history where it is the only one."""
    more: Sequence[str] = ()
    alone: Sequence[str] = ()
    """What is printed instead where it is the only one."""
    hint: str | None = None
    """What to do, because something is wrong with the history."""


Work = Callable[[CheckpointStore, str], Done]
"""Gets a history, and what people call it; that is empty where it is the only one."""


def run_on_histories(
    args: argparse.Namespace, console: Console, work: Work, *, must_ask: bool = False
) -> bool:
    """Do ``work`` on the history that was typed, or on each query's below the URL; print what came of it.

    With ``must_ask`` several are refused unless ``--all`` was typed. Returns whether something is
    wrong with a history, or one of several failed.
    """
    address = address_of(args)
    names = find_queries(address)
    count = 0 if names is None else len(names.roots) + len(names.damaged)
    if must_ask and count > 1 and not args.all:
        raise RefusedError(
            f"{address.url} holds the histories of {text.plural(count, 'query', 'queries')}",
            hint="give --all to do it for each of them, or --query NAME for one; ckpt list shows them",
        )
    if names is None or (count == 1 and not args.all):
        return _run_on_one(address, console, work)
    records, found, failed = list[dict[str, Any]](), list[Done](), list[CheckpointError]()
    for query in iter_queries(address, names):
        try:
            done = work(query.open(address), query.label)
        except CheckpointError as error:
            failed.append(error)
            records.append(_query_fields(query) | problem_record(error) | {"result": None})
            if not console.as_json:
                console.line(console.bad(f"{query.label}: {error_line(error)}"))
            continue
        found += [done] if done.hint is not None else []
        records.append(_query_fields(query) | problem_record(None) | {"result": done.result})
        if not console.as_json:
            line = f"{query.label}: {done.line}"
            console.lines(
                (line if done.hint is None else console.bad(line), *(f"  {one}" for one in done.more))
            )
    if console.as_json:
        console.json(records)
    console.hints([error.hint for error in failed] + [done.hint for done in found if not console.as_json])
    return bool(found or failed)


def _run_on_one(address: Address, console: Console, work: Work) -> bool:
    done = work(open_history(address), "")
    line, *more = done.alone or (done.line, *done.more)
    console.result(done.result, line if done.hint is None else console.bad(line), *more)
    if not console.as_json:
        console.hints([done.hint])
    return done.hint is not None


# --- what programs get, and people ---------------------------------------------------------------


def checkpoint_record(entry: Entry) -> dict[str, Any]:
    """One checkpoint for ``--json``. The names are stable: programs depend on them."""
    return {
        "checkpoint_id": entry.number,
        "epoch": entry.epoch,
        "batch_id": entry.batch_id,
        "timestamp_ms": entry.timestamp_ms,
        "kind": DAMAGED if entry.kind is None else entry.kind.value,
        "total_size_bytes": entry.total_size_bytes,
        "new_bytes": entry.new_bytes,
        "objects": entry.object_count,
        "generation": entry.generation,
        "run_id": entry.run_id,
        "savepoints": list(entry.savepoints),
        "staged_ms": entry.staged_ms,
        "requests": {
            "puts": entry.requests.puts,
            "gets": entry.requests.gets,
            "bytes": entry.requests.bytes,
        },
        "batch_watermark_ms": entry.batch_watermark_ms,
        "next_watermark_ms": entry.next_watermark_ms,
        "rollback_of": entry.rollback_of,
        "outputs": [asdict(sink) for sink in entry.sinks],
        "problem": entry.problem,
    }


def checkpoint_cells(heads: Sequence[str], entry: Entry, now_ms: int) -> list[str]:
    """One checkpoint in a table of checkpoints, in the columns that ``heads`` name."""
    known = entry.kind is not None
    cells = {
        "id": str(entry.number),
        "epoch": "" if entry.epoch is None else str(entry.epoch),
        "batch": "" if entry.batch_id is None else str(entry.batch_id),
        "kind": DAMAGED if entry.kind is None else entry.kind.value,
        "made": text.moment(entry.timestamp_ms),
        "age": text.age(entry.timestamp_ms, now_ms),
        "size": text.size(entry.total_size_bytes) if known else "",
        "new": text.size(entry.new_bytes) if known else "",
        "took": "" if entry.staged_ms is None else text.span(entry.staged_ms),
        "gen": "" if entry.generation is None else str(entry.generation),
        "savepoints": ", ".join(entry.savepoints),
    }
    return [cells[head.removeprefix(text.RIGHT)] for head in heads]


def output_rows(sinks: Sequence[SinkRecord]) -> list[tuple[str, str, str, str]]:
    """Where the rows of a checkpoint's batch went: kind, place, batch, and what the output calls that."""
    return [
        (
            sink.kind,
            " ".join(filter(None, (sink.target, sink.location))),
            "" if sink.batch_id is None else str(sink.batch_id),
            sink.native_version,
        )
        for sink in sinks
    ]


def output_line(row: tuple[str, str, str, str]) -> str:
    """One of these rows as a sentence's end."""
    kind, place, batch, version = row
    batch = f"batch {batch}" if batch else ""
    told = ", ".join(filter(None, (batch, f"version {version}" if version else "")))
    return f"{kind} {place}".strip() + (f": {told}" if told else "")


OUTPUT_HEADS = ("output", "place", ">batch", "version")


def describe_roll_back(plan: RollBackPlan) -> list[str]:
    """How an output goes back, for people."""
    head = (
        f"the {plan.kind.value} output {plan.target} to batch {plan.batch_id}: "
        f"from {plan.from_version or 'its present state'} to {plan.to_version or 'an empty one'}"
    )
    dropped = [f"{head}, dropping {line}" for line in plan.dropped] or [head]
    return dropped + [f"{head}, dropping what somebody else wrote: {line}" for line in plan.others]


def problem_record(problem: CheckpointError | None) -> dict[str, str | None]:
    """What is wrong with one query of several, for ``--json``."""
    if problem is None:
        return {"problem": None, "code": None, "hint": None}
    return {"problem": problem.message, "code": problem.code, "hint": problem.hint}


def problem_kind(problem: CheckpointError) -> str:
    """What a query is called that cannot be shown: stored bytes are wrong, or nobody could look."""
    return DAMAGED if isinstance(problem, FormatError) else UNKNOWN


def _query_fields(query: Query) -> dict[str, Any]:
    return {"query_id": query.root.query_id or None, "name": query.root.name, "url": query.url or None}


def source_rows(sources: Mapping[str, ConnectorCheckpoint], most: int) -> list[tuple[str, str, str]]:
    """Where each source stands: its name, the name of an offset, the offset; ``most`` offsets a source."""
    rows: list[tuple[str, str, str]] = []
    for name, source in sorted(sources.items()):
        what = source.metadata.get("description", "")
        label = f"{name} ({text.short(what, 60)})" if what else name
        found = list(flatten_offsets(source).items()) or [("", "not begun")]
        rows += [
            (label if at == 0 else "", key, text.short(value, 60))
            for at, (key, value) in enumerate(found[:most])
        ]
        if len(found) > most:
            rows.append(("", f"and {len(found) - most} more", ""))
    return rows
