"""Keep Python's collector away from what every test shares: the modules, and all the tests themselves.

For the fast suites only: where sockets are, what is not collected soon is a warning at the end.
"""

from __future__ import annotations

import gc

import pytest

_YOUNG_OBJECTS = 100_000


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Stop looking through thousands of test functions again and again; a tenth of the time went there."""
    gc.set_threshold(_YOUNG_OBJECTS)
    gc.collect()
    gc.freeze()
