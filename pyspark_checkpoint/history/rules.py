"""What may follow what: the rules of a commit that need no store. Pure, one function a rule."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Any

from pyspark_checkpoint.crypto.keyring import KEY_RING_HINT
from pyspark_checkpoint.errors import Diverged, FencedError, Incompatible, RefusedError, StaleAttempt
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import CheckpointId, check_name, parse_attempt_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind, RequestCount
from pyspark_checkpoint.history.head import Head, lost_problem
from pyspark_checkpoint.spark_files.positions import SourcePositions

MAX_EARLIER_RUNS = 64
MAX_ROLLBACKS = 32


def next_number(head: Head | None) -> int:
    """The only number that can be committed now."""
    return 1 if head is None else head.number + 1


def next_generation(head: Head | None, run_id: str) -> int:
    """Rule 6: the parent's generation, plus one if the parent's run is another."""
    if head is None:
        return 1
    return head.manifest.generation + (head.manifest.run_id != run_id)


def next_earlier_runs(head: Head | None, run_id: str) -> tuple[str, ...]:
    """Rule 6: the runs that this one, or those before it, have taken over, newest first."""
    if head is None:
        return ()
    before = head.manifest.earlier_runs
    return before if head.manifest.run_id == run_id else (head.manifest.run_id, *before)[:MAX_EARLIER_RUNS]


def next_rollbacks(
    draft: CheckpointManifest, number: int, head: Head | None, kind: ManifestKind
) -> tuple[tuple[int, int], ...]:
    """The rollbacks that a manifest remembers: those of its parent, and itself if it is one."""
    before = () if head is None else head.manifest.rollbacks
    if kind is not ManifestKind.ROLLBACK or draft.batch_id is None:
        return before
    return (*before, (number, draft.batch_id))[-MAX_ROLLBACKS:]


def was_taken_over(head: Head, run_id: str) -> bool:
    """Rule 6: whether ``run_id`` committed here before another run did, so that it is fenced for good."""
    return head.manifest.run_id != run_id and run_id in head.manifest.earlier_runs


def forgets_runs_since(head: Head, generation: int) -> bool:
    """Rule 6: whether ``head`` no longer names every run since ``generation``, and so proves nothing."""
    return head.manifest.generation - generation > MAX_EARLIER_RUNS


def lost_number(number: int, taker: FencedError) -> StaleAttempt:
    """The error of a run that has never published, and so was not taken over, when it loses a number."""
    who = "another run" if taker.run_id is None else f"run {taker.run_id}"
    return StaleAttempt(
        f"{who} has committed checkpoint {number} meanwhile",
        hint="plan again on top of it, and that run is fenced; a query does so when it is started again",
    )


def next_timestamp_ms(head: Head | None, now_ms: int) -> int:
    """The time, but never before the parent's: a clock that runs backwards loses nothing."""
    return now_ms if head is None else max(now_ms, head.manifest.timestamp_ms)


def check_names(draft: CheckpointManifest, number: int, head: Head | None, held: Set[str]) -> None:
    """Rule 1: name only what was staged for this number, what the parent names, or what is pinned.

    ``held`` are the objects of a checkpoint that this writer has pinned. Everything else could be
    deleted by a pruner or a collector while the manifest is on its way.
    """
    parents = head.manifest.paths() if head is not None else frozenset[str]()
    for path in draft.paths() - parents - held:
        parsed = parse_attempt_key(path)
        if parsed is None or parsed[0].number != number:
            raise RefusedError(
                f"checkpoint {number} may not name {path!r}",
                hint="it was staged for another checkpoint, and nothing keeps it from being deleted",
            )


def check_epoch(draft: CheckpointManifest) -> None:
    """Refuse what is no epoch before it is compared with one."""
    if type(draft.epoch) is not int or draft.epoch < 0:
        raise RefusedError(
            f"{draft.epoch!r} is not an epoch", hint="Spark's batch id: a whole number from 0"
        )


def check_content(manifest: CheckpointManifest) -> None:
    """Refuse what recovery would pass over: nothing is committed that is damaged from the first day."""
    issues = manifest.validate(manifest.vnode_count)
    if issues:
        listed = "; ".join(f"{issue.field} {issue.message}" for issue in issues)
        raise RefusedError(
            f"checkpoint {manifest.checkpoint_id} does not fit together: {listed}",
            hint="nothing was committed; make the manifest of what was staged, and of nothing else",
        )


def check_user_names(draft: CheckpointManifest) -> None:
    """Refuse names of operators, sinks and shares that could not be part of a key on every store."""
    for operator in draft.operators:
        check_name(operator, "operator")
    for sink in draft.sink_names:
        check_name(sink, "sink")
    if draft.share is not None:
        check_name(draft.share, "share")


def check_query(draft: CheckpointManifest, head: Head | None) -> None:
    """Rule 7: one store is one query's history."""
    if head is None or not head.manifest.query.id or not draft.query.id:
        return
    if draft.query.id != head.manifest.query.id:
        raise Diverged(
            f"this store holds the history of query {head.manifest.query.id}, not of {draft.query.id}",
            hint="give the query a store of its own, or run ckpt restore and start from there",
        )


def check_nothing_lost(head: Head | None) -> None:
    """Rule 9: the next checkpoint would take the place of one that was committed and is gone."""
    if head is not None and head.lost is not None:
        raise RefusedError(
            f"checkpoint {head.lost} {lost_problem(head.lost, head.number)}; "
            f"the newest that is left is {head.number}",
            hint="bring its manifest back from a copy of the store; or accept the loss, and go on from "
            f"what is left, by ckpt rollback URL {head.number}",
        )


