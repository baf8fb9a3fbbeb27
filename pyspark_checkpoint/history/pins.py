"""Pins in the control record: who may be pinned, and which pins protect nothing any more. Pure.

A savepoint is a pin with the name that its user gave. A rollback pins its target under a name of its
own, which says which number it is going to create: once that number is taken the pin is useless,
whoever took it, so that a crashed rollback leaves nothing that needs a clock to be cleaned up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.keys import MAX_NUMBER, check_name, pad
from pyspark_checkpoint.format.records import Control, Pin

LATEST_NAME = "latest"
_ROLLBACK = re.compile(r"~rollback-([0-9]{10})-.+")


def check_savepoint_name(name: str) -> str:
    """Return ``name`` if it can be a savepoint's, else refuse it."""
    if name.startswith("~"):
        raise RefusedError(f"savepoint name {name!r} begins with ~, which is reserved")
    if name.isdigit() or name == LATEST_NAME:
        raise RefusedError(
            f"savepoint name {name!r} means a checkpoint already, wherever one is asked for",
            hint="choose a name that is no number and not 'latest'",
        )
    return check_name(name, "savepoint")


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
