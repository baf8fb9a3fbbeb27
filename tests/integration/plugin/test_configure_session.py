"""``configure`` in a Python program: what the plugin sets, keeps and refuses, and that it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.registry.queries import list_queries
from tests.integration.plugin.lab import epoch, write_input
from tests.support.servers.hadoop import FILE_MANAGER, ROOT, build_jar

pytestmark = pytest.mark.spark

APP = Path(__file__).with_name("sessions_app.py")
LISTENERS = "spark.sql.streaming.streamingQueryListeners"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
OURS = "io.github.pysparkcheckpoint.plugin.QueryEvents"
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


def run_sessions(
    python: str, home: Path, steps: list[dict[str, Any]], env: Mapping[str, str]
) -> tuple[list[dict[str, Any]], str]:
    """Run sessions one after the other in one JVM: what each was set to, and what was logged."""
    done = subprocess.run(
        [python, str(APP), str(home), json.dumps(steps)],
        cwd=home,
        env={**env, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(steps)
    return found, done.stderr


@dataclass(frozen=True)
class Ran:
    """What each session was set to, or why it failed; what was logged; where it was."""

    found: dict[str, dict[str, Any]]
    log: str
    home: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All sessions of the tests below, with the sources of this checkout."""
    build_jar()
    home = tmp_path_factory.mktemp("sessions")
    write_input(home, 2)
    url, other = str(home / "store"), str(home / "other")
    nonsense = {"stop_timeout_seconds": "soon", "options": {"secretKey": "hidden"}}
    steps: dict[str, dict[str, Any]] = {
        "manager alone": {"configure": {}},
        "manager off": {
            "configure": {"file_manager": "off"},
            "confs": {"spark.ckpt.fileManager.memory": "1m"},
        },
        "own manager": {"configure": {}, "confs": {MANAGER: SPARKS_OWN, "spark.ckpt.ulr": "x"}},
        "full": {
            "configure": {"url": url, "options": {"secretKey": "hidden", "accessKey": "k"}},
            "confs": {LISTENERS: OURS},  # any class that exists stands for the user's own
            "queries": ["totals", "passing"],
        },
        "stale": {"configure": {"url": url, "stale": "restore"}, "queries": ["totals"], "set_back": True},
        "nonsense": {"configure": {"url": other, **nonsense}},
        "nonsense and restore": {"configure": {"url": other, "restore": "missing", **nonsense}},
        "shown credential": {
            "configure": {"url": other, "restore": "missing"},
            "confs": {"spark.ckpt.option.accountKey": "hidden"},
        },
        "from nowhere": {"configure": {"restore": "missing"}},
        "too late": {"configure": {"url": other, "restore": "missing", "restore_timeout_seconds": 0}},
    }
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    found, log = run_sessions(sys.executable, home, list(steps.values()), env)
    return Ran(dict(zip(steps, found, strict=True)), log, home)


@pytest.mark.timeout(600)
def test_what_the_plugin_sets_and_what_it_keeps(ran: Ran) -> None:
    """File manager alone; off; the user's own; with a URL, the listener beside the user's own."""
    alone = ran.found["manager alone"]
    assert (alone[MANAGER], alone[LISTENERS]) == (FILE_MANAGER, None)
    assert ran.found["manager off"][MANAGER] is None
    assert ran.found["own manager"][MANAGER] == SPARKS_OWN
    assert ran.found["full"][LISTENERS] == f"{OURS},{OURS}"
    assert ran.found["full"]["spark.ckpt.secret.secretKey"] is None, "secrets are taken out of the conf"
    assert "spark.ckpt.url is not set" in ran.log and "spark.ckpt.ulr" in ran.log
    assert "but [spark.ckpt.fileManager.memory] is" in ran.log and "memoryBytes" in ran.log


@pytest.mark.timeout(600)
def test_a_session_of_configure_is_checkpointed(ran: Ran) -> None:
    """But not a query with a temporary location; a location behind its history is restored if asked for."""
    assert epoch(ran.home) == 1
    names = [root.name for root in list_queries(open_object_store(str(ran.home / "store")))]
    assert names == ["totals"]
    assert "It was restored at batch 1; the stale one is kept" in ran.log
    assert (ran.home / "location" / "commits" / "1").exists()
    (old,) = ran.home.glob("location.stale-*")
    assert not (old / "commits" / "1").exists()


@pytest.mark.timeout(600)
def test_an_application_fails_for_the_plugin_only_if_it_asked_for_a_restore(ran: Ran) -> None:
    """With a setting that makes no sense; from nowhere; within no time. Secrets are hidden all the same."""
    text = "spark.ckpt.stopTimeoutSeconds is a number of seconds, not 'soon'"
    assert ran.found["nonsense"]["spark.ckpt.secret.secretKey"] is None
    assert f"{text}. The application runs on, without the plugin" in ran.log
    assert text in ran.found["nonsense and restore"]["failed"]
    assert "spark.ckpt.option.accountKey is a credential" in ran.log
    assert "spark.ckpt.restore=missing failed" in ran.found["shown credential"]["failed"]
    assert "spark.ckpt.url is not set" in ran.found["from nowhere"]["failed"]
    assert "the restore was not done in 0 s" in ran.found["too late"]["failed"]
    assert "hidden" not in ran.log
    assert not (ran.home / "other").exists()
