"""A command on the histories of all queries below a URL: one line or record a query, one exit status.

What is wrong with one query is told for that query, and the command goes on with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark_checkpoint.cli import exits, text
from pyspark_checkpoint.cli.arguments import Place
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.target import find_queries
from pyspark_checkpoint.errors import CheckpointError, RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import QueryNames, QueryRoot, history_url


@dataclass(frozen=True, slots=True)
class Query:
    """A query below a URL, and where its history is, or why that cannot be told."""

    root: QueryRoot
    url: str = ""
    problem: CheckpointError | None = None

    @property
    def label(self) -> str:
        """What people call it."""
        return self.root.name or self.root.query_id


@dataclass(frozen=True, slots=True)
class Done:
    """What was done with one history."""

    line: str
    result: Any
    """What ``--json`` prints of this history where it is the only one."""
    more: tuple[str, ...] = ()
    is_wrong: bool = False


Work = Callable[[CheckpointStore, Query], Done]


def find_several(place: Place, *, every: bool, must_ask: bool = False) -> QueryNames | None:
    """The queries that a command works on one after the other; None if one history alone is meant.

    ``every``: the user has typed ``--all``. With ``must_ask`` several are refused without that.
    """
    names = find_queries(place)
    if names is None:
        return None
    count = len(names.roots) + len(names.damaged)
    if every:
        return names
    if count == 1:
        return None
    if must_ask:
        raise RefusedError(
            f"{place.url} holds the histories of {text.plural(count, 'query', 'queries')}",
            hint="give --all to do it for each of them, or --query NAME for one; ckpt list shows them",
        )
    return names


def iter_queries(place: Place, names: QueryNames) -> Iterator[Query]:
    """Every query with its history's URL, found when its turn comes; those whose name is damaged last."""
    for root in names.roots:
        try:
            yield Query(root, history_url(place.url, root, place.options))
        except CheckpointError as error:
            yield Query(root, problem=error)
    for damaged in names.damaged:
        yield Query(QueryRoot(damaged.name, "", "", 0), problem=damaged.error())


def run_on_each(place: Place, names: QueryNames, console: Console, work: Work, *, as_json: bool) -> int:
    """Do ``work`` for every query and print what came of it; ``FOUND`` if one is wrong or failed."""
    records, hints, is_wrong = [], dict[str, None](), False
    for query in iter_queries(place, names):
        done, problem = _try(place, query, work)
        is_wrong = is_wrong or problem is not None or (done is not None and done.is_wrong)
        if problem is not None and problem.hint:
            hints[problem.hint] = None
        if as_json:
            records.append(_record(query, done, problem))
        else:
            _show(query, done, problem, console)
    if as_json:
        console.json(records)
    for hint in hints:
        console.note(f"  hint: {hint}")
    return exits.FOUND if is_wrong else exits.DONE


def _try(place: Place, query: Query, work: Work) -> tuple[Done | None, CheckpointError | None]:
    if query.problem is not None:
        return None, query.problem
    try:
        return work(CheckpointStore.open(query.url, place.options), query), None
    except CheckpointError as error:
        return None, error


def _record(query: Query, done: Done | None, problem: CheckpointError | None) -> dict[str, Any]:
    return {
        "query_id": query.root.query_id or None,
        "name": query.root.name,
        "url": query.url or None,
        "problem": None if problem is None else problem.message,
        "result": None if done is None else done.result,
    }


def _show(query: Query, done: Done | None, problem: CheckpointError | None, console: Console) -> None:
    if done is not None:
        line = f"{query.label}: {done.line}"
        console.line(console.bad(line) if done.is_wrong else line)
        console.lines(f"  {line}" for line in done.more)
    elif problem is not None:
        console.line(console.bad(f"{query.label}: {problem.message}"))
