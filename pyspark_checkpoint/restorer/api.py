"""``restore`` and ``savepoint``: what people do with the checkpoints of a query. Needs no Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark_checkpoint.capture.commit_log import find_commit, keep_commit, seal_known
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import FormatError, RefusedError, SettingsError, StaleAttempt, UnknownVersion
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history import lookup
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.history.savepoint import Savepoint
from pyspark_checkpoint.outputs.ckpt_sink import LinkedSink
from pyspark_checkpoint.registry.queries import plain_options, resolve_root
from pyspark_checkpoint.restorer.execute import Progress, Restore, RestoreReport, Spread, find_interrupted
from pyspark_checkpoint.restorer.plan import RestorePlan
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.restore_points import RestorePoint

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
    timestamp_ms: int | None = None
    query: str | None = None
    point: RestorePoint | None = None

    @property
    def is_latest(self) -> bool:
        """Whether the newest one that is whole is meant."""
        return self.at == LATEST and self.epoch is None and self.timestamp_ms is None


def savepoint(
    url: str, name: str, *, query: str | None = None, at: int | None = None, options: Options | None = None
) -> Savepoint:
    """Keep a checkpoint of a query under ``name``, the newest by default; retention never removes it."""
    store = CheckpointStore.open(resolve_root(url, query, options), options)
    made = store.savepoint(name, at)
    seal_known(store, made.number, options, typed_url=url)
    return made


def restore(
    url: str,
    to: str | LocationSpec,
    at: int | str = LATEST,
    *,
    epoch: int | None = None,
    timestamp_ms: int | None = None,
    query: str | None = None,
    point: str | None = None,
    clone: bool = False,
    rollback_sink: bool = False,
    automatic: bool = False,
    options: Options | None = None,
    location_options: Options | None = None,
    sink_options: Options | None = None,
    progress: Progress | None = None,
    spread: Spread | None = None,
    split: Callable[[], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RestoreReport:
    """Rebuild a checkpoint location from a checkpoint; the unmodified query goes on from there.

    ``at`` is a checkpoint's number, a savepoint's name or ``latest`` (the newest that is whole, with a
    warning about each newer one that is not); ``epoch`` chooses by batch instead, ``timestamp_ms`` the
    newest that was made by then. The location must be fresh. A restore that resumes takes the history
    over, so that a driver that still runs is fenced, and records a rollback if the checkpoint is not
    the newest; with ``clone`` the location gets a new query id, and the history stays as it is.

    A checkpoint of a ckpt-sink that has rows and state can be restored to two points: ``after`` its batch,
    if Spark is known to have finished it, or ``before`` it; then Spark runs the batch again and the table
    replaces its rows. None chooses after where it is known; the report says which it was. Rows and state
    go back together, by one recorded rollback of the one history that they are in.

    Any other query that writes to a ckpt-sink goes on only if its table is at the same epoch. With
    ``rollback_sink`` a table that is further is rolled back, as a recorded rollback; otherwise, and if
    it is behind, the restore is refused. ``spread`` writes large restores elsewhere than in this process.
    ``split`` is called when all is written, while the location is still marked as unfinished and neither
    table nor history is changed; if it fails, or is killed, repeating the restore begins it anew.
    ``automatic``: nobody chose this restore. An interrupted one of its kind gives way to it if its
    checkpoint is older, gone or damaged; any other interrupted restore has to be repeated as it was.
    """
    history = CheckpointStore.open(resolve_root(url, query, options), options)
    if isinstance(to, str):
        to = LocationSpec(to, plain_options(options if location_options is None else location_options))
    location = to.open()
    request = RestoreRequest(url, to.url, at, epoch, timestamp_ms, query, parse_point(point))
    skipped: list[str] = []
    for manifest in _candidates(history, request, skipped):
        sink = LinkedSink(manifest, url, options, sink_options)
        if not clone:
            sink.plan(may_roll_back=rollback_sink)
        query_id = clone_id(location, manifest, clock) if clone else None
        commit = find_commit(history, manifest)
        task = Restore(
            history.store,
            history.reader(),
            manifest,
            location,
            query_id=query_id,
            point=request.point,
            commit=commit,
            spread=spread,
            automatic=automatic and request.is_latest,
            is_lost=lambda number: _is_lost(history, number),
        )
        try:
            report = task.execute(progress)
        except UnknownVersion:
            raise  # nothing is damaged: going back would throw away what a newer version has written
        except FormatError as error:
            if not request.is_latest:
                raise
            task.undo()
            _skip(skipped, manifest.checkpoint_id, error)
            continue
        if split is not None:
            split()
            task.check_hold()
        if not clone:
            made = _take_over(history, manifest.checkpoint_id)
            if made is not None and commit is not None and report.point is RestorePoint.AFTER:
                keep_commit(history, made, commit)
            if rollback_sink:
                sink.plan(may_roll_back=True)  # whoever still ran may have written until the fence
            sink.roll_back()
        task.finish()
        location.store.close()
        return report
    raise FormatError(
        f"none of the checkpoints is good: {'; '.join(skipped)}",
        hint="restore the damaged objects from a copy; starting afresh would lose what they hold",
    )


def parse_point(text: str | None) -> RestorePoint | None:
    """``before``, ``after``, or None for the default."""
    if text is None:
        return None
    try:
        return RestorePoint(text)
    except ValueError:
        raise SettingsError(f"a checkpoint is restored before or after its batch, not {text!r}") from None


def find_manifest(
    url: str,
    at: int | str = LATEST,
    *,
    epoch: int | None = None,
    timestamp_ms: int | None = None,
    query: str | None = None,
    options: Options | None = None,
) -> CheckpointManifest:
    """The checkpoint that ``restore`` would choose."""
    history = CheckpointStore.open(resolve_root(url, query, options), options)
    number = choose_checkpoint(history, RestoreRequest(url, "", at, epoch, timestamp_ms, query))
    return _loaded(history, number)


def _candidates(
    history: CheckpointStore, request: RestoreRequest, skipped: list[str]
) -> Iterator[CheckpointManifest]:
    """The checkpoint that is meant; for ``latest`` one after the other, newest first.

    The bytes of each are verified while they are restored, so that nothing is read twice.
    """
    if not request.is_latest:
        yield _loaded(history, choose_checkpoint(history, request))
        return
    lost = history.find_lost()
    if lost is not None:
        skipped.append(f"lost: {lost}")
        _LOG.warning("%s", lost)
    numbers = history.list_ids()
    _known(max(numbers, default=None), "checkpoint")
    for number in reversed(numbers):
        try:
            manifest = history.load_by_id(number)
        except UnknownVersion:
            raise
        except FormatError as error:
            _skip(skipped, number, error)
            continue
        if manifest is not None:
            yield manifest


def _is_lost(history: CheckpointStore, number: int) -> bool:
    """Whether a checkpoint is gone or its manifest damaged; one of a newer version is neither."""
    try:
        return history.load_by_id(number) is None
    except UnknownVersion:
        return False
    except FormatError:
        return True


def _skip(skipped: list[str], number: int, error: FormatError) -> None:
    skipped.append(f"skipped checkpoint {number}: {error}")
    _LOG.warning("%s", skipped[-1])


def plan_only(request: RestoreRequest, options: Options | None = None) -> RestorePlan:
    """What a restore would write; nothing is."""
    history = CheckpointStore.open(resolve_root(request.url, request.query, options), options)
    number = choose_checkpoint(history, request)
    location = LocationSpec(request.to, plain_options(options)).open()
    manifest = _loaded(history, number)
    return Restore(
        history.store,
        history.reader(),
        manifest,
        location,
        point=request.point,
        commit=find_commit(history, manifest),
    ).plan


def choose_checkpoint(history: CheckpointStore, request: RestoreRequest) -> int:
    """The number that is meant. ``latest`` walks back over damaged ones and says so."""
    if request.epoch is not None:
        return _known(lookup.find_number_by_epoch(history.store, request.epoch), f"epoch {request.epoch}")
    if request.timestamp_ms is not None:
        found = lookup.find_number_by_time(history.store, request.timestamp_ms)
        return _known(found, "checkpoint of that time or before")
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


def _loaded(history: CheckpointStore, number: int) -> CheckpointManifest:
    manifest = history.load_by_id(number)
    if manifest is None:
        raise RefusedError(f"there is no checkpoint {number}", hint="ckpt list shows what there is")
    return manifest


def clone_id(location: CheckpointLocation, manifest: CheckpointManifest, clock: Clock) -> str:
    """A fresh query id, or that of the interrupted restore of a clone which this one goes on with."""
    begun = find_interrupted(location)
    return clock.uuid7() if begun is None or begun == manifest.query.id else begun


def _take_over(history: CheckpointStore, number: int) -> CheckpointManifest | None:
    """Fence whoever still writes; go back in the history if the location did, also over a damaged head.

    Who still writes may have committed since the checkpoint was chosen: the location has not got that.
    """

    def check(head: Head) -> None:
        if head.number != number:
            raise StaleAttempt(f"checkpoint {head.number} was committed meanwhile", hint="look again")

    if history.find_lost() is None and max(history.list_ids(), default=number) == number:
        try:
            return history.claim(check)
        except StaleAttempt:
            pass
    return history.rollback(number)
