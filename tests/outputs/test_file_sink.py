"""Spark's file sink goes back: files and log are those of the batch, and Spark goes on from there."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import Diverged, FormatError, NotFound, StaleAttempt
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.outputs.output import RollBackPlan
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import FaultKind, FaultyStore, SimulatedCrash, fault_at
from tests.outputs.spark_log import LOG, SparkLog

QUERY = "query-1"
KEEPS_ALL, PURGES = 100, 1


def written(newest: int, retain: int = KEEPS_ALL, store: ObjectStore | None = None) -> SparkLog:
    """A sink at a batch."""
    log = SparkLog(store or MemoryStore(prefix="out"), retain=retain)
    log.run(range(newest + 1))
    return log


def output_of(store: ObjectStore) -> FileSinkOutput:
    """The sink as it is asked."""
    return FileSinkOutput("out", store)


def plan_of(store: ObjectStore, batch_id: int) -> RollBackPlan:
    """The plan, which there must be."""
    plan = output_of(store).plan_roll_back(QUERY, batch_id)
    assert plan is not None
    return plan


def files_at(log: SparkLog, batch_id: int) -> list[str]:
    """The files of batches up to this one, by what their names say."""
    return [file for file in log.there() if int(file.rpartition("part-")[2][:5]) <= batch_id]


def check_at(log: SparkLog, batch_id: int) -> None:
    """Look at it as Spark does; then let Spark write 12 more batches."""
    kept = files_at(log, batch_id)
    assert sorted(log.files()) == sorted(log.there()) == sorted(kept)
    assert output_of(log.store).position(QUERY).batch_id == (None if batch_id < 0 else batch_id)
    assert output_of(log.store).plan_roll_back(QUERY, batch_id) is None
    later = range(batch_id + 1, batch_id + 13)
    log.run(later)
    assert sorted(log.files()) == sorted(log.there())
    assert len(log.files()) == len(kept) + 2 * sum(number % 4 != 3 for number in later)


@pytest.mark.parametrize("newest", [9, 10, 29])
def test_a_file_sink_goes_back_to_every_batch(newest: int) -> None:
    """Over compactions, and to the beginning: nothing lost, nothing duplicated, no file left over."""
    for batch_id in range(-1, newest):
        log = written(newest)
        output_of(log.store).roll_back(plan_of(log.store, batch_id))
        check_at(log, batch_id)


@pytest.mark.parametrize(("newest", "interval"), [(55, 10), (85, 10), (60, 3)])
def test_a_pinned_batch_is_found_below_later_compactions(newest: int, interval: int) -> None:
    """Spark has deleted its entries: the first compaction that is left begins with them."""
    for batch_id in (0, 5, 9, 15, 19, 20):
        log = SparkLog(MemoryStore(prefix="out"), interval, 2 * interval)
        log.run(range(batch_id + 1))
        pin = output_of(log.store).pin("before", QUERY, batch_id)
        assert pin is not None
        assert pin.is_kept
        log.run(range(batch_id + 1, newest + 1))
        assert batch_id not in log.numbers()
        output_of(log.store).roll_back(plan_of(log.store, batch_id))
        check_at(log, batch_id)


def test_without_a_pin_a_purged_batch_is_refused() -> None:
    """The log no longer says which files are whose: the oldest batch that can be had is named."""
    log = written(35, PURGES)
    before = log.keys()
    with pytest.raises(Diverged, match=r"cannot go back to batch 12.*batch 19 or later"):
        output_of(log.store).plan_roll_back(QUERY, 12)
    assert output_of(log.store).pin("late", QUERY, 12) is None
    assert log.keys() == before


def test_a_pin_whose_files_left_the_log_is_refused() -> None:
    """The sink's option ``retention`` takes old files out of compactions: the digest shows it."""
    log = written(15)
    output_of(log.store).pin("before", QUERY, 15)
    log.retain = PURGES
    log.run(range(16, 33))
    key = f"{LOG}19.compact"
    version, _, *lines = log.store.get(key).split(b"\n")
    log.store.put(key, b"\n".join([version, *lines]))
    with pytest.raises(Diverged, match="cannot go back"):
        output_of(log.store).plan_roll_back(QUERY, 15)


