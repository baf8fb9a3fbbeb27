"""Iceberg tables of real catalogs go back with their query: rows against what was written. One session."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.kit import PYTHON, ROOT, RUN_SECONDS, run_driver, set_up, spark_jars

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each case of ``iceberg_app`` says in the end."""
    set_up()
    home = tmp_path_factory.mktemp("iceberg")
    return {"home": home, **_drive(home)}


def _drive(home: Path) -> dict[str, Any]:
    catalog = "spark.sql.catalog.books"
    lines = run_driver(
        "tests.ecosystem.iceberg_app",
        {
            "directory": str(home),
            "conf": {
                catalog: "org.apache.iceberg.spark.SparkCatalog",
                f"{catalog}.type": "jdbc",
                f"{catalog}.uri": f"jdbc:derby:;databaseName={home}/books;create=true",
                f"{catalog}.warehouse": str(home / "books-warehouse"),
                "spark.driver.extraJavaOptions": f"-Dderby.system.home={home}",
            },
        },
    )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


@pytest.mark.parametrize("name", ["stateless", "stateful", "jdbc", "rewritten"])
def test_a_table_goes_back_with_the_kept_query_id_and_catches_up(name: str, cases: dict[str, Any]) -> None:
    """Nothing lost, nothing twice, though the batches are cut otherwise; also after a compaction."""
    case = cases[name]
    assert (case["after"], case["rows"]) == (2, 15)
    assert case["found"] == case["wanted"]
    assert [line.partition(":")[0] for line in case["dropped"] if line.startswith("batch")][-1] == "batch 3"
    assert case["others"] == []
    assert any("changed no rows" in line for line in case["dropped"]) == (name == "rewritten")


def test_a_savepoints_tag_keeps_what_expires(cases: dict[str, Any]) -> None:
    case = cases["tagged"]
    assert case["kept"] is True
    assert case["untagged"].startswith("CKPT-DIVERGED")
    assert "expired" in case["others"][0]
    assert case["found"] == case["wanted"]
    assert case["refs"] == ["main"]


def test_rows_of_others_are_named_and_never_undone_unseen(cases: dict[str, Any]) -> None:
    case = cases["foreign"]
    assert case["stale"].startswith("CKPT-STALE-ATTEMPT")
    assert case["late"].startswith("CKPT-STALE-ATTEMPT")
    assert case["kept"] == 12
    assert len(case["others"]) == 2
    assert "append by spark.app.id local-" in case["others"][0]
    assert case["found"] == list(range(5))


def test_a_query_that_begins_anew_finds_the_table_empty(cases: dict[str, Any]) -> None:
    case = cases["from_nothing"]
    assert case["empty"] == 0
    assert case["found"] == case["wanted"]


def test_a_rewind_with_the_session_takes_query_and_table_back(cases: dict[str, Any]) -> None:
    """Refused without being asked for; without the catalog the ways to give it are named."""
    case = cases["rewound"]
    assert (case["kind"], case["target"]) == ("iceberg", "lake.db.rewound")
    assert case["place"].endswith("/warehouse/db/rewound")
    assert case["blocked"].startswith("CKPT-DIVERGED")
    assert case["nowhere"].startswith("CKPT-UNSUPPORTED")
    assert [line.partition(":")[0] for line in case["rolled_back"][0]] == ["batch 3", "batch 2"]
    assert case["after"] == 1
    assert case["found"] == case["wanted"]


def command(cases: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``ckpt`` with the confs of a catalog of files, which only Spark knows."""
    catalog = "spark.sql.catalog.lake"
    confs = {
        "spark.jars": ",".join(map(str, spark_jars())),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(cases["home"] / "warehouse"),
    }
    said = [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [str(PYTHON), "-m", "pyspark_checkpoint", *words, *said],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def test_the_command_finds_the_table_by_confs_of_its_own(cases: dict[str, Any]) -> None:
    """The table is asked, and nothing is changed."""
    url = str(cases["home"] / "rewound" / "checkpoints")
    words = ("rewind", url, "--query", "rewound", "--epoch", "0", "--dry-run", "--json")
    done = command(cases, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    (plan,) = json.loads(done.stdout)["roll_backs"]
    assert (plan["target"], plan["batch_id"]) == ("lake.db.rewound", 0)
    assert [line.partition(":")[0] for line in plan["dropped"]] == ["batch 3", "batch 2", "batch 1"]


def test_a_preflight_asks_the_table_by_its_name(cases: dict[str, Any]) -> None:
    """From a checkpoint that it is ahead of, and from the location that goes on where it is."""
    home = cases["home"] / "rewound"
    words = ("preflight", str(home / "checkpoints"), "--query", "rewound", "--at", "epoch=0")
    done = command(cases, *words)
    assert (done.returncode, "drop batches 1 to 3" in done.stdout) == (1, True), done
    sink = ("--sink", "iceberg:lake.db.rewound")
    done = command(cases, "preflight", str(home / "location"), *sink)
    assert (done.returncode, "output" in done.stdout) == (0, False), done


def test_an_automatic_restore_says_the_command_that_has_the_catalog(cases: dict[str, Any]) -> None:
    """Before a session is there only the command can take the table back: as it is printed, with confs."""
    case = cases["lost"]
    assert "can be changed by its catalog alone" in case["told"]
    assert case["is_unchanged"]
    assert case["after"] == 1
    assert case["found"] == case["wanted"]


def test_a_new_thread_finds_the_table_of_a_session(cases: dict[str, Any]) -> None:
    """Spark looks a catalog up in the confs of the thread's active session; a new thread has none."""
    case = cases["in_a_thread"]
    assert case["asked"] == case["position"] == 1
    assert case["is_left"], "the thread has the session that it had before: none"


def test_a_table_that_no_catalog_has_is_not_found(cases: dict[str, Any]) -> None:
    assert cases["absent"]["lake"].startswith("CKPT-STORE-NOT-FOUND")
    assert not cases["absent"]["nowhere"].startswith("nothing")
