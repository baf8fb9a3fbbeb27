"""The control record: made before the first manifest, changed only by compare-and-swap.

A store without it is new. A store that has manifests, or a pointer, but no control record has lost
it, and is never taken for a new one.

It holds the pins. A savepoint is a pin with the name that its user gave. A rollback pins its target under a
name of its own, which says which number it is going to create: once that number is taken the pin is
useless, whoever took it, so that a crashed rollback leaves nothing that needs a clock to be cleaned up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import (
    AlreadyExists,
    Conflict,
    FormatError,
    NotFound,
    OutcomeUnknown,
    RefusedError,
    Unavailable,
)
from pyspark_checkpoint.format.keys import (
    CHECKPOINTS_PREFIX,
    CONTROL_KEY,
    LATEST_KEY,
    MANIFESTS_PREFIX,
    MAX_NUMBER,
    pad,
)
from pyspark_checkpoint.format.records import Control, Pin, decode_control, encode_control
from pyspark_checkpoint.history.manifest_reader import exists, read_stored
from pyspark_checkpoint.store.base import ObjectStore, Version
from pyspark_checkpoint.store.parallel import run_bounded

MAX_SWAPS = 100
_FIRST_DELAY_SECONDS = 0.005
_MAX_DELAY_SECONDS = 1.0
_BUG_HINT = "nothing was changed; this is a bug of pyspark-checkpoint: please report it"
_BUSY_HINT = "many writers use this store at once; repeat it when fewer do"

ControlChange = Callable[[Control], Control | None]
"""Gives the next state, or None when what it wants already holds. May read; must not write.

