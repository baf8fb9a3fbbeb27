"""Rows of benchmarks made by hand, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from benchmarks.frame import Cell, Row, Run


def cell(way: str, batch_ms: tuple[int, ...] = (100, 100, 100, 100), **changes: Any) -> Cell:
    """A cell of the aggregation at 4 partitions and 20 ms; four batches with two PUTs each."""
    fields: dict[str, Any] = {
        "way": way,
        "query": "windowed",
        "partitions": 4,
        "provider": "hdfs",
        "delay_ms": 20,
        "batches": 4,
        "batch_ms": batch_ms,
        "phases_ms": {"addBatch": 70.0, "walCommit": 11.0},
        "requests": {"PUT": 8},
        "bytes_out": 4_000_000,
        "bytes_in": 0,
        **changes,
    }
    return Cell(**fields)


def run(part: str, *rows: Row, label: str = "", **settings: str) -> Run:
    """A run of a part."""
    command = f"python -m benchmarks.{part.replace('-', '_')} --label {label}"
    machine = {"processor": "made up, 2 cores"}
    return Run(part, command, f"2026-01-01 0{len(label) % 10}:00", 10.0, machine, settings, rows, label)
