"""Every interleaving of a small scenario, against the real code.

An actor is a deterministic function of the answers it got, so its state is the list of them: a node
of a tree that is grown by running the real code, once per node. A state of the search is the store's
content, one node per actor, the writes still under way, and the truth. States are visited once,
breadth first, so that the first violation has a shortest schedule.

Calls that commute with everything that others can still do are not interleaved: an actor whose next
call is one of these goes alone (see ``_goes_alone``). Nothing is lost: the states in between differ
for nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    parse_attempt_key,
    parse_manifest_key,
    parse_seal_key,
)
from tests.protocol.simulation.port import WRITES, Answer, Op
from tests.protocol.simulation.process import Actor, Event, Process
from tests.protocol.simulation.shelf import apply_op
from tests.protocol.simulation.truth import Truth, Violation

DONE = -1
NOBODY = -1
UNLIMITED = 1_000_000
UNKNOWN = Answer(error="OutcomeUnknown")


@dataclass(slots=True)
class Node:
    """Where an actor is after certain answers: what it was told on the way here, and what it asks next."""

    number: int
    answers: tuple[Answer, ...]
    op: Op | None
    events: tuple[Event, ...]
    process: Process | None = None
    children: dict[Answer, Node] = field(default_factory=dict)


class Tree:
    """All that one actor can do, grown on demand."""

    def __init__(self, actor: Actor, owner: int, *, descending: bool = False) -> None:
        self.actor = actor
        self._owner = owner
        self._descending = descending
        self.grown = 0
        self.root = self._grow((), self._process())

    def child(self, node: Node, answer: Answer) -> Node:
        """The node after ``answer``; runs the real code if nobody was there before."""
        found = node.children.get(answer)
        if found is None:
            process = node.process
            if process is None:
                process = self._process()
                for past in node.answers:
                    process.take_events()
                    process.resume(past)
                process.take_events()
            node.process = None
            process.resume(answer)
            found = node.children[answer] = self._grow((*node.answers, answer), process)
        return found

    def _process(self) -> Process:
        return Process(self.actor, self._owner, descending=self._descending)

    def _grow(self, answers: tuple[Answer, ...], process: Process) -> Node:
        self.grown += 1
        op = process.pending
        if op is not None:
            _check_promise(self.actor, op)
        live = process if op is not None else None
        return Node(self.grown, answers, op, tuple(process.take_events()), live)


class State(NamedTuple):
    """One moment of a scenario."""

    objects: Mapping[str, bytes]
    nodes: tuple[Node, ...]
    late: tuple[Op, ...]
    faults: int
    truth: Truth
    last: int = NOBODY
    switches: int = UNLIMITED
    """How often an actor that could go on may still be interrupted."""

    def key(self) -> int:
        """What makes two moments the same, as 64 bits; two of a million states hardly ever collide."""
        places = tuple(DONE if node.op is None else node.number for node in self.nodes)
        live = tuple(
            mark if node.op is not None else 0
            for node, mark in zip(self.nodes, self.truth.marks, strict=True)
        )
        rest = (self.truth.history, self.truth.acknowledged, self.truth.withdrawn, self.truth.fenced, live)
        turn = (self.last, self.switches) if self.switches < UNLIMITED else None
        return hash((frozenset(self.objects.items()), places, self.late, self.faults, rest, turn))

    def after_turn(self, actor: int) -> State | None:
        """The state in which ``actor`` may go next, None if that is one interruption too many."""
        if self.switches == UNLIMITED or actor == self.last:
            return self
        interrupts = self.last != NOBODY and self.nodes[self.last].op is not None
        if interrupts and not self.switches:
            return None
        return self._replace(last=actor, switches=self.switches - interrupts)


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found: a violation with a shortest schedule, or none; all of it, or up to a bound."""

    violation: str | None
    schedule: tuple[str, ...]
    states: int
    complete: bool

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.schedule)
        return f"{self.violation or 'nothing'}; {self.states} states, complete={self.complete}{lines}"


def explore(
    objects: Mapping[str, bytes],
    truth: Truth,
    actors: Sequence[Actor],
    *,
    faults: int = 0,
    max_states: int = 200_000,
    switches: int = UNLIMITED,
    descending: bool = False,
) -> Result:
    """Search every interleaving of ``actors``, with up to ``faults`` lost, late or unapplied writes.

    ``switches`` leaves out interleavings in which actors are interrupted more often than that.
    """
    trees = [Tree(actor, owner, descending=descending) for owner, actor in enumerate(actors, 1)]
    search = _Search(trees)
    try:
        return search.run(objects, truth, faults, max_states, switches)
    finally:
        search.close()


class Label(NamedTuple):
    """What happened in a step; made into a line only when somebody reads it."""

    who: str
    op: Op
    how: str = ""
    answer: Answer | None = None
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        answer = self.answer.label() if self.answer is not None else ""
        told = "".join(f"  !{event.label()}" for event in self.events)
        return f"{self.who}: {self.op.label()}{self.how} -> {answer}{told}"


class _Step(NamedTuple):
    state: State
    label: Label
    violation: str | None


