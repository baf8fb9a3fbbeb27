"""Recovery: the newest checkpoint whose every byte is right, and a report of what was passed over.

A silent step back is a bug, so the report says why each newer checkpoint was skipped, which sinks have
to be driven again, and what has changed since the checkpoint was made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import FormatError, Unavailable, UnknownVersion
from pyspark_checkpoint.format.envelope import Mac, sha256_hex
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.head import MAX_ROUNDS, HeadLocation, locate_head, lost_problem
from pyspark_checkpoint.history.lookup import is_visible, visible_numbers, was_removed_since
from pyspark_checkpoint.history.manifest_reader import find_record, load_manifest_bytes
from pyspark_checkpoint.history.sink_status import usable_statuses
from pyspark_checkpoint.history.verify import Finding, finding_of, verify_checkpoint
from pyspark_checkpoint.history.vnode_share import missing_vnodes
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY

_LOG = logging.getLogger(__name__)
Selector = Callable[[CheckpointManifest], CheckpointManifest]


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Whether a checkpoint can be restored, and if not, why."""

    checkpoint_id: int
    issues: tuple[Finding, ...] = ()
    manifest: CheckpointManifest | None = None

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong."""
        return not self.issues


@dataclass(frozen=True, slots=True)
class Expected:
    """What the pipeline that recovers looks like; None means: do not compare."""

    source_names: tuple[str, ...] | None = None
    sink_names: tuple[str, ...] | None = None
    pipeline_hash: int | None = None
    vnode_count: int | None = None
    vnodes: frozenset[int] | None = None
    """The share of the vnodes that recovers; None means all."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery chose, what it passed over and why, and what is to be done about sinks."""

    manifest: CheckpointManifest | None = None
    """The chosen checkpoint with its sinks' statuses; None only for a store that is new."""
    skipped: tuple[ValidationResult, ...] = ()
    warnings: tuple[str, ...] = ()
    pending_sinks: tuple[str, ...] = ()
    failed_sinks: tuple[str, ...] = ()
    elapsed_seconds: float = field(default=0.0, compare=False)

    @property
    def chosen_id(self) -> int | None:
        """The number of the chosen checkpoint."""
        return None if self.manifest is None else self.manifest.checkpoint_id

    @property
    def sinks_to_drive(self) -> tuple[str, ...]:
        """Sinks that may lack the chosen checkpoint's output and must be told to commit again."""
        return tuple(sorted(self.pending_sinks + self.failed_sinks))

    @property
    def report(self) -> str:
        """All of it as lines of text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.manifest is None:
            yield "no checkpoint yet: the store is new"
        else:
            yield f"recovered checkpoint {self.chosen_id} (epoch {self.manifest.epoch})"
        for result in self.skipped:
            for issue in result.issues:
                yield f"skipped checkpoint {result.checkpoint_id}: {issue}"
        for sink in self.pending_sinks:
            yield f"sink {sink!r} is pending and has to commit again"
        for sink in self.failed_sinks:
            yield f"sink {sink!r} has failed and has to commit again"
        for warning in self.warnings:
            yield f"warning: {warning}"


def recover_latest_validated(
    store: ObjectStore,
    clock: Clock,
    *,
    mac: Mac | None = None,
    expected: Expected | None = None,
    select: Selector | None = None,
    max_concurrent_reads: int = DEFAULT_CONCURRENCY,
) -> RecoveryReport:
    """Walk back from the newest checkpoint to the first good one and report.

    ``FormatError`` if there are checkpoints and none is good: that is not a new store. ``select`` cuts
    a manifest down to what the caller reads, which is then all that is verified.
    """
    begin = clock.monotonic_seconds()
    for _ in range(MAX_ROUNDS):
        where = locate_head(store)
        if where is None:
            return RecoveryReport()
        walk = _walk_back(store, where, mac, select, max_concurrent_reads)
        if walk is not None:
            chosen, skipped = walk
            return _report(store, chosen, skipped, expected, clock.monotonic_seconds() - begin, mac=mac)
    raise Unavailable(
        f"gave up verifying {store.url}: it was pruned {MAX_ROUNDS} times meanwhile",
        hint="make a savepoint and recover that, or keep more checkpoints",
    )


def _walk_back(
    store: ObjectStore,
    where: HeadLocation,
    mac: Mac | None,
    select: Selector | None,
    max_concurrent_reads: int,
) -> tuple[CheckpointManifest, tuple[ValidationResult, ...]] | None:
    """The newest good checkpoint and what was passed over; None if it was pruned meanwhile."""
    skipped: list[ValidationResult] = []
    if where.lost is not None:
        problem = lost_problem(where.lost, where.number)
        skipped.append(
            ValidationResult(where.lost, (Finding(manifest_key(where.lost), problem, where.lost),))
        )
    for number in reversed(visible_numbers(where.control, where.number)):
        result = validate_at(
            store, where, number, mac=mac, select=select, max_concurrent_reads=max_concurrent_reads
        )
        if result is None:
            continue
        good = result.valid and result.manifest is not None
        if (not good or skipped) and was_removed_since(store, where, number):
            return None
        if good and result.manifest is not None:
            return result.manifest, tuple(skipped)
        _LOG.warning("checkpoint %d is passed over: %s", number, "; ".join(map(str, result.issues)))
        skipped.append(result)
    reasons = "; ".join(str(issue) for result in skipped for issue in result.issues)
    raise FormatError(
        f"{store.url}: none of {len(skipped)} checkpoints is good: {reasons}",
        hint="restore the damaged objects from a copy; starting afresh would lose what they hold",
    )


def validate_at(
    store: ObjectStore,
    where: HeadLocation,
    number: int,
    *,
    mac: Mac | None = None,
    select: Selector | None = None,
    max_concurrent_reads: int = DEFAULT_CONCURRENCY,
) -> ValidationResult | None:
    """Check checkpoint ``number`` whole; None if it does not exist for readers (a tombstone)."""
    key = manifest_key(number)
    data = where.data if number == where.number else find_record(store, key)
    if data is None:
        return ValidationResult(number, (Finding(key, "is missing", number),))
    try:
        if not is_visible(where.control, number, sha256_hex(data)):
            return None
        manifest = load_manifest_bytes(data, number, mac=mac).manifest
    except UnknownVersion:
        raise  # written by a newer package, not damaged: to go back behind it would lose what it holds
    except FormatError as error:
        return ValidationResult(number, (finding_of(error, key, number),))
    if manifest.kind is ManifestKind.TOMBSTONE:
        return None
    manifest = manifest if select is None else select(manifest)
    findings = verify_checkpoint(store, manifest, max_concurrent_reads=max_concurrent_reads)
    return ValidationResult(number, tuple(findings), manifest)


def _report(
    store: ObjectStore,
    manifest: CheckpointManifest,
    skipped: tuple[ValidationResult, ...],
    expected: Expected | None,
    elapsed_seconds: float,
    *,
    mac: Mac | None,
) -> RecoveryReport:
    statuses = usable_statuses(store, manifest, mac=mac)
    report = RecoveryReport(
        manifest=manifest.with_statuses(statuses),
        skipped=skipped,
        warnings=tuple(changes_since(manifest, expected or Expected())),
        pending_sinks=_with(statuses, SinkCommitStatus.PENDING),
        failed_sinks=_with(statuses, SinkCommitStatus.FAILED),
        elapsed_seconds=elapsed_seconds,
    )
    if skipped or report.warnings or report.sinks_to_drive:
        _LOG.warning("%s: %s", store.url, report.report)
    return report


def _with(statuses: dict[str, SinkCommitStatus], wanted: SinkCommitStatus) -> tuple[str, ...]:
    return tuple(sorted(sink for sink, status in statuses.items() if status is wanted))


def changes_since(manifest: CheckpointManifest, expected: Expected) -> Iterator[str]:
    """What is different now from when the checkpoint was made. Pure."""
    for what, now, then in (
        ("source", expected.source_names, manifest.source_names),
        ("sink", expected.sink_names, manifest.sink_names),
    ):
        if now is None:
            continue
        for name in sorted(set(now) - set(then)):
            yield f"{what} {name!r} was added since the checkpoint"
        for name in sorted(set(then) - set(now)):
            yield f"{what} {name!r} was removed since the checkpoint"
    now_hash, then_hash = expected.pipeline_hash, manifest.pipeline_hash
    if now_hash is not None and then_hash is not None and now_hash != then_hash:
        yield "the pipeline has changed since the checkpoint: its state may not fit"
    if expected.vnode_count is not None and expected.vnode_count != manifest.vnode_count:
        yield (
            f"the checkpoint has {manifest.vnode_count} vnodes, the runtime {expected.vnode_count}: "
            "keys do not map to the same partitions"
        )
    missing = missing_vnodes(manifest, expected.vnodes)
    if missing:
        yield f"the checkpoint does not cover {len(missing)} of the vnodes, from {min(missing)} on"
