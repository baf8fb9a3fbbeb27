"""Actors that only look: at the newest checkpoint, at one by number, by epoch, at all of them."""

from __future__ import annotations

from pyspark_checkpoint.errors import RefusedError, Unavailable
from pyspark_checkpoint.format.keys import LATEST_KEY
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint, find_number_by_epoch
from pyspark_checkpoint.history.recovery import recover_latest_validated
from pyspark_checkpoint.history.replication import copy_store
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.memory import MemoryStore
from tests.protocol.simulation.process import Actor, Context


def newest_reader(times: int = 1) -> Actor:
    """Asks for the newest checkpoint; a store with a history never looks empty."""

    def program(context: Context) -> None:
        for _ in range(times):
            context.emit("began")
            head = find_head(context.store)
            if head is None:
                context.emit("empty")
            else:
                context.emit("head", head.number, head.manifest.commit_nonce)
                if head.lost is not None:
                    context.emit("bad", "nothing is lost", str(head.lost))

    return Actor("reader", program, ends=(Unavailable,))


def number_reader(number: int) -> Actor:
    """Asks for one checkpoint by its number; it may be gone, but never be something else."""

    def program(context: Context) -> None:
        found = find_checkpoint(context.store, number)
        if found is not None:
            context.emit("read", number, found.manifest.commit_nonce)

    return Actor(f"by number {number}", program, ends=(Unavailable,))


def epoch_reader(epoch: int) -> Actor:
    """Asks for the newest checkpoint of an epoch, as a user of ``--epoch`` does."""

    def program(context: Context) -> None:
        context.emit("began")
        number = find_number_by_epoch(context.store, epoch)
        if number is None:
            return
        found = find_checkpoint(context.store, number)
        if found is not None:
            context.emit("epoch", epoch, number, found.manifest.commit_nonce)

    return Actor(f"by epoch {epoch}", program, ends=(Unavailable,))


def recoverer() -> Actor:
    """Recovers the newest good checkpoint; without damage that is the head, and nothing is passed over."""

    def program(context: Context) -> None:
        context.emit("began")
        report = recover_latest_validated(context.store, context.clock, max_concurrent_reads=1)
        if report.manifest is None:
            context.emit("empty")
            return
        context.emit("head", report.manifest.checkpoint_id, report.manifest.commit_nonce)
        if report.skipped:
            context.emit("bad", "recovery passed over a good checkpoint", report.report)

    return Actor("recover", program, may=frozenset({"load"}), ends=(Unavailable,))


def verifier() -> Actor:
    """Verifies a store in use; without damage there is nothing to find (but a hint may be wrong)."""

    def program(context: Context) -> None:
        for finding in verify_store(context.store, max_concurrent_reads=1):
            if finding.object != LATEST_KEY:
                context.emit("bad", "verify cries wolf", str(finding))

    return Actor("verify", program, may=frozenset({"load", "list"}), ends=(Unavailable,))


def copier() -> Actor:
    """Copies the store to another one, while it is in use; what arrives is history, and whole."""

    def program(context: Context) -> None:
        target = MemoryStore(clock=context.clock)
        copy_store(context.store, target, concurrency=1, clock=context.clock)
        for finding in verify_store(target, max_concurrent_reads=1):
            context.emit("bad", "the copy is damaged", str(finding))
        head = find_head(target)
        for number in range(1, 1 + (head.number if head is not None else 0)):
            found = find_checkpoint(target, number)
            if found is not None:
                context.emit("read", number, found.manifest.commit_nonce)

    return Actor("copy", program, may=frozenset({"load", "list"}), ends=(Unavailable, RefusedError))
