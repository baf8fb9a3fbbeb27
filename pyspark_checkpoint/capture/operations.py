"""``restore`` and ``savepoint``: what people do with the checkpoints of a query. Needs no Spark."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpoint.capture.location import LocationSpec
from pyspark_checkpoint.capture.restore import Progress, Restore, RestoreReport
from pyspark_checkpoint.capture.roots import resolve_root
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history import lookup
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.records_io import LoadedManifest
from pyspark_checkpoint.history.savepoint import Savepoint
from pyspark_checkpoint.sparkstate.restore import RestorePlan

_LOG = logging.getLogger(__name__)

LATEST = "latest"
Options = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to restore, and where. ``at`` is a number, a savepoint's name or ``latest``."""

    url: str
    to: str
    at: int | str = LATEST
    epoch: int | None = None
    query: str | None = None
    clone: bool = False


def savepoint(
    url: str, name: str, *, query: str | None = None, at: int | None = None, options: Options | None = None
) -> Savepoint:
    """Keep a checkpoint of a query under ``name``, the newest by default; retention never removes it."""
    store = CheckpointStore.open(resolve_root(url, query, options), options)
    return store.savepoint(name, at)


def restore(
    url: str,
    to: str,
    at: int | str = LATEST,
    *,
    epoch: int | None = None,
    query: str | None = None,
    clone: bool = False,
    options: Options | None = None,
    location_options: Options | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RestoreReport:
    """Rebuild a checkpoint location from a checkpoint; the unmodified query goes on from there.

    ``at`` is a checkpoint's number, a savepoint's name or ``latest`` (the newest that is whole, with a
    warning about each newer one that is not); ``epoch`` chooses by batch instead. The location must be
    fresh. A restore that resumes takes the history over, so that a driver that still runs is fenced,
    and records a rollback if the checkpoint is not the newest; with ``clone`` the location gets a new
    query id, and the history stays as it is.
    """
    request = RestoreRequest(url, to, at, epoch, query, clone)
    history = CheckpointStore.open(resolve_root(url, query, options), options)
    number = choose_checkpoint(history, request)
    location = LocationSpec(to, location_options if location_options is not None else options or {}).open()
    query_id = str(uuid.UUID(clock.uuid7())) if clone else None
    task = Restore(history.store, history.reader(), _loaded(history, number), location, query_id=query_id)
    report = task.execute(progress)
    location.store.close()
    if not clone:
        _take_over(history, number)
    return report


def plan_only(request: RestoreRequest, options: Options | None = None) -> RestorePlan:
    """What a restore would write; nothing is."""
    history = CheckpointStore.open(resolve_root(request.url, request.query, options), options)
    number = choose_checkpoint(history, request)
    location = LocationSpec(request.to, options or {}).open()
    return Restore(history.store, history.reader(), _loaded(history, number), location).plan


def choose_checkpoint(history: CheckpointStore, request: RestoreRequest) -> int:
    """The number that is meant. ``latest`` walks back over damaged ones and says so."""
    if request.epoch is not None:
        return _known(lookup.find_number_by_epoch(history.store, request.epoch), f"epoch {request.epoch}")
    if request.at == LATEST:
        report = history.recover_latest_validated()
        if report.skipped:
            _LOG.warning("%s", report.report)
        return _known(report.chosen_id, "checkpoint")
    if isinstance(request.at, int) or request.at.isdigit():
        return int(request.at)
    return _known(lookup.find_number_by_savepoint(history.store, request.at), f"savepoint {request.at!r}")


def _known(number: int | None, what: str) -> int:
    if number is None:
        raise RefusedError(f"there is no {what} in this history", hint="ckpt list shows what it has")
    return number


def _loaded(history: CheckpointStore, number: int) -> LoadedManifest:
    history.load_by_id(number)  # checks who wrote it, where the store is encrypted
    return lookup.read_checkpoint(history.store, number)


def _take_over(history: CheckpointStore, number: int) -> CheckpointManifest | None:
    """Fence whoever still writes; go back in the history if the location did."""
    newest = history.load_latest()
    if newest is not None and newest.checkpoint_id != number:
        return history.rollback(number)
    return history.claim()