def test_a_pin_is_let_go() -> None:
    """Under its name, once or twice; one that goes back past it takes it away and says so."""
    log = written(12)
    output = output_of(log.store)
    for name, batch_id in (("a", 5), ("b", 11)):
        assert output.pin(name, QUERY, batch_id) == output.pin(name, QUERY, batch_id)
    output.unpin("a")
    output.unpin("a")
    plan = plan_of(log.store, 8)
    assert plan.dropped == (
        "batch 12, of whichever query: 2 files, 8 bytes",
        "batch 11, of whichever query: 0 files, 0 bytes",
        "batch 10, of whichever query: 2 files, 8 bytes",
        "batch 9, of whichever query: 2 files, 8 bytes",
        "the pin of savepoint b",
    )
    output.roll_back(plan)
    assert not [info.key for info in log.store.list("_ckpt/")]


def test_what_a_moved_base_hides_is_not_taken_for_its_batches() -> None:
    """After it the log says of batch 15 alone what it has, and not of 12."""
    log = written(15)
    for batch_id in (12, 15):
        output_of(log.store).pin(f"p{batch_id}", QUERY, batch_id)
    log.retain = PURGES
    log.run(range(16, 33))
    output_of(log.store).roll_back(plan_of(log.store, 15))
    log.run(range(16, 18))
    output_of(log.store).unpin("p12")
    with pytest.raises(Diverged, match=r"batch 12.*batch 15 or later"):
        output_of(log.store).plan_roll_back(QUERY, 12)
    assert plan_of(log.store, 16).dropped == ("batch 17, of whichever query: 2 files, 8 bytes",)
    output_of(log.store).roll_back(plan_of(log.store, 15))
    check_at(log, 15)


Make = Callable[[], tuple[SparkLog, int]]


def entries_kept() -> tuple[SparkLog, int]:
    """The log has all entries."""
    return written(31), 17


def entries_purged() -> tuple[SparkLog, int]:
    """The entry is known by a pin; there is another compaction between."""
    log = written(12)
    output_of(log.store).pin("before", QUERY, 12)
    log.retain = PURGES
    log.run(range(13, 44))
    return log, 12


def entries_purged_from_the_first_interval() -> tuple[SparkLog, int]:
    """No compaction is left where it goes back to."""
    log = written(4)
    output_of(log.store).pin("before", QUERY, 4)
    log.retain = PURGES
    log.run(range(5, 32))
    return log, 4


def everything() -> tuple[SparkLog, int]:
    """Nothing stays."""
    return written(21, PURGES), -1


@pytest.mark.parametrize(
    "make", [entries_kept, entries_purged, entries_purged_from_the_first_interval, everything]
)
def test_killed_at_any_step_repeating_finishes_it(make: Make) -> None:
    """And whoever reads the directory in between finds the rows of some batch, whole."""
    for index in itertools.count():
        log, batch_id = make()
        newest, kept = set(log.there()), set(files_at(log, batch_id))
        store = FaultyStore(log.store, fault_at(index, FaultKind.CRASH_BEFORE))
        try:
            output_of(store).roll_back(plan_of(store, batch_id))
        except SimulatedCrash:
            seen = set(log.files())
            last = max((int(name.rpartition("part-")[2][:5]) for name in seen), default=-1)
            assert kept <= seen <= newest
            assert seen == set(files_at(log, max(last, batch_id))) & seen
            assert seen <= set(log.there())
            again = output_of(log.store).plan_roll_back(QUERY, batch_id)
            if again is not None:
                output_of(log.store).roll_back(again)
        check_at(log, batch_id)
        if len(store.calls) <= index:
            break
    assert index > 10


