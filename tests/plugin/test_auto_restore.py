"""What the plugin restores before an application begins, and what it leaves alone. Needs no Spark."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_checkpoint import savepoint
from pyspark_checkpoint.errors import FormatError, RefusedError, Unsupported
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.output import RollBackPlan
from pyspark_checkpoint.plugin import auto_restore as module
from pyspark_checkpoint.plugin.auto_restore import auto_restore, main
from pyspark_checkpoint.plugin.plugin_settings import PluginSettings, parse_plugin_settings
from pyspark_checkpoint.registry.queries import QueryRoot, app_prefix, register, root_url
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.store.open import open_object_store
from tests.outputs.test_iceberg_table import Lake
from tests.support.made_location import QUERY_ID, MadeLocation, capture, contents, needed
from tests.support.made_output import MadeOutput, use_output

OTHER_ID = "7d2c1eaf-4c63-4d8b-8a1f-1b6e1d702f22"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def ran(
    url: str, path: Path, *, app: str = "app", name: str = "q", query_id: str = QUERY_ID, at: int = 1
) -> Path:
    """A query that was checkpointed in its first three batches, and lost its location then."""
    made = MadeLocation(path, query_id).commit(0, 1, 2)
    capture(made, root_url(url, made.query_id), 0, 1, 2)
    register(open_object_store(url), QueryRoot(name, made.query_id, app, at))
    kept = path.with_name(f"{path.name}-kept")
    shutil.move(path, kept)
    return kept


def of(url: str, restore: str = "missing", **more: str) -> PluginSettings:
    return PluginSettings(url, "app", restore=restore, **more)  # type: ignore[arg-type]


def test_a_location_that_is_gone_is_rebuilt_from_the_newest_checkpoint(url: str, tmp_path: Path) -> None:
    """Byte by byte, at the path that it had, and the history is taken over."""
    kept = ran(url, tmp_path / "location")
    (report,) = auto_restore(of(url))
    assert (report.epoch, report.location) == (2, str(tmp_path / "location"))
    assert contents(tmp_path / "location") == needed(MadeLocation(kept), 2)
    assert auto_restore(of(url)) == [], "a second start finds the location there"


def test_a_location_that_is_there_stays_as_it_is(url: str, tmp_path: Path) -> None:
    """Also when a checkpoint was named: the line that was submitted is often submitted again."""
    kept = ran(url, tmp_path / "location")
    shutil.move(kept, tmp_path / "location")
    before = contents(tmp_path / "location")
    assert auto_restore(of(url)) == []
    assert auto_restore(of(url, "1")) == []
    assert contents(tmp_path / "location") == before


def elsewhere(url: str, location: Path) -> None:
    """Register a query whose table is in a bucket that nobody has typed."""
    root = QueryRoot("q", QUERY_ID, "app", 1, table="s3://lake/orders", checkpoint_location=str(location))
    register(open_object_store(url), root)


def test_a_table_that_may_not_be_opened_is_no_matter_while_the_location_is_there(
    url: str, tmp_path: Path
) -> None:
    """Nothing is to be restored, so that nobody has to trust the table."""
    MadeLocation(tmp_path / "location").commit(0, 1, 2)
    elsewhere(url, tmp_path / "location")
    assert auto_restore(of(url)) == []


def test_a_table_that_may_not_be_opened_ends_the_restore_before_anything_is_restored(
    url: str, tmp_path: Path
) -> None:
    """Its location is gone: the application must not begin anew there."""
    ran(url, tmp_path / "other", name="other", query_id=OTHER_ID, at=2)
    elsewhere(url, tmp_path / "location")
    with pytest.raises(RefusedError, match="another account or bucket"):
        auto_restore(of(url))
    assert not (tmp_path / "location").exists()
    assert not (tmp_path / "other").exists()


def test_a_query_that_ran_after_one_whose_table_may_not_be_opened_keeps_its_location(
    url: str, tmp_path: Path
) -> None:
    """It was never checkpointed; nothing of the one before it belongs there."""
    elsewhere(url, tmp_path / "location")
    root = QueryRoot("q2", OTHER_ID, "app", 2, checkpoint_location=str(tmp_path / "location"))
    register(open_object_store(url), root)
    assert auto_restore(of(url)) == []


def test_only_queries_of_this_application_are_restored(url: str, tmp_path: Path) -> None:
    """One of the same name in another application is not this one's, even if it ran later."""
    ran(url, tmp_path / "mine", at=1)
    ran(url, tmp_path / "theirs", app="another app/1", query_id=OTHER_ID, at=2)
    assert [report.location for report in auto_restore(of(url))] == [str(tmp_path / "mine")]
    assert not (tmp_path / "theirs").exists()


