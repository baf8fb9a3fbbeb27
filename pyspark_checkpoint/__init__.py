"""Savepoints for Spark Structured Streaming. Names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_checkpoint import errors as errors
    from pyspark_checkpoint.store.open import open_object_store as open_object_store

_EXPORTS = {
    "errors": ("pyspark_checkpoint.errors", None),
    "open_object_store": ("pyspark_checkpoint.store.open", "open_object_store"),
}
"""Public name -> module, and the name in it (None: the module itself)."""

__all__ = sorted(_EXPORTS)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _EXPORTS[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
