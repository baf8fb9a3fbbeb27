"""Small scenes that are searched exhaustively: each is a story that once broke a draft of the protocol.

The letters are those of the families: a stale hint, b floor, c savepoint, d shared artifacts, e equal
generations, f blind floor, g gallop, h replacement, i collector, l late writes, m clean-up, n and o
savepoints with rollbacks, t tombstones, u runs that forget, x new stores.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark_checkpoint.errors import OutcomeUnknown
from pyspark_checkpoint.format.keys import LATEST_KEY
from pyspark_checkpoint.format.records import encode_latest
from tests.protocol.simulation.beginning import Beginning, beginning
from tests.protocol.simulation.keepers import collector, deleter, pruner, raw, roller, savepoint, unsave
from tests.protocol.simulation.process import Actor, Context
from tests.protocol.simulation.readers import (
    copier,
    epoch_reader,
    newest_reader,
    number_reader,
    recoverer,
    verifier,
)
from tests.protocol.simulation.scene import Scene
from tests.protocol.simulation.truth import Truth
from tests.protocol.simulation.writers import writer


def _late_hint(number: int) -> Actor:
    def act(context: Context) -> None:
        context.store.put(LATEST_KEY, encode_latest(number))

    return raw("late hint", act, ends=(OutcomeUnknown,))


def _makes(actor: Actor) -> Actor:
    """Who finds no store makes its control record, after a look for lost history."""
    return replace(actor, may=frozenset({"swap", "list"}))


TAKEN_OVER = ("A", "A", "B", "B", "B", "B")

SCENES = (
    Scene(
        "a1",
        "a stale hint points at an old savepoint, which looks like the newest",
        beginning(8, floor=6, pins=(("sp", 3),)),
        lambda begin: [_late_hint(3), newest_reader()],
    ),
    Scene(
        "a2",
        "a prune between two looks of a reader",
        beginning(4, latest=2),
        lambda begin: [newest_reader(), pruner(1)],
    ),
    Scene(
        "a3",
        "what a stalled writer leaves below the floor is read as the head",
        beginning(6, floor=5, latest=3, runs=TAKEN_OVER),
        lambda begin: [writer("A", knows=(begin, 2)), newest_reader()],
    ),
    Scene(
        "a4",
        "the same is read by its number",
        beginning(6, floor=5, runs=TAKEN_OVER),
        lambda begin: [writer("A", knows=(begin, 2)), number_reader(3)],
    ),
    Scene(
        "a5",
        "the same is read by its epoch, while the floor rises",
        beginning(4, runs=TAKEN_OVER),
        lambda begin: [writer("A", knows=(begin, 2)), epoch_reader(3), pruner(1)],
    ),
    Scene(
        "b1",
        "a stalled writer creates a number that was pruned",
        beginning(4, runs=TAKEN_OVER),
        lambda begin: [writer("A", knows=(begin, 2)), pruner(1)],
    ),
    Scene(
        "b3",
        "a fenced writer, a savepoint and a pruner around one number",
        beginning(2),
        lambda begin: [
            writer("A", knows=(begin, 2)),
            writer("B", claims=False),
            savepoint("sp", 3),
            pruner(1),
        ],
        faults=0,
        switches=2,
    ),
    Scene(
        "c1",
        "a savepoint while its checkpoint is pruned",
        beginning(3),
        lambda begin: [savepoint("sp", 2), pruner(1)],
        faults=2,
    ),
    Scene(
        "d1",
        "a rollback to a checkpoint that retention drops meanwhile",
        beginning(4),
        lambda begin: [roller("B", 1), pruner(2)],
        switches=2,
    ),
    Scene(
        "d2",
        "two pruners: the slower reads as live what the faster deletes",
        beginning(3, depth=5),
        lambda begin: [pruner(2, name="P"), pruner(1, name="Q")],
        descending=True,
    ),
    Scene(
        "d2b",
        "two pruners and a writer",
        beginning(3, depth=5),
        lambda begin: [pruner(2, name="P"), writer("A", knows=(begin, 3), depth=5), pruner(1, name="Q")],
        faults=0,
        switches=2,
    ),
    Scene(
        "d4",
        "a stalled writer names what its heirs' pruner deletes",
        beginning(2),
        lambda begin: [writer("A", knows=(begin, 2)), writer("B", "ee", claims=False), pruner(1)],
        faults=0,
    ),
    Scene(
        "d8",
        "a rollback is overtaken, and its target pruned, before it has read it",
        beginning(2),
        lambda begin: [roller("R", 1), writer("A", knows=(begin, 2)), pruner(1)],
        faults=0,
        switches=2,
    ),
    Scene(
        "e1",
        "two runs start together",
        beginning(1),
        lambda begin: [writer("B", "ee"), writer("C", "ee")],
        faults=0,
    ),
    Scene(
        "e3",
        "the old run goes on while a new one takes over",
        beginning(1),
        lambda begin: [writer("A", "eee", knows=(begin, 1)), writer("B", "ee")],
    ),
    Scene(
        "e4",
        "a run gives up on an unanswered create, which lands; its heir comes; it looks again",
        beginning(1),
        lambda begin: [writer("A", "ee", knows=(begin, 1), settle_seconds=0), writer("B")],
    ),
    Scene(
        "e5",
        "a new run gives up on an unanswered claim; the old one goes on; the new one claims again",
        beginning(1),
        lambda begin: [writer("A", "ee", knows=(begin, 1)), writer("B", "e", settle_seconds=0)],
    ),
    Scene(
        "f2",
        "two pruners with different floors, and a writer stalled between them",
        beginning(5, runs=TAKEN_OVER),
        lambda begin: [pruner(3, name="P"), writer("A", knows=(begin, 2)), pruner(1, name="Q")],
        faults=0,
        switches=2,
    ),
    Scene(
        "g1",
        "the head by galloping from the floor, without a hint, while the floor rises",
        beginning(4, without_latest=True),
        lambda begin: [newest_reader(), writer("B", "e", claims=False), pruner(1)],
        faults=0,
    ),
    Scene(
        "g2",
        "the same with something below the floor",
        beginning(6, floor=2, runs=TAKEN_OVER, without_latest=True),
        lambda begin: [newest_reader(), writer("A", knows=(begin, 2)), pruner(1)],
        faults=0,
    ),
    Scene(
        "g3",
        "no hint: the first manifest is pruned between reading the floor and reading it",
        beginning(4, without_latest=True),
        lambda begin: [newest_reader(), pruner(1)],
    ),
    Scene(
        "h1",
        "an epoch is replaced after everything before it was pruned",
        beginning(3),
        lambda begin: [writer("B", "r", claims=False), pruner(1)],
    ),
    Scene(
        "h2",
        "'nothing to write' on a head that was replaced meanwhile",
        beginning(1),
        lambda begin: [writer("A", "es", knows=(begin, 1)), writer("C", "r")],
        faults=0,
    ),
    Scene(
        "h3",
        "a replacement by a run that was replaced itself",
        beginning(2),
        lambda begin: [writer("A", "rr", knows=(begin, 2)), writer("B", "r"), pruner(1)],
        faults=0,
        switches=2,
    ),
    Scene(
        "i1",
        "an upload that is older than any grace",
        beginning(2),
        lambda begin: [writer("A", knows=(begin, 2)), collector()],
    ),
    Scene(
        "i3",
        "a rollback, a pruner and a collector",
        beginning(3),
        lambda begin: [roller("B", 1), pruner(1), collector()],
        faults=0,
        switches=2,
    ),
    Scene(
        "l1",
        "a savepoint lands after it was given up",
        beginning(3),
        lambda begin: [savepoint("sp", 2), writer("A", knows=(begin, 3)), pruner(1)],
    ),
    Scene(
        "m1",
        "a create that nobody answered, given up",
        beginning(2),
        lambda begin: [writer("A", knows=(begin, 2), settle_seconds=0)],
        faults=3,
    ),
    Scene(
        "m2",
        "a run fenced by the floor has staged what its heir names",
        beginning(2),
        lambda begin: [writer("A", knows=(begin, 2)), writer("B", "ee", claims=False, depth=5), pruner(1)],
        faults=0,
    ),
    Scene(
        "n1",
        "a savepoint, a rollback and a pruner want the same checkpoint",
        beginning(3),
        lambda begin: [savepoint("sp", 2), roller("B", 2), pruner(1)],
        faults=0,
        switches=2,
    ),
    Scene(
        "o1",
        "a rollback to a savepoint below the floor while its name is removed",
        beginning(4, floor=3, pins=(("sp", 1),)),
        lambda begin: [roller("B", 1), unsave("sp")],
    ),
    Scene(
        "o2",
        "a second name for a savepoint while the first is removed",
        beginning(4, floor=3, pins=(("sp", 1),)),
        lambda begin: [savepoint("sp2", 1), unsave("sp")],
        faults=2,
    ),
    Scene(
        "r1",
        "a writer remembers deltas that its parent no longer names",
        beginning(4, depth=2),
        lambda begin: [writer("A", knows=(begin, 4), recalls=(begin, 2)), pruner(2)],
    ),
    Scene(
        "t1",
        "a checkpoint is deleted while it is pinned",
        beginning(4, depth=2),
        lambda begin: [deleter(2), savepoint("sp", 2)],
        faults=2,
    ),
    Scene(
        "t2",
        "a checkpoint is deleted while it is rolled back to",
        beginning(3, depth=1),
        lambda begin: [deleter(1), roller("B", 1)],
    ),
    Scene(
        "t3",
        "a checkpoint is deleted while the floor rises past it",
        beginning(4, depth=3),
        lambda begin: [deleter(2), pruner(1), number_reader(2)],
        faults=0,
    ),
    Scene(
        "t4",
        "the newest but one is deleted while the next is committed",
        beginning(3, depth=3),
        lambda begin: [deleter(2), writer("A", knows=(begin, 3), depth=5)],
    ),
    Scene(
        "t5",
        "the checkpoint that a reader found as the head gets a successor and is deleted",
        beginning(3),
        lambda begin: [deleter(3), newest_reader(), writer("A", knows=(begin, 3))],
        faults=0,
    ),
    Scene(
        "u1",
        "a run whose process forgets everything was taken over",
        beginning(1),
        lambda begin: [writer("C", "ee", forgets=True), writer("B")],
        faults=0,
    ),
    Scene(
        "v1",
        "a store is verified while it is pruned",
        beginning(4),
        lambda begin: [verifier(), pruner(1)],
        faults=0,
    ),
    Scene(
        "v2",
        "a store is verified while a checkpoint is deleted and another one committed",
        beginning(3, depth=1),
        lambda begin: [verifier(), deleter(2), writer("A", knows=(begin, 3))],
        faults=0,
        switches=2,
    ),
    Scene(
        "v3",
        "recovery while what it verifies is pruned",
        beginning(3),
        lambda begin: [recoverer(), writer("A", knows=(begin, 3), depth=1), pruner(1)],
        faults=0,
        switches=2,
    ),
    Scene(
        "v4",
        "a store is verified while its next checkpoint is made and pinned",
        beginning(2),
        lambda begin: [verifier(), writer("A", knows=(begin, 2)), savepoint("sp", 3)],
        faults=0,
    ),
    Scene(
        "v5",
        "a store is verified while a number is pruned and written again by a stalled writer",
        beginning(4, runs=TAKEN_OVER),
        lambda begin: [verifier(), writer("A", knows=(begin, 2)), pruner(1)],
        faults=0,
        switches=2,
    ),
    Scene(
        "w1",
        "a store is copied while it is pruned",
        beginning(3, depth=2, pins=(("sp", 1),)),
        lambda begin: [copier(), pruner(1)],
        faults=0,
    ),
    Scene(
        "w2",
        "a store is copied while a checkpoint is deleted and a savepoint removed",
        beginning(3, depth=1, floor=2, pins=(("sp", 1),)),
        lambda begin: [copier(), deleter(2), unsave("sp")],
        faults=0,
        switches=2,
    ),
    Scene(
        "w3",
        "the head that a copy ends with gets a successor and is deleted",
        beginning(2),
        lambda begin: [copier(), deleter(2), writer("A", knows=(begin, 2))],
        faults=0,
        switches=2,
    ),
    Scene(
        "x1",
        "two runs make a store",
        Beginning({}, Truth()),
        lambda begin: [_makes(writer("A", "e")), _makes(writer("B", "e"))],
    ),
)
