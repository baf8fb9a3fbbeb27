"""A stale location replaced by the newest checkpoint, at its own path. Nothing is deleted.

The checkpoint is restored beside the location first; only when it is whole do two renames swap them. A
restore that fails has changed nothing. Nobody may use the location meanwhile: the caller holds its query.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyspark_checkpoint.capture import operations
from pyspark_checkpoint.capture.location import LocationSpec
from pyspark_checkpoint.capture.restore import RestoreReport
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.store.url import parse_store_url


@runtime_checkable
class Renames(Protocol):
    """A store of a file system that renames whole directories at once."""

    def rename_directory(self, source_url: str, target_url: str) -> None:
        """Rename; refuse a target that exists."""


@dataclass(frozen=True, slots=True)
class ReplacedLocation:
    """What was restored, and where the stale location is kept."""

    report: RestoreReport
    set_aside: str


def replace_location(
    url: str, spec: LocationSpec, options: Mapping[str, str] | None, *, clock: Clock = SYSTEM_CLOCK
) -> ReplacedLocation:
    """Put the newest checkpoint of the history at ``url`` in the place of a location that is behind it.

    Takes the history over, as every restore that resumes. Refused on object stores: they cannot rename.
    """
    check_replaceable(spec, url)
    number = clock.uuid7()
    fresh, aside = spec.beside(f"restored-{number}"), spec.beside(f"stale-{number}")
    report = operations.restore(url, fresh, options=options, clock=clock)
    rename_location(spec, spec.url, aside.url)
    rename_location(spec, fresh.url, spec.url)
    return ReplacedLocation(report, aside.url)


def check_replaceable(spec: LocationSpec, url: str) -> None:
    """Refuse a location that cannot be renamed, before anything is written."""
    if not spec.is_foreign and parse_store_url(spec.url).scheme != "file":
        raise RefusedError(
            f"{spec.url} cannot be set aside: objects are not renamed",
            hint=f"ckpt restore {url} --to FRESH_LOCATION, and start the query there",
        )


def rename_location(spec: LocationSpec, source_url: str, target_url: str) -> None:
    """Rename a location. Atomic on local disks and on HDFS."""
    if spec.is_foreign:
        store = spec.open().store
        if not isinstance(store, Renames):
            raise RefusedError(f"{spec.url} cannot be renamed")
        store.rename_directory(source_url, target_url)
        return
    source, target = Path(parse_store_url(source_url).path), Path(parse_store_url(target_url).path)
    if target.exists():
        raise RefusedError(f"{target} is in the way")
    source.rename(target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
