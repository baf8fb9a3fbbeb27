"""Rows of benchmarks made by hand, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.frame import Run, Side


def batches(
    way: str,
    batch_ms: tuple[int, ...] = (100, 100, 100, 100),
    *,
    requests: Mapping[str, float] | None = None,
    where: str = "windowed, 4, hdfs, 20 ms",
    counts: Mapping[str, float] | None = None,
    **details: float,
) -> Side:
    """A way in a situation, with two PUTs and a megabyte a batch."""
    asked = {"PUT": 2.0} if requests is None else dict(requests)
    found: dict[str, Any] = {"bytes out": 1e6, "phase addBatch": 70.0, **asked}
    found |= {name.replace("_", " "): value for name, value in details.items()}
    return Side(
        where, way, batch_ms, counts={"requests": sum(asked.values()), **(counts or {})}, details=found
    )


def run(part: str, *rows: Side, label: str = "", **settings: str) -> Run:
    """A run of a part."""
    command = f"python -m benchmarks {part} --label {label}"
    machine = {"processor": "made up, 2 cores"}
    return Run(part, command, f"2026-01-01 0{len(label) % 10}:00", 10.0, machine, settings, rows, label)
