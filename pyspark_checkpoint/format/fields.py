"""Stored values, checked one by one: type, range and length. Pure.

What a store says may have been written by anybody. A value that is not what its field holds is damage
(``FormatError`` with the field's name) before anything is done with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyspark_checkpoint.errors import FormatError

MAX_INT64 = 2**63 - 1
MAX_NAME_LETTERS = 4096
"""What a name or a place may have at most; offsets and schemas have bounds of their own."""
_MAX_DIGITS = 600
T = TypeVar("T")


def bad_field(name: str, reason: str) -> FormatError:
    """The error for a field that does not hold what it must."""
    return FormatError(f"field {name} {reason}")


def whole(value: Any, name: str, low: int = 0, high: int = MAX_INT64) -> int:
    """A whole number from ``low`` to ``high``."""
    if type(value) is not int:
        raise bad_field(name, "is not a whole number")
    if not low <= value <= high:
        raise bad_field(name, f"is {value}, outside {low} to {high}")
    return value


def signed_number(value: Any, name: str) -> int:
    """A whole number of 64 bits, which may be negative."""
    return whole(value, name, -MAX_INT64 - 1)


def number_in(text: str) -> int | None:
    """The number that a text of digits is; None for every other text, and one that Python may not read."""
    return int(text) if len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else None


def text(value: Any, name: str, most: int | None = None) -> str:
    """A text of at most ``most`` letters."""
    if type(value) is not str:
        raise bad_field(name, "is not a text")
    if most is not None and len(value) > most:
        raise bad_field(name, f"has over {most} letters")
    return value


def short_text(value: Any, name: str) -> str:
    """A name or a place."""
    return text(value, name, MAX_NAME_LETTERS)


def flag(value: Any, name: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise bad_field(name, "is neither true nor false")
    return value


def optional(check: Callable[[Any, str], T], value: Any, name: str) -> T | None:
    """None, or what ``check`` allows."""
    return None if value is None else check(value, name)


def items(value: Any, name: str, most: int | None = None) -> list[Any]:
    """A list of at most ``most`` values, which the caller checks."""
    if type(value) is not list:
        raise bad_field(name, "is not a list")
    if most is not None and len(value) > most:
        raise bad_field(name, f"has over {most} entries")
    return value


def text_list(value: Any, name: str, most: int | None = None) -> list[str]:
    """A list of names."""
    return [short_text(one, name) for one in items(value, name, most)]


def mapping(value: Any, name: str) -> dict[str, Any]:
    """An object, whose values the caller checks."""
    if type(value) is not dict:
        raise bad_field(name, "is not an object")
    return value


def text_map(value: Any, name: str) -> dict[str, str]:
    """An object of texts."""
    return {key: text(one, name) for key, one in mapping(value, name).items()}


def record(value: Any, name: str, fields: tuple[str, ...]) -> Mapping[str, Any]:
    """An object that has exactly these fields."""
    found = mapping(value, name)
    if found.keys() != set(fields):
        wrong = sorted(found.keys() ^ set(fields))[0]
        raise bad_field(name, f"{'lacks' if wrong in fields else 'has an unknown'} field {wrong[:100]!r}")
    return found
