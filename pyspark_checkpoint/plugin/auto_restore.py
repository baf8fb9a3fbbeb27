"""``spark.ckpt.restore``: checkpoint locations that are not there, rebuilt before an application begins.

Run by the driver plugin, as ``python -m``, before the application's own code. Needs no Spark.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark_checkpoint.errors import (
    CheckpointError,
    Diverged,
    FormatError,
    UnknownVersion,
    Unsupported,
    safe_text,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.lookup import LATEST
from pyspark_checkpoint.listener.sink_watcher import find_table_checkpoint
from pyspark_checkpoint.outputs.decide import ROLLBACK
from pyspark_checkpoint.outputs.pyiceberg_table import tables_of_confs
from pyspark_checkpoint.plugin.plugin_settings import MISSING, PluginSettings
from pyspark_checkpoint.plugin.process_input import begin_process
from pyspark_checkpoint.registry.queries import (
    QueryRoot,
    check_named_location,
    check_named_table,
    history_url,
    list_app_queries,
    plain_options,
    root_url,
)
from pyspark_checkpoint.restorer.api import RestoreRequest, execute_restore
from pyspark_checkpoint.restorer.execute import RestoreReport
from pyspark_checkpoint.restorer.lock import find_interrupted
from pyspark_checkpoint.restorer.plan import IN_USE
from pyspark_checkpoint.spark_files.location import LocationSpec, location_options
from pyspark_checkpoint.store.open import open_object_store

MUST_BE_THERE = "LOCATION"
"""How a line begins that names a location which the driver must find: it cannot be restored from here."""
_LOG = logging.getLogger("pyspark_checkpoint.plugin.auto_restore")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A query, where its checkpoints are, and whether its checkpoint location is there."""

    root: QueryRoot
    history_url: str
    """Empty: it was never checkpointed. If it ran last, nobody else's state belongs into its location."""
    location: str
    is_there: bool | None
    """None: only Hadoop can tell, which the driver is told to ask."""
    problem: CheckpointError | None = None
    """Why its checkpoints could not be looked at. Matters only if it is to be restored."""

    @property
    def name(self) -> str:
        """What people call it."""
        return self.root.name or self.root.query_id


