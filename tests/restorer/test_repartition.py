"""A restore that repartitions state, killed at every moment; Spark's part is played here. No Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from pyspark_checkpoint.errors import FormatError, RefusedError, Unavailable
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer import execute as restoring
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.spark import jvm as gateway
from pyspark_checkpoint.spark_files.location import LocationSpec
from tests.restorer.test_restore_rules import damage
from tests.support.made_location import MadeLocation, capture, contents, needed

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ADDED = ("state/0/0/5.delta", "state/0/1/5.delta", "state/0/2/5.delta", "offsets/4", "commits/4")
"""What a repartition of batch 3 adds; Spark begins with the offset log."""


class Killed(Exception):
    """The driver died on purpose."""


class FakeSession:
    """A session whose offline repartition ends after ``steps`` files, as if it had been killed there."""

    def __init__(self, steps: int = len(ADDED)) -> None:
        self.steps = steps
        self.calls: list[tuple[str, int]] = []
        self._streamingCheckpointManager = self

    def repartition(self, url: str, partitions: int) -> None:
        where = Path(url.removeprefix("file:"))
        assert (where / RESTORE_MARKER).exists(), "a query could start before its state is repartitioned"
        assert not (where / "offsets" / "4").exists(), "Spark goes on with what is there, or refuses it"
        assert not (where / "state" / "0" / "2").exists()
        self.calls.append((url, partitions))
        for name in sorted(ADDED, key=lambda name: name != "offsets/4")[: self.steps]:
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_text(str(partitions))
        if self.steps < len(ADDED):
            raise Killed


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    location = MadeLocation(tmp_path / "location").commit(0, 1, 2, 3)
    for path in (location.path / "offsets").iterdir():
        pinned = f'"conf": {{"spark.sql.streaming.stateStore.providerClass": "{PROVIDER}", '
        path.write_text(path.read_text().replace('"conf": {', pinned))
    return location


def repartition_to(url: str, to: Path, session: FakeSession, partitions: int = 3, **settings: Any) -> Any:
    return restore(url, str(to), partitions=partitions, spark=session, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", range(len(ADDED)))
@pytest.mark.parametrize("clone", [False, True])
def test_a_killed_repartition_is_finished_by_repeating_the_restore(
    made: MadeLocation, url: str, tmp_path: Path, steps: int, clone: bool
) -> None:
    """Until then the location is marked, and the history is not taken over; any number may be asked for."""
    capture(made, url, 0, 1, 2, 3)
    history, fresh = CheckpointStore.open(url), tmp_path / "fresh"
    before = history.list_ids()
    with pytest.raises(Killed):
        repartition_to(url, fresh, FakeSession(steps), clone=clone)
    assert (fresh / RESTORE_MARKER).exists()
    assert history.list_ids() == before
    session = FakeSession()
    assert repartition_to(url, fresh, session, 5, clone=clone).resumed
    assert session.calls == [(f"file:{fresh}", 5)]
    found = contents(fresh)
    assert {name: found.pop(name) for name in ADDED} == dict.fromkeys(ADDED, b"5")
    assert {**found, "metadata": b""} == {**needed(made, 3), "metadata": b""}


def test_a_restore_that_dies_after_the_repartition_can_be_repeated(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With partitions or without: what the first one has repartitioned does not stay by chance."""
    capture(made, url, 0, 1, 2, 3)
    for fresh in (tmp_path / "one", tmp_path / "other"):
        with monkeypatch.context() as patch:
            patch.setattr(restoring.Restore, "finish", lambda self: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                repartition_to(url, fresh, FakeSession())
        assert (fresh / "commits" / "4").exists()
    session = FakeSession()
    assert repartition_to(url, tmp_path / "one", session).resumed
    assert len(session.calls) == 1
    assert restore(url, str(tmp_path / "other")).resumed
    assert contents(tmp_path / "other") == needed(made, 3)


def test_a_query_that_ran_in_an_unfinished_location_loses_nothing(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """More batches than a repartition adds are somebody's work."""
    capture(made, url, 0, 1, 2, 3)
    fresh = tmp_path / "fresh"
    with pytest.raises(Killed):
        repartition_to(url, fresh, FakeSession(2))
    (fresh / "offsets" / "5").write_text("")
    before = contents(fresh)
    with pytest.raises(RefusedError, match="a query has run there"):
        repartition_to(url, fresh, FakeSession())
    after = contents(fresh)
    assert before.pop(RESTORE_MARKER) and after.pop(RESTORE_MARKER), "it stays marked"
    assert after == before


def test_a_table_of_rows_alone_is_told_before_anything_is_written(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """It would refuse the batch after the repartition, for ever; a clone writes to another table."""
    capture(made, url, 0, 1, 2, 3, sink=f"ckpt-sink {tmp_path / 'table'}")
    session, fresh = FakeSession(), tmp_path / "fresh"
    with pytest.raises(RefusedError, match="without its state"):
        repartition_to(url, fresh, session)
    assert not fresh.exists()
    repartition_to(url, fresh, session, clone=True)
    assert len(session.calls) == 1


def test_a_location_that_spark_does_not_find_is_refused_before_anything_is_written(
    made: MadeLocation, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restoring needs our own access only; repartitioning needs Spark's."""
    capture(made, url, 0, 1, 2, 3)

    class NoFiles:
        def __init__(self, spark: object) -> None:
            pass

        def qualified_path(self, url: str) -> str:
            raise Unavailable(f"{url}: Hadoop says UnsupportedFileSystemException")

    monkeypatch.setattr(gateway, "HadoopFiles", NoFiles)
    for name in ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    azure = {"endpoint": "http://127.0.0.1:1", "accountKey": "a2V5"}
    with pytest.raises(RefusedError, match="does not reach memory://"):
        restore(url, "memory://fresh", partitions=3, spark=FakeSession())  # type: ignore[arg-type]
    with pytest.raises(
        RefusedError, match=r"does not reach abfss://box@shop\.dfs\.core\.windows\.net/fresh"
    ):
        restore(
            url,
            "az://box/fresh",
            partitions=3,
            spark=FakeSession(),  # type: ignore[arg-type]
            location_options={"accountName": "shop", "accountKey": "a2V5"},
        )
    with pytest.raises(RefusedError, match="without the name of its account"):
        restore(url, "az://box/fresh", partitions=3, spark=FakeSession(), location_options=azure)  # type: ignore[arg-type]


def test_short_azure_urls_become_sparks() -> None:
    """With the account in the URL, too; Spark knows no az."""
    spelled = "abfss://box@shop.dfs.core.windows.net/a"
    assert LocationSpec("az://box@shop.blob.core.windows.net/a/").spark_url == spelled
    assert LocationSpec("az://box/a", {"accountName": "shop"}).spark_url == spelled
    other = "box@shop.dfs.core.chinacloudapi.cn/a"
    assert LocationSpec(f"azure://{other}").spark_url == f"abfss://{other}"
    assert LocationSpec(f"abfs://{other}").spark_url == f"abfs://{other}"


class FakeCluster:
    """Runs the tasks of a job in this process, with what a worker gets: the bytes of the function."""

    def __init__(self, lost: str = "") -> None:
        self.sparkContext = self
        self.jobs: list[str] = []
        self._lost = lost
        self._groups: list[Any] = []
        self._work: Any = None

    def setJobDescription(self, text: str) -> None:
        self.jobs.append(text)

    def parallelize(self, groups: list[Any], slices: int) -> FakeCluster:
        assert len(groups) == slices
        self._groups = pickle.loads(pickle.dumps(groups))
        return self

    def map(self, work: Any) -> FakeCluster:
        self._work = pickle.loads(cloudpickle.dumps(work))  # type: ignore[no-untyped-call]
        return self

    def collect(self) -> list[Any]:
        answers = [pickle.loads(pickle.dumps(self._work(group))) for group in self._groups]
        if self._lost:
            Path(self._lost).unlink()
        return answers


@pytest.mark.parametrize("problem", ["", "damage", "another disk"])
def test_large_state_is_written_and_verified_by_tasks(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """Damage that a task finds is told as damage; what it has written elsewhere is noticed."""
    monkeypatch.setattr(restoring, "SPREAD_BYTES", 1)
    monkeypatch.setattr(restoring, "GROUP_BYTES", 1)
    checkpoint = capture(made, url, 3)[-1]
    fresh = tmp_path / "fresh"
    cluster = FakeCluster(str(fresh / "state/0/0/4.delta") if problem == "another disk" else "")

    def go() -> object:
        return restore(url, str(fresh), checkpoint.checkpoint_id, spark=cluster)  # type: ignore[arg-type]

    if problem == "damage":
        damage(url, checkpoint, "flip")
        with pytest.raises(FormatError):
            go()
    elif problem:
        with pytest.raises(RefusedError, match="it is not here"):
            go()
    else:
        go()
        assert contents(fresh) == needed(made, 3)
    assert cluster.jobs == ["checkpoint restore"]
    assert (fresh / RESTORE_MARKER).exists() is bool(problem)
