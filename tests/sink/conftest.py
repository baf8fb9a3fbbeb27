"""What every test of the sink may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sink_kit import Query


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the table is."""
    return str(tmp_path / "table")


@pytest.fixture(params=["python", "inline"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with tasks that run Python, and once with tasks that send their rows to the driver."""
    monkeypatch.setattr(Query, "inline_by_default", request.param == "inline")
