"""Savepoints for Spark Structured Streaming. Names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_checkpoint import errors as errors
    from pyspark_checkpoint.format.manifest import CheckpointManifest as CheckpointManifest
    from pyspark_checkpoint.history.checkpoint_store import CheckpointStore as CheckpointStore
    from pyspark_checkpoint.plugin.configure import configure as configure
    from pyspark_checkpoint.restorer.api import restore as restore
    from pyspark_checkpoint.restorer.api import savepoint as savepoint
    from pyspark_checkpoint.restorer.preflight import preflight as preflight
    from pyspark_checkpoint.restorer.rewind import rewind as rewind
    from pyspark_checkpoint.session import CheckpointListener as CheckpointListener
    from pyspark_checkpoint.session import checkpoint as checkpoint
    from pyspark_checkpoint.sink.datasource import CheckpointSinkSource as DefaultSource  # noqa: F401
    from pyspark_checkpoint.spark.foreach_batch import idempotent_options as idempotent_options
    from pyspark_checkpoint.store.open import open_object_store as open_object_store


__version__ = "0.1.0"

_EXPORTS = {
    "CheckpointListener": ("pyspark_checkpoint.session", "CheckpointListener"),
    "CheckpointManifest": ("pyspark_checkpoint.format.manifest", "CheckpointManifest"),
    "CheckpointStore": ("pyspark_checkpoint.history.checkpoint_store", "CheckpointStore"),
    "DefaultSource": ("pyspark_checkpoint.sink.datasource", "CheckpointSinkSource"),
    "checkpoint": ("pyspark_checkpoint.session", "checkpoint"),
    "configure": ("pyspark_checkpoint.plugin.configure", "configure"),
    "errors": ("pyspark_checkpoint.errors", None),
    "idempotent_options": ("pyspark_checkpoint.spark.foreach_batch", "idempotent_options"),
    "open_object_store": ("pyspark_checkpoint.store.open", "open_object_store"),
    "preflight": ("pyspark_checkpoint.restorer.preflight", "preflight"),
    "restore": ("pyspark_checkpoint.restorer.api", "restore"),
    "rewind": ("pyspark_checkpoint.restorer.rewind", "rewind"),
    "savepoint": ("pyspark_checkpoint.restorer.api", "savepoint"),
}
"""Public name -> module, and the name in it (None: the module itself)."""

__all__ = sorted(_EXPORTS)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _EXPORTS[name]
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if name != "DefaultSource":
            raise
        # Spark looks this name up in every package called pyspark_*; any other error than this one,
        # for example with a Spark that is too old, would hide the data sources of all packages.
        raise AttributeError(f"{name} cannot be loaded: {error}") from error
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