@pytest.mark.parametrize("batch_id", [0, 8, 9, 12, 19, 25, 29, 41])
def test_a_new_log_begins_with_empty_batches_so_that_spark_compacts_it(batch_id: int) -> None:
    """Killed at any step too. Without them Spark's next compaction fails."""
    for index in itertools.count():
        log = SparkLog(MemoryStore(prefix="out"))
        store = FaultyStore(log.store, fault_at(index, FaultKind.CRASH_BEFORE))
        with contextlib.suppress(SimulatedCrash):
            output_of(store).begin(batch_id)
        output_of(log.store).begin(batch_id)
        assert output_of(log.store).position(QUERY).batch_id == batch_id
        assert log.files() == []
        log.run(range(batch_id + 1, batch_id + 25))
        assert sorted(log.files()) == sorted(log.there())
        assert len(log.files()) == 2 * sum(n % 4 != 3 for n in range(batch_id + 1, batch_id + 25))
        if len(store.calls) <= index:
            break
    assert index > 1
    naive = SparkLog(MemoryStore(prefix="out"))
    with pytest.raises(NotFound):
        naive.run(range(batch_id + 1, batch_id + 25))


def test_a_log_that_names_files_is_never_begun_anew() -> None:
    """Neither one that is further, nor one that is not."""
    for newest in (3, 12):
        log = written(newest)
        before = {info.key: log.store.get(info.key) for info in log.store.list()}
        output_of(log.store).begin(7)
        assert {info.key: log.store.get(info.key) for info in log.store.list()} == before


def test_a_log_that_grew_since_the_plan_is_left_alone() -> None:
    """Somebody writes there: nothing was changed."""
    log = written(12)
    plan = plan_of(log.store, 8)
    log.add(13)
    before = log.keys(), log.there()
    with pytest.raises(StaleAttempt, match="has changed since"):
        output_of(log.store).roll_back(plan)
    assert (log.keys(), log.there()) == before


def test_a_batch_that_arrives_while_it_goes_back_is_said() -> None:
    """It is in the log above what was deleted: the caller must hear of it."""
    log = written(4)

    class Late(FaultyStore):
        def put(self, key: str, *args: object, **settings: object) -> object:  # type: ignore[override]
            log.add(5)
            return log.store.put(key, *args, **settings)  # type: ignore[arg-type]

    store = Late(log.store)
    with pytest.raises(StaleAttempt):
        output_of(store).roll_back(plan_of(store, 2))
    output_of(log.store).roll_back(plan_of(log.store, 2))
    check_at(log, 2)


@pytest.mark.parametrize(
    "path",
    [
        "memory://unnamed/elsewhere/part-0",
        "memory://unnamed/out/../elsewhere",
        "memory://unnamed/out/%2E%2E/elsewhere",
        "memory://another/out/part-0",
        "memory://unnamed/outside/part-0",
        "memory://unnamed/out/_spark_metadata/0",
        "memory://unnamed/out/_ckpt/pins/a",
        "memory://unnamed/out",
        "file:///etc/passwd",
        "odd://host/out/part-0",
        "",
    ],
)
def test_a_file_outside_the_sink_stops_everything(path: str) -> None:
    """Whoever can write to the log must not delete with our credentials what is elsewhere."""
    log = written(4)
    line = json.dumps({"path": path, "size": 1, "action": "add"})
    log.store.put(f"{LOG}5", f"v1\n{line}".encode())
    before = log.keys(), log.there()
    with pytest.raises(FormatError, match="no file of rows below it"):
        output_of(log.store).plan_roll_back(QUERY, 2)
    assert (log.keys(), log.there()) == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v2\n",
        b"v1\n{",
        b"v1\n[]",
        b'v1\n{"path": 1, "size": 1}',
        b'v1\n{"path": "memory://unnamed/out/a", "size": "1"}',
        b'v1\n{"path": "memory://unnamed/out/a", "size": 1, "action": "delete"}',
    ],
)
def test_an_entry_that_spark_did_not_write_stops_everything(data: bytes) -> None:
    """What it names is not known."""
    log = written(4)
    log.store.put(f"{LOG}5", data)
    with pytest.raises(FormatError):
        output_of(log.store).plan_roll_back(QUERY, 2)