def test_queries_can_be_chosen_by_name(url: str, tmp_path: Path) -> None:
    """By ``spark.ckpt.queries``."""
    ran(url, tmp_path / "location", name="orders")
    settings = PluginSettings(url, "app", restore="missing", queries=("total*",))
    assert auto_restore(settings) == []


def test_of_two_histories_of_one_location_the_last_that_ran_is_restored(url: str, tmp_path: Path) -> None:
    """The location was deleted once before, and the query began anew under another id."""
    ran(url, tmp_path / "location", query_id=OTHER_ID, at=5)
    shutil.rmtree(tmp_path / "location-kept")
    ran(url, tmp_path / "location", at=4)
    (report,) = auto_restore(of(url))
    assert report.query_id == OTHER_ID


def began_anew(url: str, location: Path | str, *, at: int) -> None:
    """Another query in the same location, which was lost before its first checkpoint."""
    root = QueryRoot("q", OTHER_ID, "app", at, checkpoint_location=str(location))
    register(open_object_store(url), root)


def test_a_query_that_began_anew_is_not_given_the_state_of_the_one_before(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ran last, and has no checkpoint yet: nothing is restored, and the log says what can be done."""
    location = tmp_path / "location"
    ran(url, location, at=4)
    began_anew(url, location, at=5)
    with caplog.at_level(logging.WARNING):
        assert auto_restore(of(url)) == []
    assert not location.exists()
    assert f"query q ({OTHER_ID}) ran last in {location} and has no checkpoint" in caplog.text
    assert f"ckpt restore {root_url(url, QUERY_ID)} --to {location}" in caplog.text


def test_a_query_that_is_back_where_another_had_begun_is_restored(url: str, tmp_path: Path) -> None:
    """The one without a checkpoint ran before it."""
    ran(url, tmp_path / "location", at=6)
    began_anew(url, tmp_path / "location", at=5)
    (report,) = auto_restore(of(url))
    assert report.query_id == QUERY_ID


def test_a_location_that_is_there_needs_no_word_about_who_had_it(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays as it is; so does one that nobody has a checkpoint of, which is not even looked at."""
    kept = ran(url, tmp_path / "location", at=4)
    shutil.move(kept, tmp_path / "location")
    began_anew(url, tmp_path / "location", at=5)
    nowhere = QueryRoot(
        "lost", "8e3d2fb0-5d74-4e9c-9b20-2c7f2e813a33", "app", 6, "", "s3://nowhere/location"
    )
    register(open_object_store(url), nowhere)
    with caplog.at_level(logging.WARNING):
        assert auto_restore(of(url)) == []
    assert caplog.text == ""


def test_the_driver_need_not_find_a_location_that_nothing_is_to_be_restored_in(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Only Hadoop reaches it, and the query that ran there last has no checkpoint."""
    ran(url, tmp_path / "location")
    root = QueryRoot("q", QUERY_ID, "app", 2, checkpoint_location="hdfs://name/location")
    register(open_object_store(url), root)
    began_anew(url, "hdfs://name/location", at=5)
    with caplog.at_level(logging.WARNING):
        assert auto_restore(of(url)) == []
    assert capsys.readouterr().out == ""
    assert "ran last in hdfs://name/location" in caplog.text


@pytest.mark.parametrize("at", ["2", "before-upgrade"])
def test_a_checkpoint_can_be_named(url: str, tmp_path: Path, at: str) -> None:
    """By number or as a savepoint; the history records that it went back."""
    ran(url, tmp_path / "location")
    history = CheckpointStore.open(root_url(url, QUERY_ID))
    savepoint(history.store.url, "before-upgrade", at=2)
    (report,) = auto_restore(of(url, at))
    assert (report.checkpoint_id, report.epoch) == (2, 1)
    newest = history.load_latest()
    assert newest is not None and newest.epoch == 1


def test_a_savepoint_that_a_query_lacks_is_an_error(url: str, tmp_path: Path) -> None:
    """Starting without it would be another application than the one that was asked for."""
    ran(url, tmp_path / "location")
    with pytest.raises(RefusedError, match="no-such"):
        auto_restore(of(url, "no-such"))


def test_an_interrupted_restore_is_finished(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left is not a location in use."""
    kept = ran(url, tmp_path / "location")
    monkeypatch.setattr("pyspark_checkpoint.restorer.execute.Restore.finish", _die)
    with pytest.raises(KeyboardInterrupt):
        auto_restore(of(url))
    assert (tmp_path / "location" / RESTORE_MARKER).exists()
    monkeypatch.undo()
    (report,) = auto_restore(of(url))
    assert report.resumed
    assert contents(tmp_path / "location") == needed(MadeLocation(kept), 2)


def _die(self: object) -> None:
    raise KeyboardInterrupt


def test_a_history_that_cannot_be_read_is_an_error(url: str, tmp_path: Path) -> None:
    """Never "nothing to restore"."""
    ran(url, tmp_path / "location")
    for manifest in Path(url).rglob("manifest-*.json"):
        manifest.write_bytes(b"{}")
    with pytest.raises(FormatError):
        auto_restore(of(url))


def test_a_newest_checkpoint_that_is_damaged_is_stepped_over(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As ``ckpt restore`` does it, with a warning; while the location is there it is no problem."""
    kept = ran(url, tmp_path / "location")
    location = str(tmp_path / "location")
    register(open_object_store(url), QueryRoot("q", QUERY_ID, "app", 2, checkpoint_location=location))
    max(Path(url).rglob("manifest-*.json")).write_bytes(b"{}")
    shutil.copytree(kept, location)
    assert auto_restore(of(url)) == []
    shutil.rmtree(location)
    (report,) = auto_restore(of(url))
    assert (report.checkpoint_id, report.epoch) == (2, 1)
    assert "manifest-0000000003.json is torn" in caplog.text


@pytest.fixture
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("pyspark_checkpoint")
    before, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = before
    logger.setLevel(level)


@pytest.mark.usefixtures("_quiet")
def test_the_program_says_what_it_did_and_fails_if_it_could_not(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the driver starts it: settings on standard input, lines with levels, an exit status."""
    ran(url, tmp_path / "location")
    confs = {"app": "app", "jar": "", "spark.ckpt.url": url, "spark.ckpt.restore": "missing"}
    assert _run(confs | {"spark.ckpt.secret.secretKey": "hidden"}, monkeypatch) == 0
    assert _run(confs | {"spark.ckpt.restore": "nope", "spark.ckpt.x": "1"}, monkeypatch) == 0
    shutil.rmtree(tmp_path / "location")
    assert _run(confs | {"spark.ckpt.restore": "nope"}, monkeypatch) == 1
    said = capsys.readouterr().err
    assert "INFO query q: " in said and "is restored from checkpoint 3, after batch 2" in said
    assert "ERROR the restore failed: " in said and "has no savepoint 'nope'" in said
    assert "WARNING unknown setting spark.ckpt.x" in said
    assert "hidden" not in said


def _run(confs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(confs) + "\n"))
    assert vars(module)["sys"] is sys
    return main()


def test_a_location_that_only_hadoop_reaches_is_for_the_driver_to_find(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot be restored without Spark: the driver is told which it is, and looks."""
    ran(url, tmp_path / "location")
    root = QueryRoot("q", QUERY_ID, "app", 2, checkpoint_location="hdfs://name/location")
    register(open_object_store(url), root)
    assert auto_restore(of(url)) == []
    assert capsys.readouterr().out == "LOCATION hdfs://name/location\n"


def test_a_query_that_cannot_be_told_fails_the_restore(url: str, tmp_path: Path) -> None:
    """Its record is damaged: to begin without it would begin it anew. Nothing is restored."""
    ran(url, tmp_path / "location")
    ran(url, tmp_path / "other", name="other", query_id=OTHER_ID)
    record = tmp_path / "store" / f"{app_prefix('app')}{OTHER_ID}.json"
    record.write_bytes(record.read_bytes()[:-20])
    with pytest.raises(FormatError, match=OTHER_ID):
        auto_restore(of(url))
    assert not (tmp_path / "location").exists()


def test_a_history_of_another_query_is_not_restored(url: str, tmp_path: Path) -> None:
    """Record and checkpoint must agree whose it is."""
    made = MadeLocation(tmp_path / "other").commit(0)
    capture(made, root_url(url, OTHER_ID), 0)
    began_anew(url, tmp_path / "location", at=1)
    with pytest.raises(RefusedError, match=f"not of '{OTHER_ID}'"):
        auto_restore(of(url))
    assert not (tmp_path / "location").exists()


@pytest.mark.parametrize(("sink", "left"), [("fail", 4), ("rollback", 3)])
def test_an_output_that_is_ahead_ends_the_start_or_goes_back(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, left: int
) -> None:
    """The machine died after the output's commit and before the capture: nobody asks who could answer."""
    output = use_output(monkeypatch, MadeOutput(*((QUERY_ID, batch) for batch in range(4))))
    ran(url, tmp_path / "location")
    if sink == "fail":
        with pytest.raises(RefusedError, match=r"drop batch 3.*spark\.ckpt\.sink=rollback"):
            auto_restore(of(url, sink=sink))
        assert not (tmp_path / "location").exists()
    else:
        (report,) = auto_restore(of(url, sink=sink))
        assert [plan.batch_id for plan in report.rolled_back] == [2]
    assert len(output.commits) == left


def test_an_output_that_needs_a_session_is_for_the_command(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none before the application has begun: refused with the command that does it."""

    class OfACatalog(MadeOutput):
        def plan_roll_back(self, query_id: str, batch_id: int) -> RollBackPlan | None:
            raise self._cannot_go_back(query_id, batch_id)

    use_output(monkeypatch, OfACatalog(*((QUERY_ID, batch) for batch in range(4))))
    ran(url, tmp_path / "location")
    command = rf"ckpt restore \S+{QUERY_ID} --to {tmp_path}/location --sink rollback --conf NAME=VALUE"
    with pytest.raises(Unsupported, match=command):
        auto_restore(of(url, sink="rollback"))
    assert not (tmp_path / "location").exists()


def test_an_iceberg_table_goes_back_by_the_confs_of_its_catalog(url: str, tmp_path: Path) -> None:
    """No session is there yet: pyiceberg reaches the catalog that the session will have."""
    (tmp_path / "lake").mkdir()
    lake = Lake(tmp_path / "lake")
    for batch_id in range(5):
        lake.write(batch_id, QUERY_ID)
    made = MadeLocation(tmp_path / "location").commit(0, 1, 2)
    capture(made, root_url(url, made.query_id), 0, 1, 2, sink="lake.db.numbers")
    register(open_object_store(url), QueryRoot("q", made.query_id, "app", 1))
    shutil.rmtree(made.path)
    confs = {
        "spark.ckpt.url": url,
        "spark.ckpt.restore": "missing",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{lake.home}/catalog.db",
        "spark.sql.catalog.lake.warehouse": f"file://{lake.home}/warehouse",
    }
    with pytest.raises(RefusedError, match="drop batches 3 to 4"):
        auto_restore(parse_plugin_settings(confs, "app"))
    (report,) = auto_restore(parse_plugin_settings({**confs, "spark.ckpt.sink": "rollback"}, "app"))
    assert [plan.batch_id for plan in report.rolled_back] == [2]
    assert lake.rows == [0, 1, 2]
    lake.catalog.engine.dispose()


@pytest.mark.parametrize(("runs_skipped", "left"), [(True, 4), (False, 3)])
def test_a_batch_whose_plan_is_kept_is_repeated_where_that_is_exact(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_skipped: bool, left: int
) -> None:
    """A stateful query: if the output runs the plan of what it drops; else it goes back by that batch."""
    output = use_output(
        monkeypatch, MadeOutput(*((QUERY_ID, batch) for batch in range(4)), runs_skipped=runs_skipped)
    )
    made = MadeLocation(tmp_path / "location").commit(0, 1, 2).plan(3)
    capture(made, root_url(url, made.query_id), 2)
    register(open_object_store(url), QueryRoot("q", made.query_id, "app", 1))
    shutil.rmtree(made.path)
    auto_restore(of(url, sink="rollback"))
    assert (made.path / "offsets" / "3").exists()
    assert len(output.commits) == left