class _Search:
    def __init__(self, trees: list[Tree]) -> None:
        self._trees = trees
        self._parents: dict[int, tuple[int, Label] | None] = {}

    def close(self) -> None:
        """End every process that still waits."""
        for tree in self._trees:
            pending = [tree.root]
            while pending:
                node = pending.pop()
                if node.process is not None:
                    node.process.kill()
                pending.extend(node.children.values())

    def run(
        self, objects: Mapping[str, bytes], truth: Truth, faults: int, max_states: int, switches: int
    ) -> Result:
        nodes = tuple(tree.root for tree in self._trees)
        truth = Truth(truth.history, truth.acknowledged, marks=(0,) * len(nodes))
        truth.check(objects)
        for actor, node in enumerate(nodes):
            for event in node.events:
                truth = truth.after_event(actor, event)
        first = State(objects, nodes, (), faults, truth, NOBODY, switches)
        self._parents[first.key()] = None
        queue = deque([(first, first.key())])
        while queue:
            state, key = queue.popleft()
            for step in self._steps(state):
                if step.violation is not None:
                    path = (*self._path(key), str(step.label))
                    return Result(step.violation, path, len(self._parents), False)
                successor = step.state.key()
                if successor not in self._parents:
                    self._parents[successor] = (key, step.label)
                    queue.append((step.state, successor))
            if len(self._parents) > max_states:
                return Result(None, (), len(self._parents), False)
        return Result(None, (), len(self._parents), True)

    def _path(self, key: int) -> tuple[str, ...]:
        labels = []
        while (parent := self._parents[key]) is not None:
            key, label = parent
            labels.append(str(label))
        return tuple(reversed(labels))

    def _steps(self, state: State) -> Iterator[_Step]:
        for actor, node in enumerate(state.nodes):
            if node.op is not None and self._goes_alone(state, actor, node.op):
                alone = list(self._actor_steps(state, actor, node.op))
                if not _begins(alone):
                    yield from alone
                    return
        for index, op in enumerate(state.late):
            rest = state.late[:index] + state.late[index + 1 :]
            yield self._effect(state._replace(late=rest), op, None, Label("late", op))
        for actor, node in enumerate(state.nodes):
            turn = state.after_turn(actor) if node.op is not None else None
            if node.op is not None and turn is not None:
                yield from self._actor_steps(turn, actor, node.op)

    def _actor_steps(self, state: State, actor: int, op: Op) -> Iterator[_Step]:
        label = Label(self._trees[actor].actor.name, op)
        yield self._effect(state, op, actor, label)
        if op.verb not in WRITES or not state.faults:
            return
        faulty = state._replace(faults=state.faults - 1)
        yield self._effect(faulty, op, actor, label._replace(how=" [answer lost]"), UNKNOWN)
        yield self._answer(faulty, actor, UNKNOWN, label._replace(how=" [never applied]"))
        delayed = faulty._replace(late=_later(state.late, op))
        yield self._answer(delayed, actor, UNKNOWN, label._replace(how=" [under way]"))

    def _effect(
        self, state: State, op: Op, actor: int | None, label: Label, answer: Answer | None = None
    ) -> _Step:
        objects, real = apply_op(state.objects, op)
        label = label._replace(answer=real)
        if objects is not state.objects:
            before, after = state.objects.get(op.key), objects.get(op.key)
            try:
                truth = state.truth.after_write(op.key, before, after, objects)
            except Violation as violation:
                return _Step(state, label, str(violation))
            state = state._replace(objects=objects, truth=truth)
        if actor is None:
            return _Step(state, label, None)
        return self._answer(state, actor, answer or real, label)

    def _answer(self, state: State, actor: int, answer: Answer, label: Label) -> _Step:
        node = self._trees[actor].child(state.nodes[actor], answer)
        label = label._replace(answer=answer, events=node.events)
        truth = state.truth
        for event in node.events:
            try:
                truth = truth.after_event(actor, event)
            except Violation as violation:
                return _Step(state, label, str(violation))
        nodes = (*state.nodes[:actor], node, *state.nodes[actor + 1 :])
        return _Step(state._replace(nodes=nodes, truth=truth), label, None)

    def _goes_alone(self, state: State, actor: int, op: Op) -> bool:
        """Whether ``op`` commutes with all that the others can still do, in the eyes of the invariants too.

        Artifacts are written under names that nobody else writes, and a hole that a deletion makes is
        seen whichever of the two comes first, the deletion or the manifest. No scene has side records,
        so nobody creates one; reading or deleting an absent one is nothing.
        """
        others = [
            self._trees[i].actor.may
            for i, node in enumerate(state.nodes)
            if i != actor and node.op is not None
        ]
        if op.verb in ("put", "delete") and parse_attempt_key(op.key) is not None:
            fresh = op.verb == "delete" or op.if_absent
            return fresh and not _any(others, "list") and not _any(others, "load")
        if op.verb == "delete":
            return op.key not in state.objects and parse_manifest_key(op.key) is None
        if op.verb not in ("read", "get", "head"):
            return False
        if parse_seal_key(op.key) is not None:
            return op.key not in state.objects
        if op.key == CONTROL_KEY:
            swaps = any(late.key == CONTROL_KEY for late in state.late)
            return not _any(others, "swap") and not swaps
        if op.key in state.objects and (parse_manifest_key(op.key) or parse_attempt_key(op.key)):
            return not _any(others, "delete") and not any(late.key == op.key for late in state.late)
        return False


def _begins(steps: list[_Step]) -> bool:
    """Whether an actor begins a new question: then it matters what the head is at that moment."""
    return any(event.what == "began" for step in steps for event in step.label.events)


def _any(others: list[frozenset[str]], power: str) -> bool:
    return any(power in may for may in others)


def _later(late: tuple[Op, ...], op: Op) -> tuple[Op, ...]:
    return tuple(sorted((*late, op), key=repr))


def _check_promise(actor: Actor, op: Op) -> None:
    power = {"delete": "delete", "list": "list", "put": "put", "copy": "put"}.get(op.verb)
    if op.key == CONTROL_KEY and power == "put":
        power = "swap"
    elif power == "put" and parse_manifest_key(op.key) and not op.if_absent:
        power = "delete"
    elif power is None and parse_attempt_key(op.key):
        power = "load"
    if power not in (None, "put") and power not in actor.may:
        raise AssertionError(f"actor {actor.name} does {op.label()}, which its `may` lacks")