def check_encryption(head: Head | None, key_id: str | None) -> None:
    """Plain stores stay plain and encrypted ones encrypted: no reader has to trust half of a history."""
    if head is None or (head.manifest.encryption_key_id is None) == (key_id is None):
        return
    if key_id is None:
        raise Incompatible(
            f"the store is encrypted (key {head.manifest.encryption_key_id}), and this writer has no key",
            hint=KEY_RING_HINT,
        )
    raise Incompatible(
        "the store is plain, and stays plain", hint="write without a key ring, or begin a new store"
    )


def choose_kind(draft: CheckpointManifest, head: Head | None) -> ManifestKind:
    """Rule 7: a later epoch is new, the head's with the same offsets is replaced, others are refused.

    The start of a query has no epoch of its own: its first batch follows it, and not the other way.
    """
    follows_start = head is not None and head.manifest.is_start and not draft.is_start
    if head is None or draft.epoch > head.manifest.epoch or follows_start:
        return ManifestKind.EPOCH
    if draft.epoch < head.manifest.epoch:
        raise Diverged(
            f"epoch {draft.epoch} is before the store's epoch {head.manifest.epoch}: "
            "this checkpoint location is behind the store",
            hint="run ckpt restore",
        )
    if SourcePositions.of_manifest(draft) != SourcePositions.of_manifest(head.manifest):
        raise Diverged(
            f"epoch {draft.epoch} is in the store with other source offsets",
            hint="the checkpoint location is not the one that wrote the store; run ckpt restore",
        )
    return ManifestKind.REPLACEMENT


def says_the_same(draft: CheckpointManifest, head: Head, run_id: str) -> bool:
    """Rule 7: whether the head, being of this very run, already is what is to be committed.

    Compares digests, not places: a batch that ran again has staged the same bytes under other names.
    """
    if head.manifest.run_id != run_id or draft.epoch != head.manifest.epoch:
        return False
    return content_of(draft) == content_of(head.manifest)


def content_of(manifest: CheckpointManifest) -> dict[str, Any]:
    """What a checkpoint says, without who said it, when, and where the bytes lie."""
    operators = {
        name: (
            entry.kind,
            [(part.partition_id, _digests(part.artifacts)) for part in entry.partitions],
            [ref.sha256 for ref in entry.settled],
        )
        for name, entry in manifest.operators.items()
    }
    return {
        "epoch": (manifest.epoch, manifest.batch_id),
        "operators": operators,
        "files": _digests(manifest.files),
        "source_offsets": SourcePositions.of_manifest(manifest),
        "table_offsets": {name: dict(table.offsets) for name, table in manifest.table_offsets.items()},
        "table_store": manifest.table_store_checkpoint_path,
        "watermarks": (
            manifest.batch_watermark_ms,
            manifest.next_watermark_ms,
            dict(manifest.source_watermarks),
        ),
        "names": (manifest.source_names, manifest.sink_names, dict(manifest.sink_epochs), manifest.sinks),
        "layout": (manifest.pipeline_hash, manifest.vnode_count, manifest.vnodes, manifest.partition_count),
        "table": (manifest.table, manifest.state),
        "share": (manifest.share, manifest.assignment_version, manifest.planned),
        "state_checksum": manifest.state_checksum,
    }


def _digests(refs: Iterable[ArtifactRef]) -> list[tuple[str, int, bool, int, str]]:
    return [(ref.sha256, ref.size_bytes, ref.is_delta, ref.epoch, ref.name) for ref in refs]


def stamp(
    draft: CheckpointManifest,
    attempt: CheckpointId,
    head: Head | None,
    *,
    kind: ManifestKind,
    run_id: str,
    nonce: str,
    now_ms: int,
) -> CheckpointManifest:
    """Give a draft its place in the history; everything else of it stays."""
    repeats = kind in (ManifestKind.CLAIM, ManifestKind.ROLLBACK)
    staged = RequestCount() if repeats else draft.requests  # what the parent cost is not paid again
    return replace(
        draft,
        kind=kind,
        checkpoint_id=attempt.number,
        attempt=attempt.uuid,
        parent_id=attempt.number - 1,
        parent_sha256="" if head is None else head.sha256,
        generation=next_generation(head, run_id),
        run_id=run_id,
        earlier_runs=next_earlier_runs(head, run_id),
        rollbacks=next_rollbacks(draft, attempt.number, head, kind),
        commit_nonce=nonce,
        timestamp_ms=next_timestamp_ms(head, now_ms),
        requests=replace(staged, puts=staged.puts + 1),
        deleted_sha256=None,
    )


def fenced_by(number: int, taker: CheckpointManifest | None) -> FencedError:
    """The error of a run that lost ``number``; says who took over, as far as that is known."""
    hint = "stop this run; only a new start of the query takes the store over"
    if taker is None:
        return FencedError(f"checkpoint {number} was taken by another run and pruned since", hint=hint)
    query, instance = taker.query.name, taker.instance_id
    who = f"run {taker.run_id} (generation {taker.generation}"
    who += f", query {query!r}" if query else ""
    who += f", instance {instance!r}" if instance else ""
    return FencedError(
        f"checkpoint {number}: {who}) has taken the store over",
        run_id=taker.run_id,
        generation=taker.generation,
        query_name=query,
        instance_id=instance,
        hint=hint,
    )