It is asked again after a lost race or a lost answer, so it must not want the same thing twice: a
change that has taken effect must be answered with None.
"""


@dataclass(frozen=True, slots=True)
class ControlState:
    """The control record and the version to swap it from."""

    control: Control
    version: Version
    data: bytes
    made: bool = False
    """Whether this call has made it: then nothing else was ever in the store."""


def find_control(store: ObjectStore, *, store_id: str | None = None) -> ControlState | None:
    """The control record, None if it is absent. One of another store is an error."""
    try:
        stored = read_stored(store, CONTROL_KEY)
    except NotFound:
        return None
    control = decode_control(stored.data)
    if store_id is not None and control.store_id != store_id:
        raise FormatError(
            f"_control belongs to store {control.store_id}, this run began with store {store_id}",
            hint="the store was replaced; stop all its queries, and restore _control from a copy",
        )
    return ControlState(control, stored.version, stored.data)


def read_control(store: ObjectStore, *, store_id: str | None = None) -> ControlState:
    """The control record of a store that has one; its absence is an error."""
    state = find_control(store, store_id=store_id)
    if state is None:
        raise lost_control(store)
    return state


def has_changed_since(store: ObjectStore, seen: Control) -> bool:
    """Whether anything was pruned, deleted, pinned or swept since ``seen`` was read.

    Then what is missing may have been removed on purpose, and is not yet damage: look again.
    """
    return read_control(store, store_id=seen.store_id).control.counter != seen.counter


def lost_control(store: ObjectStore) -> FormatError:
    """The error for a store whose control record is gone."""
    return FormatError(
        f"{store.url} has checkpoints but no _control",
        hint="restore the object _control from a copy; without it nothing says what is still valid",
    )


def has_history(store: ObjectStore, *, at_once: bool = False) -> bool:
    """Whether anything shows that checkpoints were committed here. Asked only without a control record.

    Artifacts count too: nothing is staged before there is a control record. ``at_once`` asks for the
    pointer, the manifests and the artifacts together, for who waits for the answer.
    """
    questions: tuple[Callable[[], bool], ...] = (
        lambda: exists(store, LATEST_KEY),
        lambda: has_manifests(store),
        lambda: next(iter(store.list(CHECKPOINTS_PREFIX)), None) is not None,
    )
    if at_once:
        return any(run_bounded(lambda question: question(), questions, len(questions)))
    return any(question() for question in questions)


def has_manifests(store: ObjectStore) -> bool:
    """Whether there is any manifest. Asked only in a store that looks new: else nothing is listed."""
    return next(iter(store.list(MANIFESTS_PREFIX)), None) is not None


def find_control_or_new(store: ObjectStore, *, at_once: bool = False) -> ControlState | None:
    """The control record, None for a store in which nothing was ever committed. Fails closed."""
    state = find_control(store)
    if state is not None or not has_history(store, at_once=at_once):
        return state
    return read_control(store)


def ensure_control(store: ObjectStore, clock: Clock, *, is_new: bool = False) -> ControlState:
    """The control record; made, with a fresh store id, if nothing was ever committed here.

    ``is_new``: the caller has just found that nothing was. Another may have begun the store since, which
    creating the record finds out.
    """
    for attempt in range(MAX_SWAPS):
        state = None if is_new and not attempt else find_control_or_new(store)
        if state is not None:
            return state
        made = Control(store_id=clock.uuid7())
        data = encode_control(made)
        try:
            version = store.put(CONTROL_KEY, data, if_absent=True, nonce=clock.nonce())
            return ControlState(made, version, data, made=True)
        except (AlreadyExists, OutcomeUnknown):
            # Whoever made it, there is one now or soon, and all of them are equally new.
            clock.sleep(_FIRST_DELAY_SECONDS)
    raise Unavailable(
        f"gave up creating the control record after {MAX_SWAPS} attempts", key=CONTROL_KEY, hint=_BUSY_HINT
    )


def swap_control(
    store: ObjectStore, change: ControlChange, clock: Clock, *, store_id: str | None = None
) -> ControlState:
    """Apply ``change`` to the control record, however often that takes, and return the result.

    When this returns, the record is, or was at one moment since the call, what ``change`` asked for.
    An answer that was lost is settled by asking ``change`` again about the record as it is now: the
    counter rises with every change, so a swap that is still under way can only land on the state it was
    made for, and repeating it from that very state settles it.
    """
    delay = _FIRST_DELAY_SECONDS
    failure: OutcomeUnknown | Conflict | None = None
    for _ in range(MAX_SWAPS):
        state = read_control(store, store_id=store_id)
        wanted = change(state.control)
        if wanted is None:
            return state
        check_step(state.control, wanted)
        data = encode_control(wanted)
        try:
            version = store.put(CONTROL_KEY, data, if_match=state.version, nonce=clock.nonce())
        except (Conflict, OutcomeUnknown) as error:
            failure = error
            clock.sleep(delay * (0.5 + clock.jitter() / 2))
            delay = min(delay * 2, _MAX_DELAY_SECONDS)
            continue
        return ControlState(wanted, version, data)
    if isinstance(failure, OutcomeUnknown):
        raise failure
    raise Unavailable(
        f"gave up after {MAX_SWAPS} conflicting writes to {CONTROL_KEY}", key=CONTROL_KEY, hint=_BUSY_HINT
    )


def check_step(before: Control, after: Control) -> None:
    """Refuse a change that breaks what always holds: one store, rising counter, floor that never falls."""
    if after.store_id != before.store_id or after.counter != before.counter + 1:
        raise RefusedError(
            "a change of _control must keep the store id and raise the counter by one", hint=_BUG_HINT
        )
    if after.floor < before.floor or after.swept < before.swept or after.swept > after.floor:
        raise RefusedError(
            "the floor and what is swept never fall, and swept never passes the floor", hint=_BUG_HINT
        )


# --- pins: pure -------------------------------------------------------------------------------------


_ROLLBACK = re.compile(r"~rollback-([0-9]{10})-.+")


def rollback_pin_name(number: int, unique: str) -> str:
    """The name under which a rollback that will create ``number`` pins its target."""
    return f"~rollback-{pad(number)}-{unique}"


def parse_rollback_pin_name(name: str) -> int | None:
    """The number that a rollback's pin is for; None for a savepoint's name."""
    match = _ROLLBACK.fullmatch(name)
    return int(match[1]) if match else None


def savepoints(control: Control) -> dict[str, Pin]:
    """The pins that users made, by name."""
    return {name: pin for name, pin in sorted(control.pins.items()) if not name.startswith("~")}


def drop_stale_pins(control: Control, head_number: int) -> Mapping[str, Pin]:
    """The pins without those of rollbacks whose number is taken, and which therefore are over."""
    return {
        name: pin
        for name, pin in control.pins.items()
        if (made_for := parse_rollback_pin_name(name)) is None or made_for > head_number
    }


def may_pin(control: Control, number: int) -> bool:
    """Rule 8: only what is not below the floor, or is pinned already, may be pinned; nothing deleted."""
    if number in control.deleted or number > MAX_NUMBER:
        return False
    return number >= control.floor or number in control.pinned_numbers()
