"""What reaches into the JVM, without one: the plugin's side process, and sessions that have no JVM."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpoint import checkpoint
from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.spark.jvm import SideDoor


def test_the_applications_default_session_is_never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment: a thread of the application that asks for it just then gets its own."""
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    door = object.__new__(SideDoor)
    door._door, door._context = MagicMock(), MagicMock()
    for run_id in ("first", "second"):
        found = door.session(run_id)
        assert found is not None and found._jsparkSession is door._door.session.return_value
    calls = [name for name, _, _ in door._context._jvm.mock_calls]
    assert not [name for name in calls if "DefaultSession" in name or "ActiveSession" in name]


def test_a_spark_connect_session_is_refused_with_the_way_that_works(tmp_path: Path) -> None:
    """Its listeners would hear of queries whose JVM cannot be reached: nothing would be captured."""
    connect = type("SparkSession", (MagicMock,), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(Unsupported, match="plugin on the Connect server"):
        checkpoint(connect, str(tmp_path))
    connect.streams.addListener.assert_not_called()
    assert list(tmp_path.iterdir()) == []
