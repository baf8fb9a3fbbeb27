"""A stateful query without Spark: its checkpoint location, its state and its sink, step by step.

It counts keys. State is kept as Spark keeps it: a change file a version and partition, snapshots that
maintenance adds later, in format version 1 or 2; or a snapshot a version, as RocksDB does without a
changelog. The sink is the real one. Whatever it is told to do
can end after any step, as if the driver had been killed there. Some rows can be left out by chance, in
each attempt of a batch others: a query with ``rand()``.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_checkpoint.capture.commit_log import find_commit
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.execute import RestoreReport
from pyspark_checkpoint.sink.worker_cache import CACHE, OpenLocation, location_key
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.store.local.local_store import LocalStore
from tests.support.sink_kit import Query, offsets_text, read_pairs, rows_from

QUERY_ID = "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11"
KEYS = 7
STEPS = ("offsets", "first state", "state", "staged", "published", "committed")
"""Where a batch can end: after each of these."""


class Killed(Exception):
    """The driver died on purpose."""


@dataclass
class MadeStream:
    """A query, its checkpoint location and its table."""

    root: Path
    version: int = 1
    zips: bool = False
    """Whether each version is a snapshot of its own: RocksDB without a changelog, in format version 1."""
    partitions: int = 2
    """Of its state; 0 for a query without, which passes a row a batch."""
    chance: random.Random | None = None
    """Leaves rows out, other ones in each attempt; None for a query that does the same every time."""
    options: dict[str, str] = field(default_factory=dict)
    once: bool = True
    """Whether Spark runs each task once, and says so; else every commit looks at the whole location."""
    query_id: str = QUERY_ID
    ids: list[str] = field(default_factory=list)
    """The unique ids of the newest attempt, by partition."""
    winners: dict[int, list[str]] = field(default_factory=dict)
    """The same of the batches that are done."""
    file_source: bool = False
    """Whether the input is files, of which the source keeps a log."""
    offsets_note: str = ""
    """Part of every offset: with another one every batch ends elsewhere."""
    locations: int = 0
    ticks: int = 1_700_000_000_000

    def __post_init__(self) -> None:
        self.table = self.root / "table"
        self.location: Path
        self._begin_location()
        self.write("metadata", json.dumps({"id": self.query_id}))
        if self.partitions:
            self._declare_operator()
        self.start()

    def _declare_operator(self) -> None:
        info = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [{"storeName": "default", "numPartitions": self.partitions}],
        }
        self.write("state/0/_metadata/metadata", "v1\n" + json.dumps(info))

    # --- the query -----------------------------------------------------------------------------------

    def start(self) -> None:
        """A new run: nothing is remembered but what is on disk."""
        CACHE.forget()
        options = {"checkpointLocation": str(self.location), "retain": "all", **self.options}
        self.query = Query(
            str(self.table),
            query_id=self.query_id,
            options=options,
            output_mode="update",
            tasks=2,
            once=self.once,
        )

    def next_batch(self) -> int:
        """The batch that Spark runs next: the last one that is not committed, else a new one."""
        started = {int(path.name) for path in (self.location / "offsets").glob("[0-9]*")}
        done = {int(path.name) for path in (self.location / "commits").glob("[0-9]*")}
        return max(started - done, default=max(done, default=-1) + 1)

    def run(self, batches: int = 1) -> None:
        """Run batches to their ends."""
        for _ in range(batches):
            self.batch()

    def batch(self, *, stop_after: str = "committed") -> CheckpointManifest:
        """Run the next batch; it ends by ``Killed`` after ``stop_after``, unless that is its last step."""
        number = self.next_batch()
        if self.file_source:
            self.write(f"sources/0/{number}", f"v1\n{number}")
        self.write(f"offsets/{number}", self.offsets(number))
        self._reached("offsets", stop_after)
        plan = self.query.plan()
        changed: list[tuple[int | None, int]] = []
        self.ids = []
        for partition in range(self.partitions):
            uid, totals = self._commit_state(partition, number)
            self.ids.append(uid)
            changed += totals.items()
            if partition == 0:
                self._reached("first state", stop_after)
        if not self.partitions:
            changed.append((number, 1))
        self._reached("state", stop_after)
        messages = self.query.write(plan, number, rows_from(changed))
        self._reached("staged", stop_after)
        manifest = self.query.commit(messages, number, offsets=self.offsets(number))
        self._reached("published", stop_after)
        self.finish(number)
        return manifest

    def offsets(self, number: int) -> str:
        """What Spark writes to ``offsets/N``."""
        version, head, source = offsets_text(number, self.offsets_note).split("\n")
        pinned = {**json.loads(head), "conf": {PARTITIONS: str(self.partitions)}}
        last = f'{{"logOffset":{number}}}' if self.file_source else source
        return "\n".join([version, json.dumps(pinned), last])

    def finish(self, number: int) -> None:
        """Spark writes down that a batch is done, and in format version 2 whose files count."""
        self.winners[number] = list(self.ids)
        log: dict[str, Any] = {"nextBatchWatermarkMs": number * 1000}
        if self.version == 2:
            log["stateUniqueIds"] = {"0": [[uid] for uid in self.ids]}
        self.write(f"commits/{number}", f"v{self.version}\n{json.dumps(log)}")

    def commit_rows(self, totals: dict[int, int]) -> CheckpointManifest:
        """What the sink does for a batch whose state is written; its rows are all totals."""
        number = self.next_batch()
        plan = self.query.plan()
        messages = self.query.write(plan, number, rows_from(list(totals.items())))
        return self.query.commit(messages, number, offsets=self.offsets(number))

    def maintain(self, version: int) -> None:
        """What Spark's maintenance does when it likes: a snapshot of a version, from what is there."""
        for partition in range(self.partitions):
            change = self._change_of(partition, version)
            if change is not None:
                self._write_snapshot(change, self.state(partition, version))

    def repartition(self, partitions: int) -> None:
        """What Spark's offline repartition does: a batch of its own, without rows."""
        last = self.next_batch() - 1
        totals = self.whole_state(last + 1)
        self.partitions = partitions
        version, _, source = self.offsets(last).split("\n")
        head = json.loads((self.location / "offsets" / str(last)).read_text().split("\n")[1])
        head["conf"][PARTITIONS] = str(partitions)
        self.write(f"offsets/{last + 1}", "\n".join([version, json.dumps(head), source]))
        self.ids = [SYSTEM_CLOCK.uuid7() for _ in range(partitions)]
        for partition, uid in enumerate(self.ids):
            part = {key: value for key, value in totals.items() if key % partitions == partition}
            name = f"{last + 2}_{uid}" if self.version == 2 else f"{last + 2}"
            self._write_snapshot(Path(f"state/0/{partition}/{name}.delta"), part)
        self.finish(last + 1)

    @contextmanager
    def snapshots_hidden(self) -> Iterator[None]:
        """Inside, there are no snapshots of HDFS-backed stores: Spark has in memory what it needs."""
        hidden = {path: path.with_name(f".{path.name}") for path in self.location.rglob("*.snapshot")}
        for path, aside in hidden.items():
            path.rename(aside)
        yield
        for path, aside in hidden.items():
            aside.rename(path)

    # --- disasters -----------------------------------------------------------------------------------

    def lose_location(self) -> None:
        """The disk is gone."""
        shutil.rmtree(self.location)

    def restore(self, **arguments: Any) -> RestoreReport:
        """Restore into a fresh location, and start from there."""
        self._begin_location()
        report = restore(
            str(self.table), str(self.location), options=self.keys(), location_options={}, **arguments
        )
        self.touch_all()
        self.start()
        return report

    def watch(self, store: LocalStore, run_id: str | None = None) -> None:
        """Let this run, or another, see the location through a store."""
        spec = LocationSpec(str(self.location))
        location = CheckpointLocation(spec, store)
        key = (*location_key(spec), self.query.run_id if run_id is None else run_id)
        CACHE.locations.put(key, OpenLocation(location, LocationLogs(location)))

    def touch_all(self) -> None:
        """A restored location has times of its own."""
        for path in self.location.rglob("*"):
            if path.is_file():
                self._touch(path)

    # --- what is there -------------------------------------------------------------------------------

    def state(self, partition: int, version: int) -> dict[int, int]:
        """What Spark loads: the newest snapshot, and the changes after it."""
        directory = self.location / "state" / "0" / str(partition)
        totals: dict[int, int] = {}
        changes: list[Path] = []
        while version > 0:
            change = self._change_of(partition, version)
            snapshot = next(iter(directory.glob(f"{version}{_uid_of(change)}.[sz]*")), None)
            if snapshot is not None:
                totals = read_snapshot(snapshot)
                break
            assert change is not None, f"Spark does not find version {version} of partition {partition}"
            changes.append(self.location / change)
            version -= 1
        for path in reversed(changes):
            totals |= dict(json.loads(path.read_text()))
        return totals

    def whole_state(self, version: int) -> dict[int, int]:
        """The state of all partitions."""
        found: dict[int, int] = {}
        for partition in range(self.partitions):
            found |= self.state(partition, version)
        return found

    def rows(self, **options: str) -> dict[int | None, int]:
        """The table."""
        CACHE.forget()
        return dict(read_pairs(str(self.table), **self.keys(), **options))

    def history(self) -> CheckpointStore:
        """The one history that rows and state are in."""
        return CheckpointStore.open(str(self.table), self.keys())

    def keys(self) -> dict[str, str]:
        """The options that an encrypted table is opened with."""
        return {name: value for name, value in self.options.items() if name == "encryptionKeyFile"}

    def knows_after(self, manifest: CheckpointManifest) -> bool:
        """Whether Spark is known to have finished a checkpoint's batch."""
        return find_commit(self.history(), manifest) is not None

    def stored_state(self, manifest: CheckpointManifest, point: str | None) -> dict[int, int]:
        """The state that a checkpoint restores to a point, as Spark would load it there."""
        here, number = self.location, self.locations
        self._begin_location()
        report = restore(
            str(self.table),
            str(self.location),
            at=manifest.checkpoint_id,
            point=point,
            clone=True,
            options=self.keys(),
            location_options={},
        )
        self.touch_all()
        found = self.whole_state(manifest.epoch + (report.point is RestorePoint.AFTER))
        self.lose_location()
        self.location, self.locations = here, number
        return found

    # --- how Spark writes ----------------------------------------------------------------------------

    def _commit_state(self, partition: int, number: int) -> tuple[str, dict[int, int]]:
        before = self.state(partition, number)
        counts = Counter(
            key
            for key in input_keys(number)
            if key % self.partitions == partition and (self.chance is None or self.chance.random() < 0.8)
        )
        changed = {key: before.get(key, 0) + count for key, count in counts.items()}
        uid = SYSTEM_CLOCK.uuid7()
        if self.zips:
            self._write_snapshot(Path(f"state/0/{partition}/{number + 1}.delta"), {**before, **changed})
            return uid, changed
        name = f"{number + 1}_{uid}.changelog" if self.version == 2 else f"{number + 1}.delta"
        self.write(f"state/0/{partition}/{name}", json.dumps(sorted(changed.items())))
        return uid, changed

    def _change_of(self, partition: int, version: int) -> Path | None:
        """The change file that counts: in version 2 the commit log says which, or there is one only."""
        directory = Path("state") / "0" / str(partition)
        if self.version == 1:
            path = directory / f"{version}.delta"
            return path if (self.location / path).exists() else None
        log = self.location / "commits" / str(version - 1)
        if not log.exists():
            found = {path.stem for path in (self.location / directory).glob(f"{version}_*")}
            return directory / f"{found.pop()}.changelog" if len(found) == 1 else None
        uid = json.loads(log.read_text().split("\n")[1])["stateUniqueIds"]["0"][partition][0]
        return directory / f"{version}_{uid}.changelog"

    def _write_snapshot(self, change: Path, totals: dict[int, int]) -> None:
        """One file in HDFS-backed stores; in RocksDB a zip that names a file which its snapshots share."""
        state = json.dumps(sorted(totals.items()))
        if self.version == 1 and not self.zips:
            self.write(str(change.with_suffix(".snapshot")), state)
            return
        shared = f"{SYSTEM_CLOCK.uuid7()}.sst"
        self.write(f"{change.parent}/SSTs/{shared}", state)
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as archive:
            names = {"sstFiles": [{"dfsSstFileName": shared}], "logFiles": []}
            archive.writestr("metadata", "v1\n" + json.dumps(names))
        self.write(str(change.with_suffix(".zip")), body.getvalue())

    def _begin_location(self) -> None:
        self.locations += 1
        self.location = self.root / f"location-{self.locations}"

    def write(self, name: str, data: str | bytes) -> None:
        path = self.location / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        self._touch(path)

    def _touch(self, path: Path) -> None:
        """Later than everything before, also on a disk with coarse times."""
        self.ticks += 10
        os.utime(path, ns=(self.ticks * 1_000_000, self.ticks * 1_000_000))

    @staticmethod
    def _reached(step: str, stop_after: str) -> None:
        if step == stop_after:
            raise Killed(step)


def key_ring(directory: Path) -> dict[str, str]:
    """The options of a table that is encrypted, and a key ring for it."""
    ring = directory / "keys.json"
    key = base64.b64encode(bytes(range(32))).decode()
    ring.write_text(json.dumps({"active": "k", "keys": {"k": key}}))
    ring.chmod(0o600)
    return {"encryptionKeyFile": str(ring)}


def _uid_of(change: Path | None) -> str:
    name = "" if change is None else change.stem
    return name[name.index("_") :] if "_" in name else ""


def read_snapshot(path: Path) -> dict[int, int]:
    """The state that a snapshot holds."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = json.loads(archive.read("metadata").decode().split("\n")[1])
        path = path.parent / "SSTs" / names["sstFiles"][0]["dfsSstFileName"]
    return dict(json.loads(path.read_text()))


def input_keys(number: int) -> list[int]:
    """The rows of a batch: the same in every attempt."""
    chance = random.Random(number)
    return [chance.randrange(KEYS) for _ in range(6)]


def totals_after(number: int) -> dict[int, int]:
    """What the query has counted after a batch, if no row was left out."""
    return dict(Counter(key for batch in range(number + 1) for key in input_keys(batch)))
