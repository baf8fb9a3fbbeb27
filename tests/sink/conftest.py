"""What every test of the sink may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the table is."""
    return str(tmp_path / "table")
