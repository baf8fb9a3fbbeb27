"""After the storm: a new run takes over, commits, prunes and cleans up, and nothing is left over."""

from __future__ import annotations

from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    manifest_key,
    parse_attempt_key,
    parse_manifest_key,
    parse_seal_key,
)
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.orphans import execute_orphans, scan_orphans
from pyspark_checkpoint.history.retention import RetentionPolicy, prune_history
from pyspark_checkpoint.history.verify import verify_store
from tests.protocol.simulation.clock import DAY_MS
from tests.protocol.simulation.process import Actor, Context
from tests.protocol.simulation.schedule import DELIVER, NOW, Decision, Simulation
from tests.protocol.simulation.truth import Violation, control_of
from tests.protocol.simulation.writers import writer


def aftermath(simulation: Simulation) -> None:
    """Whoever has not finished never will. Nobody may be stuck, and no garbage stays for ever."""
    for process in simulation.processes:
        process.kill()
    while simulation.late:
        simulation.step(Decision(simulation.late[0][0], DELIVER))
    before = simulation.truth.head
    _finish(simulation, writer("afterwards", "e"))
    if simulation.truth.head != before + (2 if before else 1):
        raise Violation(f"STUCK: a new run could not commit on top of {before}")
    _finish(simulation, Actor("tidy", _tidy))
    _check_tidy(simulation)


def _finish(simulation: Simulation, actor: Actor) -> None:
    who = simulation.add(actor)
    while simulation.processes[who].pending is not None:
        simulation.step(Decision(who, NOW))


def _tidy(context: Context) -> None:
    head = find_head(context.store)
    assert head is not None
    prune_history(context.store, head, RetentionPolicy(1), context.clock)
    for finding in verify_store(context.store, max_concurrent_reads=1):
        context.emit("bad", "damage is left", str(finding))
    execute_orphans(context.store, scan_orphans(context.store, context.clock, grace_ms=-DAY_MS))
    for finding in verify_store(context.store, max_concurrent_reads=1):
        context.emit("bad", "tidying up did damage", str(finding))


def _check_tidy(simulation: Simulation) -> None:
    """Of checkpoints and manifests exactly the live set is left."""
    control, truth = control_of(simulation.objects[CONTROL_KEY]), simulation.truth
    alive = set(range(control.floor, truth.head + 1)) | control.pinned_numbers()
    needed = {manifest_key(number) for number in alive}
    for number in alive - control.deleted:
        needed |= truth.manifest(number).paths()
    for name, _ in control.pins.items():
        if name.startswith("~"):
            raise Violation(f"GARBAGE: the pin {name} protects nothing")
    for key in simulation.objects:
        if key not in needed and (parse_attempt_key(key) or parse_manifest_key(key)):
            raise Violation(f"GARBAGE: {key} is left for ever")
        sealed = parse_seal_key(key)
        if sealed is not None and sealed not in alive:
            raise Violation(f"GARBAGE: {key} is left for ever")
