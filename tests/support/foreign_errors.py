"""Exceptions of other people's libraries, made from nothing but their classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType

SECRET = "sig=SECRET-that-nobody-may-see"


def exception_classes(*modules: ModuleType) -> list[type[Exception]]:
    """Every exception that a module defines, warnings aside, by name."""
    found = {
        value
        for module in modules
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Exception) and not issubclass(value, Warning)
        if value.__module__ == module.__name__
    }
    return sorted(found, key=lambda cls: (cls.__module__, cls.__name__))


def make(cls: type[Exception]) -> Exception:
    """An instance whose text holds a secret, whatever arguments its constructor wants."""
    for count in (1, 2, 3, 4, 0):
        try:
            return cls(*([SECRET] * count))
        except Exception:  # noqa: BLE001 - the next number of arguments, then none at all
            continue
    made = cls.__new__(cls, SECRET)
    made.args = (SECRET,)
    # What constructors of HTTP libraries set, as if there had been no answer.
    for name, value in (
        ("message", SECRET),
        ("response", None),
        ("status_code", None),
        ("continuation_token", None),
    ):
        setattr(made, name, value)
    return made


def names(classes: Iterable[type]) -> list[str]:
    """Test ids."""
    return [cls.__name__ for cls in classes]