def last_that_ran(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Of several queries that had one location, the one whose location it is. Pure."""
    newest: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda found: found.root.timestamp_ms):
        newest[candidate.location] = candidate
    return list(newest.values())


def auto_restore(settings: PluginSettings) -> list[RestoreReport]:
    """Restore every query of this application whose location is not there; the first failure ends it."""
    candidates, wanted = find_candidates(settings), list[Candidate]()
    for found in last_that_ran(candidates):
        if found.is_there:
            _LOG.info("query %s: its location %s is there and stays as it is", found.name, found.location)
        elif not found.history_url:
            _say_what_is_left(found, candidates)
        elif found.is_there is None:
            print(f"{MUST_BE_THERE} {found.location}", flush=True)
        else:
            wanted.append(found)
    if not wanted:
        _LOG.info("nothing of application %r is to be restored", settings.app)
    for found in wanted:
        if found.problem is not None:
            raise found.problem
    return [_restore(settings, found) for found in wanted]


def find_candidates(settings: PluginSettings) -> list[Candidate]:
    """The queries of this application that have checkpoints, and others that had the same locations."""
    parent = open_object_store(settings.url, plain_options(settings.options))
    roots = [root for root in list_app_queries(parent, settings.app) if settings.wants(root.name)]
    found = [_find_candidate(settings, root) for root in roots]
    wanted = {one.location for one in found if one.history_url and one.location}
    is_there = {location: _is_there(settings, location) for location in sorted(wanted)}
    return [replace(one, is_there=is_there[one.location]) for one in found if one.location in is_there]


def _find_candidate(settings: PluginSettings, root: QueryRoot) -> Candidate:
    """A query whose checkpoints may not or cannot be read is one too, if its location is recorded."""
    try:
        url, location = _find_history(settings, root) or ("", root.checkpoint_location)
    except CheckpointError as error:
        if not root.checkpoint_location:
            raise
        url = root.table or root_url(settings.url, root.query_id)
        return Candidate(root, url, root.checkpoint_location, None, error)
    return Candidate(root, url, location, None)


def _say_what_is_left(found: Candidate, candidates: Iterable[Candidate]) -> None:
    """Nothing is restored where a query began anew: say why, and how the one before it comes back."""
    before = [other for other in candidates if other.location == found.location and other.history_url]
    last = max(before, key=lambda other: other.root.timestamp_ms)
    _LOG.warning(
        "query %s (%s) ran last in %s and has no checkpoint: nothing is restored there, and if the "
        "location is gone the query begins anew. To go on from query %s, which had it before: "
        "ckpt restore %s --to %s",
        found.name,
        found.root.query_id,
        found.location,
        last.root.query_id,
        last.history_url,
        found.location,
    )


def _find_history(settings: PluginSettings, root: QueryRoot) -> tuple[str, str] | None:
    """Where a query's state is kept, and the location that it had; None if it was never checkpointed.

    A newest checkpoint that is damaged is the restore's to step over, if there must be one.
    """
    try:
        found = _find_newest(settings, root)
    except UnknownVersion:
        raise
    except FormatError:
        if not root.checkpoint_location:
            raise
        return history_url(settings.url, root, settings.options), root.checkpoint_location
    if found is None:
        return None
    url, newest = found
    return url, root.checkpoint_location or newest.query.checkpoint_location


def _find_newest(settings: PluginSettings, root: QueryRoot) -> tuple[str, CheckpointManifest] | None:
    """The newest checkpoint of a query, in its table's history or in its own, and which of them it is."""
    if root.table:
        check_named_table(root.table, settings.url, settings.options)
        newest = find_table_checkpoint(root.table, root.query_id, settings.options)
        if newest is not None:
            return root.table, newest
    url = root_url(settings.url, root.query_id)
    newest = CheckpointStore.open(url, settings.options).load_latest()
    if newest is not None and newest.query.id != root.query_id:
        raise Diverged(
            f"the newest checkpoint of {url} is of query {newest.query.id!r}, and not of {root.query_id!r}",
            hint="if it is what you want: ckpt restore, by hand",
        )
    return None if newest is None else (url, newest)


def _location_options(settings: PluginSettings, url: str) -> dict[str, str]:
    return location_options(url, settings.hadoop, plain_options(settings.options))


def _is_there(settings: PluginSettings, url: str) -> bool | None:
    """Whether a query uses the location. What an interrupted restore left does not count."""
    check_named_location(url, settings.url, settings.options)
    spec = LocationSpec(url, _location_options(settings, url))
    if spec.is_foreign:
        return None
    location = spec.open()
    if find_interrupted(location) is not None:
        return False
    return any(info.key.startswith(IN_USE) for info in location.store.list())


def _restore(settings: PluginSettings, found: Candidate) -> RestoreReport:
    at = LATEST if settings.restore == MISSING else settings.restore
    _LOG.info("query %s: restoring %s from %s", found.name, found.location, at)
    request = RestoreRequest(
        found.history_url,
        found.location,
        at,
        sink=settings.sink,
        automatic=True,
        options=settings.options,
        location_options=_location_options(settings, found.location),
        tables=tables_of_confs(settings.catalogs),
    )
    try:
        report = execute_restore(request)
    except Unsupported as error:
        if settings.sink != ROLLBACK:
            raise
        by_hand = f"ckpt restore {found.history_url} --to {found.location} --sink rollback"
        raise Unsupported(
            error.message,
            hint=f"{error.hint}; no session is there yet: run once, with the confs of the table's catalog, "
            f"{by_hand} --conf NAME=VALUE, and start the application again",
        ) from None
    _LOG.info(
        "query %s: %s is restored from checkpoint %d, %s batch %d: %d files, %d bytes",
        found.name,
        found.location,
        report.checkpoint_id,
        report.point.value,
        report.batch_id,
        report.files,
        report.size_bytes,
    )
    return report


def main(*, has_driver: bool = False) -> int:
    """Do what standard input says; 0 if all that was to be restored is."""
    try:
        auto_restore(begin_process(sys.stdin, has_driver=has_driver).settings())
    except Exception as error:  # noqa: BLE001 - the driver says what became of the application
        _LOG.error("the restore failed: %s", safe_text(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(has_driver=True))
