"""Actors that write: runs that claim, commit, replace and repeat, with and without a memory of the head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    FencedError,
    OutcomeUnknown,
    RefusedError,
    StaleAttempt,
    Unavailable,
)
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import CONTROL_KEY, CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.staging import put_artifact
from tests.protocol.simulation.beginning import (
    OPERATOR,
    QUERY,
    Beginning,
    artifact_bytes,
    artifact_ref,
    content,
    deltas_of,
    offsets_of,
)
from tests.protocol.simulation.process import Actor, Context
from tests.protocol.simulation.truth import control_of

ENDS: tuple[type[CheckpointError], ...] = (Unavailable, OutcomeUnknown, RefusedError)
REPLANS = 4


def _check_nothing_lost(context: Context, run: Run) -> None:
    """In no scene is a manifest deleted by hand, whatever hints and pruners do."""
    if run.head is not None and run.head.lost is not None:
        context.emit("bad", "nothing is lost", str(run.head.lost))


def writer(
    run_id: str,
    plan: str = "e",
    *,
    knows: tuple[Beginning, int] | None = None,
    claims: bool = True,
    depth: int = 2,
    settle_seconds: float = 120.0,
    forgets: bool = False,
    recalls: tuple[Beginning, int] | None = None,
    step_ms: int = 1,
) -> Actor:
    """A run that follows ``plan``: ``e`` new epoch, ``r`` its epoch with other rows, ``s`` the same again.

    ``knows`` is a head (beginning and number) that it remembers and does not look up: a stalled writer.
    With ``forgets`` each commit is made by a new process of the same run, which knows nothing. Who
    ``recalls`` an older checkpoint names its deltas too, though its parent may not.
    """

    def program(context: Context) -> None:
        with told_if_fenced(context, run_id):
            run = _start(context, run_id, knows, claims, settle_seconds)
            last = 0 if run.head is None else run.head.manifest.epoch
            made = 0
            recalled = () if recalls is None else deltas_of(recalls[0].truth.manifest(recalls[1]))
            for what in plan:
                last += what == "e"
                made += what != "s"
                if forgets:
                    run = Run(context.store, run_id, clock=context.clock, query=QUERY)
                _commit(context, run, last, f"{run_id}{made}", depth, recalled)

    return Actor(run_id, program, ends=ENDS, step_ms=step_ms)


@contextmanager
def told_if_fenced(context: Context, run_id: str) -> Iterator[None]:
    """Say it when this run is told that it is fenced: nothing of it may become history afterwards."""
    try:
        yield
    except FencedError:
        context.emit("told fenced", run_id)
        raise


def _start(
    context: Context, run_id: str, knows: tuple[Beginning, int] | None, claims: bool, settle_seconds: float
) -> Run:
    run = Run(context.store, run_id, clock=context.clock, query=QUERY, settle_seconds=settle_seconds)
    if knows is not None:
        begin, number = knows
        control = control_of(begin.objects[CONTROL_KEY])
        run.resume(control, begin.truth.history[number - 1], number)
    elif claims:
        _claim(context, run)
    else:
        run.refresh()
    _check_nothing_lost(context, run)
    return run


def _claim(context: Context, run: Run) -> None:
    for _ in range(REPLANS):
        try:
            claimed = run.claim(lambda _: _check_nothing_lost(context, run))
        except (StaleAttempt, OutcomeUnknown):
            continue
        if claimed is not None:
            context.emit("committed", claimed.checkpoint_id, claimed.commit_nonce)
        return


def _commit(
    context: Context, run: Run, epoch: int, who: str, depth: int, recalled: tuple[ArtifactRef, ...]
) -> None:
    """Commit one epoch as a driver does: plan on the head, stage, publish, plan again if told so."""
    for _ in range(REPLANS):
        attempt = run.attempt()
        context.emit("began")
        ref = _stage(context, attempt, epoch, who)
        draft = draft_of(run, attempt.number, epoch, ref, depth, recalled)
        try:
            manifest = run.publish(draft, attempt)
        except StaleAttempt:
            continue
        except OutcomeUnknown:
            run.refresh()
            continue
        what = "committed" if manifest.checkpoint_id == attempt.number else "noop"
        context.emit(what, manifest.checkpoint_id, manifest.commit_nonce)
        return


def draft_of(
    run: Run,
    number: int,
    epoch: int,
    ref: ArtifactRef,
    depth: int,
    recalled: tuple[ArtifactRef, ...] = (),
) -> CheckpointManifest:
    """What a plan makes of the head: its last deltas of earlier epochs, and the new one."""
    before = () if run.head is None else deltas_of(run.head.manifest)
    kept = tuple(old for old in before if old.epoch < epoch)
    inherited = kept[-(depth - 1) :] if depth > 1 else ()
    return CheckpointManifest(
        checkpoint_id=number,
        epoch=epoch,
        operators=content((*recalled, *inherited, ref)),
        source_names=("source",),
        source_offsets=offsets_of(epoch),
    )


def _stage(context: Context, attempt: CheckpointId, epoch: int, who: str) -> ArtifactRef:
    path, data = CheckpointPaths.delta(attempt, OPERATOR, 0), artifact_bytes(epoch, who)
    for _ in range(20):
        try:
            context.store.put(path, data, if_absent=True)
        except AlreadyExists:
            break
        except OutcomeUnknown:
            continue
        break
    return artifact_ref(path, data, epoch)


def keeping_writer(run_id: str, epochs: int = 3, *, keep: int = 1, depth: int = 2) -> Actor:
    """A run that commits through ``CheckpointStore`` and prunes after every commit, from memory."""

    def program(context: Context) -> None:
        history = CheckpointStore(
            context.store, run_id=run_id, query=QUERY, max_retained=keep, clock=context.clock
        )
        with told_if_fenced(context, run_id):
            run = history.writer()
            _claim(context, run)
            first = 1 if run.head is None else run.head.manifest.epoch + 1
            for epoch in range(first, first + epochs):
                _save(context, history, epoch, depth)

    return Actor(run_id, program, ends=ENDS, may=frozenset({"swap", "delete", "load"}))


def _save(context: Context, history: CheckpointStore, epoch: int, depth: int) -> None:
    run = history.writer()
    for _ in range(REPLANS):
        attempt = history.attempt()
        context.emit("began")
        path, data = CheckpointPaths.delta(attempt, OPERATOR, 0), artifact_bytes(epoch, run.run_id)
        put_artifact(context.store, path, data, context.clock)
        ref = artifact_ref(path, data, epoch)
        try:
            saved = history.save(draft_of(run, attempt.number, epoch, ref, depth))
        except StaleAttempt:
            continue
        except OutcomeUnknown:
            run.refresh()
            continue
        what = "committed" if saved.checkpoint_id == attempt.number else "noop"
        context.emit(what, saved.checkpoint_id, saved.commit_nonce)
        return
