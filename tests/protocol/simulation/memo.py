"""Pure functions remembered while schedules run: the same bytes decode to the same value.

A search decodes the same few manifests thousands of times. Errors are not remembered.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pyspark_checkpoint.format import envelope as sealed
from pyspark_checkpoint.format import keys, records, summary
from pyspark_checkpoint.format import manifest_codec as manifest_json
from pyspark_checkpoint.store import base

_PURE: tuple[tuple[ModuleType, str], ...] = (
    (base, "check_key"),
    (keys, "check_artifact_path"),
    (keys, "parse_attempt_key"),
    (keys, "parse_manifest_key"),
    (keys, "manifest_key"),
    (manifest_json, "decode_manifest"),
    (summary, "decode_summary"),
    (records, "decode_control"),
    (sealed, "sha256_hex"),
)


@contextmanager
def remembered() -> Iterator[None]:
    """Remember the pure functions wherever they were imported by name, until the end of the block."""
    undo: list[tuple[ModuleType, str, Any]] = []
    for home, name in _PURE:
        original = getattr(home, name)
        memo = functools.lru_cache(maxsize=50_000)(original)
        for module in list(sys.modules.values()):
            ours = getattr(module, "__name__", "").startswith(
                ("pyspark_checkpoint", "tests.protocol.simulation")
            )
            if ours and getattr(module, name, None) is original:
                undo.append((module, name, original))
                setattr(module, name, memo)
    try:
        yield
    finally:
        for module, name, original in undo:
            setattr(module, name, original)
