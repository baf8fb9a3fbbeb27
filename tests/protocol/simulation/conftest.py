"""What all searches share: pure functions are remembered, expected warnings are not shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.protocol.simulation.memo import remembered


@pytest.fixture(autouse=True)
def _quick_and_quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        with remembered():
            yield
    finally:
        logging.disable(logging.NOTSET)
