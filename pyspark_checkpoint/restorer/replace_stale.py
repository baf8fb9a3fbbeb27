"""A stale location replaced by the newest checkpoint, at its own path. Nothing is deleted.

The checkpoint is restored beside the location first; only when it is whole do two renames swap them. A
restore that fails has changed nothing; nor has a rename: if the second one fails, the first is undone.
Nobody may use the location meanwhile: the caller holds its query, and is asked right before the first
rename whether he still does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError, Diverged, InUse, RefusedError, Unsupported
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.decide import FAIL
from pyspark_checkpoint.outputs.iceberg_table import FindTable
from pyspark_checkpoint.outputs.pyiceberg_table import find_pyiceberg_table
from pyspark_checkpoint.restorer.api import RestoreRequest, execute_restore
from pyspark_checkpoint.restorer.file_writer import location_writer
from pyspark_checkpoint.restorer.lock import find_interrupted
from pyspark_checkpoint.restorer.plan import plan_restore
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.names import COMMITS, OFFSETS, SOURCES
from pyspark_checkpoint.store.local.local_files import sync_directory
from pyspark_checkpoint.store.url import parse_store_url


@runtime_checkable
class Renames(Protocol):
    """A store of a file system that renames whole directories at once."""

    def rename_directory(self, source_url: str, target_url: str) -> None:
        """Rename; refuse a target that exists."""


@dataclass(frozen=True, slots=True)
class ReplacedLocation:
    """The batch that the restored location ends with, and where the stale one is kept."""

    batch: int
    set_aside: str


class LocationRestorer:
    """What a listener needs of restores: it is given to it, because features do not import each other."""

    def find_interrupted(self, location: CheckpointLocation) -> str | None:
        """The query id of a restore into this location that was not finished; None if there is none."""
        return find_interrupted(location)

    def missing_plan(
        self, history: CheckpointStore, manifest: CheckpointManifest, location: CheckpointLocation
    ) -> dict[str, bytes]:
        """The files of the batch that a checkpoint has planned and that a location at its batch lacks.

        In the order in which they are written, its offsets last. Refused if the location has others.
        """
        planned, listing = manifest.planned, location.listing(OFFSETS, COMMITS, SOURCES)
        if planned is None or listing.newest_committed != manifest.batch_id:
            return {}
        reader, missing = history.reader(), dict[str, bytes]()
        for file in plan_restore(manifest).files:
            if file.path not in planned.files:
                continue
            data = reader.read(file.ref)
            if file.path not in listing.facts:
                missing[file.path] = data
            elif location.read(file.path) != data:
                raise Diverged(
                    f"checkpoint location has diverged: {file.path} is not that of checkpoint "
                    f"{manifest.checkpoint_id}, which the query's output may have seen",
                    hint="run ckpt restore into a fresh location",
                )
        return missing

    def write_plan(self, location: CheckpointLocation, files: Mapping[str, bytes]) -> None:
        """Write what ``missing_plan`` has found; Spark then runs the batch with the offsets that it had."""
        writer = location_writer(location)
        for path, data in files.items():
            writer.write(path, data)
            writer.sync()

    def replace_location(
        self,
        url: str,
        spec: LocationSpec,
        options: Mapping[str, str] | None,
        *,
        sink: str = FAIL,
        tables: FindTable = find_pyiceberg_table,
        may_replace: Callable[[], bool] = lambda: True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> ReplacedLocation:
        """Put the newest checkpoint of the history at ``url`` in the place of a location that is behind it.

        Takes the history over, as every restore that resumes. ``sink`` says what happens to outputs that
        are ahead of it, ``tables`` finds those that are tables of a catalog. ``may_replace`` is asked once,
        when everything is restored and nothing is renamed: its yes holds until this returns. Refused on
        object stores, which cannot rename, and where a file system is mounted at the location. A failure
        leaves the location as it was.
        """
        check_replaceable(spec, url)
        number = clock.uuid7()
        fresh, aside = spec.beside(f"restored-{number}"), spec.beside(f"stale-{number}")
        report = execute_restore(
            RestoreRequest(url, fresh, sink=sink, options=options, tables=tables), clock=clock
        )
        if not may_replace():
            raise InUse(
                f"the query has not waited for it; batch {report.batch_id} is restored at {fresh.url}",
                hint=f"start the query when that is renamed to {spec.url}, or give the restore more time",
            )
        swap_locations(spec, fresh, aside)
        return ReplacedLocation(report.batch_id, aside.url)


def swap_locations(spec: LocationSpec, fresh: LocationSpec, aside: LocationSpec) -> None:
    """Put ``fresh`` in the place of a location, which is kept ``aside``: two renames, or none."""
    rename_location(spec, spec.url, aside.url)
    try:
        rename_location(spec, fresh.url, spec.url)
    except CheckpointError as error:
        _put_back(spec, aside, error)
        raise


def _put_back(spec: LocationSpec, aside: LocationSpec, error: CheckpointError) -> None:
    """Undo the first rename; if that fails too, say where the location is."""
    try:
        rename_location(spec, aside.url, spec.url)
    except CheckpointError:
        raise RefusedError(
            f"{error.message}; the stale location could not be put back, and is now at {aside.url}",
            hint=f"rename it, or the restored one beside it, to {spec.url} before the query is started",
        ) from error


def check_replaceable(spec: LocationSpec, url: str) -> None:
    """Refuse a location that cannot be renamed, before anything is written."""
    if spec.is_foreign:
        return
    where = parse_store_url(spec.url)
    if where.scheme != "file":
        problem = f"{spec.url} cannot be set aside: objects are not renamed"
    elif os.path.ismount(where.path):
        problem = f"{where.path} cannot be set aside: a file system is mounted there"
    else:
        return
    raise Unsupported(
        problem, hint=f"ckpt restore {url} --to FRESH_LOCATION, and start the query with that location"
    )


def rename_location(spec: LocationSpec, source_url: str, target_url: str) -> None:
    """Rename a location. Atomic on local disks and on HDFS; what fails has changed nothing."""
    if spec.is_foreign:
        store = spec.open().store
        if not isinstance(store, Renames):
            raise Unsupported(
                f"{spec.url} cannot be renamed", hint="run ckpt restore into a fresh location"
            )
        store.rename_directory(source_url, target_url)
        return
    source, target = Path(parse_store_url(source_url).path), Path(parse_store_url(target_url).path)
    if target.exists():
        raise InUse(f"{target} is in the way", hint="move it away, and start the query again")
    try:
        source.rename(target)
    except OSError as error:
        raise RefusedError(
            f"{source} could not be renamed to {target}: {error.strerror or type(error).__name__}",
            hint="this user must be allowed to write to the location's parent, and nothing may be mounted "
            "at the location",
        ) from error
    with contextlib.suppress(OSError):  # not every file system syncs directories; it is renamed
        sync_directory(target.parent)