@pytest.mark.parametrize(
    "record",
    [b"", b"[]", b'{"version": 2, "batch": 1, "files": []}', b'{"version": 1, "batch": 1, "files": [1]}']
    + [json.dumps({"version": 1, "files": [name]}).encode() for name in ("../a", "/a", f"{LOG}0", "")],
)
def test_a_record_of_ours_is_not_trusted_either(record: bytes) -> None:
    """It lies in the same directory."""
    log = written(4)
    log.store.put("_ckpt/rollback", record)
    with pytest.raises(FormatError):
        output_of(log.store).plan_roll_back(QUERY, 2)


def test_checksums_of_a_local_disk_go_with_their_files(tmp_path: Path) -> None:
    """Spark dies on a checksum that is left behind, in the log, of whatever it belonged to."""
    path = tmp_path / "the out"
    log = written(21, store=LocalStore(path))
    for file in [*path.rglob("*.parquet"), *(path / "_spark_metadata").iterdir()]:
        (file.parent / f".{file.name}.crc").write_bytes(b"crc")
    (path / "_spark_metadata" / ".22.crc").write_bytes(b"crc")
    output_of(log.store).roll_back(plan_of(log.store, 7))
    left = {file.name for file in (path / "_spark_metadata").iterdir()}
    assert left == {name for number in range(8) for name in (str(number), f".{number}.crc")}
    parts = {file.name for file in path.rglob("*.parquet*")}
    assert parts == {name for file in log.there() for name in _with_checksum(file)}
    check_at(log, 7)


def _with_checksum(file: str) -> tuple[str, str]:
    name = file.rpartition("/")[2]
    return name, f".{name}.crc"


def test_names_are_read_as_spark_spells_them() -> None:
    """A path in the log is a URI: a percent sign in a name is spelled twice over."""
    log = written(0)
    key = "day=a%3Ab/of these/part-00001-00000.parquet"
    log.store.put(key, b"rows")
    spelled = "memory://unnamed/out/day=a%253Ab/of%20these/part-00001-00000.parquet"
    line = json.dumps({"path": spelled, "size": 4, "action": "add"})
    log.store.put(f"{LOG}1", f"v1\n{line}".encode())
    output_of(log.store).roll_back(plan_of(log.store, 0))
    assert key not in log.there()
    check_at(log, 0)


class Elsewhere(MemoryStore):
    """A sink at another place, by its URL."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url


HDFS = "hdfs://name:8020/data/out"
AZURE = "abfss://box@account.dfs.core.windows.net/out"


@pytest.mark.parametrize(
    ("url", "path", "is_below"),
    [
        (HDFS, "hdfs://name:8020/data/out/part-00001-1.parquet", True),
        (HDFS, "hdfs://other:8020/data/out/part-00001-1.parquet", False),
        (HDFS, "hdfs://name:8020/data/other/part-00001-1.parquet", False),
        (HDFS, "hdfs://name:8020/data/out/part?x", False),
        (HDFS, "hdfs://name:8020/data/out/../other", False),
        ("s3://box/out", "s3a://box/out/part-00001-1.parquet", True),
        ("s3://box/out", "s3a://other/out/part-00001-1.parquet", False),
        ("s3://box", "s3a://box/part-00001-1.parquet", True),
        (AZURE, f"{AZURE}/part-00001-1.parquet", True),
        ("az://box/out", f"{AZURE}/part-00001-1.parquet", True),
        (AZURE, f"{AZURE.replace('account', 'other')}/part-00001-1.parquet", False),
        ("gs://box/out", "gs://box/out/part-00001-1.parquet", True),
    ],
)
def test_files_are_known_as_spark_spells_their_place(url: str, path: str, *, is_below: bool) -> None:
    """Host, account and bucket are part of the name, the spelling of the scheme is not."""
    store = Elsewhere(url)
    line = json.dumps({"path": path, "size": 4, "action": "add"})
    store.put(f"{LOG}0", b"v1")
    store.put(f"{LOG}1", f"v1\n{line}".encode())
    if is_below:
        store.put("part-00001-1.parquet", b"rows")
        output_of(store).roll_back(plan_of(store, 0))
        assert [info.key for info in store.list()] == [f"{LOG}0"]
    else:
        with pytest.raises(FormatError, match="no file of rows below it"):
            plan_of(store, 0)
