"""``configure``: what it adds to a session that is not started yet."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpoint import __version__, configure
from pyspark_checkpoint import jar as jar_module
from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.plugin.plugin_settings import SETTINGS

PLUGIN = "io.github.pysparkcheckpoint.CheckpointPlugin"


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jar as a wheel carries it."""
    package = tmp_path / "pyspark_checkpoint"
    (package / "jars").mkdir(parents=True)
    path = package / "jars" / f"ckpt-spark_2.13-{__version__}.jar"
    path.touch()
    monkeypatch.setattr(jar_module, "__file__", str(package / "jar.py"))
    return path


def test_it_adds_the_jar_the_plugin_and_the_settings(jar: Path) -> None:
    """Nothing else is to be done, and what the user has set stays."""
    builder = SparkSession.builder.config("spark.plugins", "my.Plugin").config("spark.jars", "/my.jar")
    found = configure(builder, "s3://b/p", options={"accountKey": "x"}, restore="missing")._options
    assert found["spark.jars"] == f"/my.jar,{jar}"
    assert found["spark.plugins"] == f"my.Plugin,{PLUGIN}"
    assert found["spark.ckpt.url"] == "s3://b/p"
    assert found["spark.ckpt.restore"] == "missing"
    assert found["spark.ckpt.secret.accountKey"] == "x"
    assert found["spark.pyspark.driver.python"] == sys.executable


def test_every_setting_is_an_argument(jar: Path) -> None:
    """In Python's spelling, in the order of the table, and nothing else."""
    arguments = list(inspect.signature(configure).parameters)
    assert arguments == ["builder", *(setting.argument for setting in SETTINGS), "options"]
    found = configure(SparkSession.builder, interval_seconds=2.5, stop_when_fenced=True, retain=7)._options
    assert found["spark.ckpt.intervalSeconds"] == "2.5"
    assert found["spark.ckpt.stopWhenFenced"] == "true"
    assert found["spark.ckpt.retain"] == "7"
    assert "spark.ckpt.stale" not in found


def test_it_can_be_called_twice(jar: Path) -> None:
    """The second call changes settings and adds nothing again."""
    found = configure(configure(SparkSession.builder, "a"), "b")._options
    assert (found["spark.ckpt.url"], found["spark.plugins"], found["spark.jars"]) == ("b", PLUGIN, str(jar))


def test_without_a_url_only_the_file_manager_is_wanted(jar: Path) -> None:
    """The plugin sets it."""
    found = configure(SparkSession.builder, file_manager_memory_bytes="1m")._options
    assert "spark.ckpt.url" not in found
    assert found["spark.ckpt.fileManager.memoryBytes"] == "1m"


def test_what_cannot_work_is_refused(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong setting, a client of Spark Connect, also by the environment, a jar that is not there."""
    with pytest.raises(TypeError, match="restores"):
        configure(SparkSession.builder, "a", restores="missing")  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match="endpiont"):
        configure(SparkSession.builder, "a", options={"endpiont": "x"})
    with pytest.raises(RefusedError, match="server"):
        configure(SparkSession.builder.config("spark.remote", "sc://host"), "a")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(RefusedError, match="server"):
        configure(SparkSession.builder, "a")
    monkeypatch.delenv("SPARK_REMOTE")
    jar.unlink()
    with pytest.raises(SettingsError, match="install the wheel"):
        configure(SparkSession.builder, "a")


def test_without_a_jar_it_names_the_command_that_builds_it(jar: Path) -> None:
    """An installed checkout has the sources: one step leads to the jar."""
    jar.unlink()
    (jar.parents[1] / "jvm" / "java").mkdir(parents=True)
    with pytest.raises(SettingsError, match="not built yet") as caught:
        configure(SparkSession.Builder(), url="s3://bucket/checkpoints")
    assert "run: ckpt jar --build" in str(caught.value)
