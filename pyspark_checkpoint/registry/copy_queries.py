"""Copying one history, or those of the queries below a URL, so that the copy is used as the original is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark_checkpoint.errors import CheckpointError, NoCheckpoint
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.copy_plan import CopyPlan
from pyspark_checkpoint.history.replication import copy_store
from pyspark_checkpoint.registry.queries import (
    NO_CHECKPOINTS_HINT,
    Options,
    QueryRoot,
    find_query,
    history_url,
    is_history,
    list_queries,
    plain_options,
    read_names,
    register,
    resolve_root,
    root_url,
)
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.store.parallel import Progress


@dataclass(frozen=True, slots=True)
class HistoryCopy:
    """One history to copy. ``root`` is the query that it is of, if it lies below a URL of several."""

    source_url: str
    target_url: str
    root: QueryRoot | None = None
    problem: CheckpointError | None = None
    """Why the history, which is one of several, was not found."""

    @property
    def label(self) -> str:
        """What people call the query; empty for a history that is no query's."""
        return "" if self.root is None else self.root.name or self.root.query_id


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What to copy and where. Options are never printed."""

    source_url: str
    target_url: str
    query: str | None = None
    numbers: frozenset[int] = frozenset()
    savepoint_names: frozenset[str] = frozenset()


def plan_histories(request: CopyRequest, options: Options | None = None) -> list[HistoryCopy]:
    """Which histories are meant. Queries keep their ids at the target, and so their names.

    A history that is in a query's table becomes the query's own: the copy needs no other store.
    """
    parent = open_object_store(request.source_url, plain_options(options))
    if request.query is None and is_history(parent):
        return [HistoryCopy(request.source_url, request.target_url)]
    roots = list_queries(parent) if request.query is None else read_names(parent).roots
    wanted = [root for root in roots if request.query in (None, root.name, root.query_id)]
    if not wanted and request.query is not None:
        # An older query of a name, by its id.
        url = resolve_root(request.source_url, request.query, options)
        return [HistoryCopy(url, root_url(request.target_url, request.query))]
    if not wanted:
        raise NoCheckpoint(f"{parent.url} has no checkpoints", hint=NO_CHECKPOINTS_HINT)
    if len(wanted) == 1:
        return [_plan_history(request, wanted[0], options)]
    return [_plan_one_of_several(request, root, options) for root in wanted]


def _plan_history(request: CopyRequest, root: QueryRoot, options: Options | None) -> HistoryCopy:
    source_url = history_url(request.source_url, root, options)
    return HistoryCopy(source_url, root_url(request.target_url, root.query_id), replace(root, table=""))


def _plan_one_of_several(request: CopyRequest, root: QueryRoot, options: Options | None) -> HistoryCopy:
    try:
        return _plan_history(request, root, options)
    except CheckpointError as error:
        return HistoryCopy("", request.target_url, root, error)


def copy_histories(
    request: CopyRequest,
    *,
    options: Options | None = None,
    target_options: Options | None = None,
    progress: Progress | None = None,
    dry_run: bool = False,
) -> Iterator[tuple[HistoryCopy, CopyPlan | CheckpointError]]:
    """Copy them, one after the other, and yield what was done. See ``history.replication``.

    A query's name at the target points to the copy, unless a newer query of that name is there. Of several,
    one that fails is yielded with its error, and the others are copied.
    """
    items = plan_histories(request, options)
    there = plain_options(target_options)
    for item in items:
        try:
            if item.problem is not None:
                raise item.problem
            yield item, _copy(item, request, options, there, progress, dry_run=dry_run)
        except CheckpointError as error:
            if len(items) == 1:
                raise
            yield item, error


def _copy(
    item: HistoryCopy,
    request: CopyRequest,
    options: Options | None,
    there: Options,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> CopyPlan:
    source = CheckpointStore.open(item.source_url, options)
    plan = copy_store(
        source.store,
        open_object_store(item.target_url, there),
        numbers=request.numbers,
        savepoint_names=request.savepoint_names,
        progress=progress,
        dry_run=dry_run,
        mac=source.authenticator(),
    )
    if item.root is not None and not dry_run:
        _register(request.target_url, there, item.root)
    return plan


def _register(url: str, options: Options, root: QueryRoot) -> None:
    parent = open_object_store(url, options)
    known = find_query(parent, root.name or root.query_id)
    if known is None or (known.query_id != root.query_id and known.timestamp_ms <= root.timestamp_ms):
        register(parent, root)
