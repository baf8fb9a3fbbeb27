"""One seeded schedule of many actors over one ``MemoryStore``, with faults, and its replay.

A schedule is a list of decisions: who is answered next and what happens to his call. Decisions that
no longer fit when a list is shortened are passed over, so that any sublist is a schedule too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_checkpoint.store.memory import MemoryStore
from tests.protocol.simulation.clock import SimulatedClock
from tests.protocol.simulation.port import WRITES, Answer, Op, perform
from tests.protocol.simulation.process import Actor, Process
from tests.protocol.simulation.truth import Truth, Violation

NOW, LOST, NEVER, LATE, REFUSED, CRASH, CRASH_AFTER, DELIVER = (
    "now",
    "answer lost",
    "never applied",
    "under way",
    "unavailable",
    "crash",
    "crash after",
    "late",
)
_UNKNOWN = Answer(error="OutcomeUnknown")
_UNAVAILABLE = Answer(error="Unavailable")
_WRITE_FAULTS = (LOST, LOST, NEVER, LATE, LATE, REFUSED, CRASH, CRASH_AFTER)
_READ_FAULTS = (REFUSED, CRASH)


@dataclass(frozen=True, slots=True)
class Decision:
    """Actor ``who`` (or the delayed write ``who``, for ``late``) goes next, and ``how``."""

    who: int
    how: str


@dataclass(frozen=True, slots=True)
class World:
    """Where a schedule starts: what is stored, what is true, and who acts."""

    objects: Mapping[str, bytes]
    truth: Truth
    actors: tuple[Actor, ...]
    faults: int = 0
    page: int | None = None
    descending: bool = False
    steps: int = 1500


@dataclass(slots=True)
class Outcome:
    """What came of a schedule."""

    decisions: list[Decision] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    violation: str | None = None
    truth: Truth = field(default_factory=Truth)


Chooser = Callable[["Simulation"], Decision | None]


class Simulation:
    """The running world. ``step`` obeys one decision; ``choose`` loops over them."""

    def __init__(self, world: World, *, trace: bool = False) -> None:
        self.world = world
        self.store = MemoryStore(clock=SimulatedClock(0, step_ms=0))
        for key, data in world.objects.items():
            self.store.put(key, data)
        self.objects = dict(world.objects)
        self.truth = Truth(
            world.truth.history, world.truth.acknowledged, marks=(0,) * (len(world.actors) + 1)
        )
        self.late: list[tuple[int, Op]] = []
        self.late_count = 0
        self.faults = world.faults
        self.lines: list[str] = []
        self._trace = trace
        self.processes: list[Process] = []
        for owner, actor in enumerate(world.actors, 1):
            self.processes.append(Process(actor, owner, page=world.page, descending=world.descending))
            self._believe(owner - 1)

    def add(self, actor: Actor) -> int:
        """Let another actor join; the last mark is his."""
        self.processes.append(Process(actor, 10_000 + len(self.processes)))
        self._believe(len(self.processes) - 1)
        return len(self.processes) - 1

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            process.kill()

    def ready(self) -> list[int]:
        """The actors that wait for an answer."""
        return [i for i, process in enumerate(self.processes) if process.pending is not None]

    def step(self, decision: Decision) -> bool:
        """Obey a decision; False if it does not fit the present moment."""
        if decision.how == DELIVER:
            return self._deliver(decision.who)
        if decision.who >= len(self.processes):
            return False
        process = self.processes[decision.who]
        op = process.pending
        if op is None or (decision.how in (LOST, NEVER, LATE, CRASH_AFTER) and op.verb not in WRITES):
            return False
        self._answer(decision, process, op)
        return True

    def _answer(self, decision: Decision, process: Process, op: Op) -> None:
        how = decision.how
        if self._trace:
            self.lines.append(f"{process.actor.name}: {op.label()} [{how}]")
        answer = _UNKNOWN
        if how in (NOW, LOST, CRASH_AFTER):
            answer = self._perform(op)
        elif how == LATE:
            self.late_count += 1
            self.late.append((self.late_count, op))
        if how in (CRASH, CRASH_AFTER):
            process.kill()
            return
        if how == LOST:
            answer = _UNKNOWN
        elif how == REFUSED:
            answer = _UNAVAILABLE
        if self._trace:
            self.lines[-1] += f" -> {answer.label()}"
        process.resume(answer)
        self._believe(decision.who)

    def _deliver(self, number: int) -> bool:
        for index, (late_number, op) in enumerate(self.late):
            if late_number == number:
                del self.late[index]
                answer = self._perform(op)
                if self._trace:
                    self.lines.append(f"late: {op.label()} -> {answer.label()}")
                return True
        return False

    def _perform(self, op: Op) -> Answer:
        answer = perform(self.store, op)
        if op.verb not in WRITES or answer.error is not None:
            return answer
        before = self.objects.get(op.key)
        if op.verb == "delete":
            after = None
            self.objects.pop(op.key, None)
        else:
            after = op.data if op.verb == "put" else self.store.get(op.key)
            self.objects[op.key] = after
        if before != after:
            self.truth = self.truth.after_write(op.key, before, after, self.objects)
        return answer

    def _believe(self, actor: int) -> None:
        for event in self.processes[actor].take_events():
            if self._trace:
                self.lines.append(f"    {self.processes[actor].actor.name}: {event.label()}")
            self.truth = self.truth.after_event(actor, event)


class RandomChooser:
    """Draws decisions: uneven weights that change now and then, so that some actors stall for long."""

    _WEIGHTS = (0.0, 0.02, 0.2, 1.0, 1.0, 3.0)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._weights: list[float] = []

    def __call__(self, simulation: Simulation) -> Decision | None:
        rnd = self._random
        ready = simulation.ready()
        if not ready:
            return None
        if len(self._weights) < len(simulation.processes) or rnd.random() < 0.05:
            self._weights = [rnd.choice(self._WEIGHTS) for _ in simulation.processes]
        if simulation.late and rnd.random() < 0.05:
            return Decision(rnd.choice(simulation.late)[0], DELIVER)
        weights = [self._weights[i] for i in ready]
        if not any(weights):
            self._weights = [1.0] * len(simulation.processes)
            weights = [1.0] * len(ready)
        who = rnd.choices(ready, weights)[0]
        return Decision(who, self._how(simulation, who))

    def _how(self, simulation: Simulation, who: int) -> str:
        op = simulation.processes[who].pending
        assert op is not None
        writes = op.verb in WRITES
        if not simulation.faults or self._random.random() > (0.15 if writes else 0.01):
            return NOW
        simulation.faults -= 1
        return self._random.choice(_WRITE_FAULTS if writes else _READ_FAULTS)


def run(
    world: World,
    chooser: Chooser,
    *,
    trace: bool = False,
    afterwards: Callable[[Simulation], None] | None = None,
) -> Outcome:
    """Let a chooser drive a world to its end, then ``afterwards``; stop at the first violation."""
    outcome = Outcome()
    simulation: Simulation | None = None
    try:
        simulation = Simulation(world, trace=trace)
        for _ in range(world.steps):
            decision = chooser(simulation)
            if decision is None:
                break
            outcome.decisions.append(decision)
            simulation.step(decision)
        if afterwards is not None:
            afterwards(simulation)
    except Violation as violation:
        outcome.violation = str(violation)
    finally:
        if simulation is not None:
            outcome.lines, outcome.truth = simulation.lines, simulation.truth
            simulation.close()
    return outcome


def replay(
    world: World,
    decisions: Sequence[Decision],
    *,
    trace: bool = False,
    afterwards: Callable[[Simulation], None] | None = None,
) -> Outcome:
    """Obey a recorded schedule."""
    pending = iter(decisions)
    return run(world, lambda _: next(pending, None), trace=trace, afterwards=afterwards)


def shrink(
    world: World,
    decisions: Sequence[Decision],
    *,
    afterwards: Callable[[Simulation], None] | None = None,
    tries: int = 400,
) -> list[Decision]:
    """Leave out whatever is not needed for a violation; at most ``tries`` replays."""
    kept = list(decisions)
    size = max(len(kept) // 2, 1)
    while tries > 0:
        start = 0
        shorter = False
        while start < len(kept) and tries > 0:
            tries -= 1
            candidate = kept[:start] + kept[start + size :]
            if replay(world, candidate, afterwards=afterwards).violation is not None:
                kept, shorter = candidate, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(size // 2, 1)
    return kept
