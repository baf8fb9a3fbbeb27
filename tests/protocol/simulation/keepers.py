"""Actors that keep house: pruners, savepoints and their removal, rollbacks, deletions, the collector."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_checkpoint.errors import CheckpointError, OutcomeUnknown, RefusedError, Unavailable
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.seal import write_seal
from tests.protocol.simulation.clock import DAY_MS
from tests.protocol.simulation.process import Actor, Context
from tests.protocol.simulation.writers import told_if_fenced

ENDS: tuple[type[CheckpointError], ...] = (Unavailable, OutcomeUnknown, RefusedError)
SWAPS = frozenset({"swap"})
DELETES = frozenset({"swap", "delete"})
COLLECTS = frozenset({"swap", "delete", "list"})


def _history(context: Context) -> CheckpointStore:
    return CheckpointStore(context.store, run_id=context.name, clock=context.clock)


def pruner(
    keep: int | None = 1, *, newer_than_ms: int | None = None, name: str = "prune", times: int = 1
) -> Actor:
    """Prunes by count of epochs, by age, or both; several times if asked."""

    def program(context: Context) -> None:
        for _ in range(times):
            _history(context).prune(keep, keep_newer_than_ms=newer_than_ms)

    return Actor(name, program, ends=ENDS, may=DELETES)


def savepoint(name: str, number: int | None = None) -> Actor:
    """Makes a savepoint; from the answer on it must be there."""

    def program(context: Context) -> None:
        made = _history(context).savepoint(name, number)
        context.emit("pinned", name, made.checkpoint_id)

    return Actor(f"save {name}", program, ends=ENDS, may=SWAPS)


def unsave(name: str) -> Actor:
    """Removes a savepoint; from the question on nobody may rely on it."""

    def program(context: Context) -> None:
        context.emit("unpinning", name)
        _history(context).remove_savepoint(name)

    return Actor(f"unsave {name}", program, ends=ENDS, may=DELETES)


def roller(run_id: str, target: int) -> Actor:
    """Rolls back to ``target`` as a run of its own."""

    def program(context: Context) -> None:
        with told_if_fenced(context, run_id):
            made = rollback(context.store, target, run_id=run_id, clock=context.clock)
            context.emit("committed", made.checkpoint_id, made.commit_nonce)

    return Actor(f"rollback {run_id}", program, ends=ENDS, may=DELETES)


def deleter(number: int) -> Actor:
    """Deletes one checkpoint out of the middle of the history."""

    def program(context: Context) -> None:
        _history(context).delete_checkpoint(number)

    return Actor(f"delete {number}", program, ends=ENDS, may=DELETES)


def collector(times: int = 1) -> Actor:
    """Collects orphans without any grace: whoever staged something may have slept for a year."""

    def program(context: Context) -> None:
        for _ in range(times):
            _history(context).cleanup_orphans(grace_ms=-DAY_MS)

    return Actor("collect", program, ends=ENDS, may=COLLECTS)


def sealer(epoch: int) -> Actor:
    """Seals the newest checkpoint with what became known of it afterwards."""

    def program(context: Context) -> None:
        head = _history(context).load_latest()
        if head is not None:
            files = {"commits": str(epoch).encode()}
            write_seal(context.store, head, files, context.clock, check=lambda *_: None)

    return Actor("seal", program, ends=ENDS)


def raw(name: str, act: Callable[[Context], None], ends: tuple[type[CheckpointError], ...] = ()) -> Actor:
    """Does one thing that no code of ours would; for the beginnings of a story."""
    return Actor(name, act, ends=ends)
