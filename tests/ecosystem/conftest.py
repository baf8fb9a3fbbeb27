"""How long a test with real parts may take: its drivers are given up before that, and stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ecosystem.kit import RUN_SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Soaks have their own."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("soak") is None:
            item.add_marker(pytest.mark.timeout(4 * RUN_SECONDS))
