"""Names of operators in manifests, which may have been written by anybody."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.spark_files.state_artifacts import operator_key, parse_operator_key


def test_an_operators_number_comes_back() -> None:
    """Whatever Spark calls it."""
    assert parse_operator_key(operator_key(12, "stateStoreSave-2")) == 12


@pytest.mark.parametrize("key", ["", "aggregate", "-1-x", "3", "x-1", "\u00b2-x", "9" * 5000 + "-x"])
def test_a_name_that_no_capture_writes_is_damage(key: str) -> None:
    """Also one that Python calls a number and cannot read."""
    with pytest.raises(FormatError):
        parse_operator_key(key)
