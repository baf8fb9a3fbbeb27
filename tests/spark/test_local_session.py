"""Confs that a command takes for a Spark session of its own."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.spark.local_session import parse_confs


def test_the_last_conf_of_a_name_counts_and_a_value_may_have_an_equals_sign() -> None:
    texts = ["spark.sql.catalog.lake=a", "spark.sql.catalog.lake.uri=b?c=d", "spark.sql.catalog.lake=e"]
    assert parse_confs(texts) == {"spark.sql.catalog.lake": "e", "spark.sql.catalog.lake.uri": "b?c=d"}


@pytest.mark.parametrize("text", ["", "spark.a", "catalog.lake=secret", " spark.a=secret", "=secret"])
def test_what_is_no_conf_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_confs([text])
    assert "secret" not in str(raised.value)
