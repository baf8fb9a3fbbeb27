"""The contract on a real S3 server is a main promise; the other clouds come with the longer suites."""

from __future__ import annotations

import pytest

_PROMISED = ("test_store_contract", "test_store_listing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what every store must do, as S3 does it, into ``make test``."""
    for item in items:
        module = item.path.stem
        if item.path.parent.name == "contract" and module in _PROMISED and "s3" in item.name:
            item.add_marker("promise")
