"""Uploading state files from the executors, in a Spark job of its own.

``ExecutorUploader``: a group of files a task; each task opens location and store itself. ``HadoopUploader``
is for locations on HDFS and other Hadoop file systems, which Python on an executor cannot open: Spark's
``binaryFile`` reader hands the files to the tasks. A task that runs twice leaves an orphan, never a mix.
When Spark is stopping and runs no job any more, the driver uploads the last checkpoint itself.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

import orjson
from pyspark.sql import SparkSession

from pyspark_checkpoint.capture.upload import (
    GONE_HINT,
    NO_ROOM,
    NO_ROOM_HINT,
    UploadedGroup,
    UploadTarget,
    check_same,
    find_server_copier,
    staged_item,
    upload_bytes,
    upload_group,
)
from pyspark_checkpoint.capture.upload_plan import GROUP_BYTES, UploadItem
from pyspark_checkpoint.errors import RefusedError, Unsupported
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.spark.jvm import HadoopFiles, is_stopping
from pyspark_checkpoint.spark_files.location import FileGone, LocationSpec
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.store.parallel import group_by_size

if TYPE_CHECKING:
    import pyarrow as pa

JOB_DESCRIPTION = "checkpoint upload"
_ANSWER = "answer string"
_ABSENT = ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException")
"""How Spark says that a file is not there: before its job, in it, and from within."""
_LACKING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_OTHER_VERSION = "PYTHON_VERSION_MISMATCH"
_SHIP = "ship an environment with --archives and set spark.pyspark.python to its bin/python"
Groups = Sequence[tuple[UploadItem, ...]]


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """``UploadTarget`` as it travels: the store by its URL, the cipher with data keys only."""

    url: str
    number: int
    store_id: str
    cipher: Cipher | None = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(
        target: UploadTarget, url: str, options: Mapping[str, str], items: Iterable[UploadItem] = ()
    ) -> TaskTarget:
        """What a task needs of ``target``, which is at ``url``, to compare and upload ``items``."""
        cipher = target.cipher
        if isinstance(cipher, StoreCipher):
            earlier = (item.earlier for item in items if item.earlier is not None)
            cipher = cipher.task_cipher(sorted({ref.data_key_id for ref in earlier if ref.data_key_id}))
        return TaskTarget(url, target.number, target.store_id, cipher, dict(options))

    def open(self, location: LocationSpec | None = None) -> UploadTarget:
        """Open it in the task; files of ``location`` are copied by the server where it has both."""
        copier = None if location is None else find_server_copier(location, self.url, self.options)
        store = open_object_store(self.url, self.options)
        return UploadTarget(store, self.number, self.store_id, self.cipher, copier)


class _UploadJob(ABC):
    """Uploads groups of state files of ``location`` to the store at ``url``; returns where each file is."""

    _gone_hint: ClassVar[str] = "with a file: location every node must see the same path"

    def __init__(
        self, spark: SparkSession, location: LocationSpec, url: str, options: Mapping[str, str]
    ) -> None:
        self._spark = spark
        self._location = location
        self._url = url
        self._options = options

    def __call__(self, groups: Groups, target: UploadTarget) -> list[UploadedGroup]:
        """Upload every file of the groups.

        Raises:
            FileGone: A file is not the one that was planned with; ``uploaded`` says what is in the store.
            RefusedError: The executors cannot do it; the hint says what they lack.
        """
        try:
            self._spark.sparkContext.setJobDescription(JOB_DESCRIPTION)
            answers = self._run(groups, target)
        except Exception as error:
            if is_stopping(self._spark):
                location = self._location.open()
                return [upload_group(location, target, group) for group in groups]
            self._explain(str(error))
            raise
        gone = [problem for _, problem in answers if problem]
        if gone:
            raise FileGone(
                f"an executor does not find a file of the checkpoint location: {gone[0]}",
                hint=self._gone_hint,
                uploaded=chain.from_iterable(group.refs for group, _ in answers),
            )
        return [group for group, _ in answers]

    @abstractmethod
    def _run(self, groups: Groups, target: UploadTarget) -> list[tuple[UploadedGroup, str]]:
        """Run the job: what each task has uploaded, and which file it did not find, if any."""

    def _explain(self, problem: str) -> None:
        """Raise what can be said clearly of a job that failed; return for everything else."""
        lacking = _LACKING.search(problem)
        if lacking is not None:
            raise Unsupported(
                f"the executors' Python lacks {lacking[1]}",
                hint=f"install the same packages on every node, or {_SHIP}",
            ) from None
        if _OTHER_VERSION in problem:
            raise Unsupported(
                "the executors' Python is of another version than the driver's",
                hint=f"use the same minor version on every node, or {_SHIP}",
            ) from None
        if NO_ROOM in problem:
            raise RefusedError(f"on an executor {NO_ROOM}", hint=NO_ROOM_HINT) from None


class ExecutorUploader(_UploadJob):
    """Uploads each group in a task of its own."""

    def _run(self, groups: Groups, target: UploadTarget) -> list[tuple[UploadedGroup, str]]:
        sent = TaskTarget.of(target, self._url, self._options, chain.from_iterable(groups))
        location = LocationSpec(self._location.url, dict(self._location.options))

        def work(group: tuple[UploadItem, ...]) -> tuple[UploadedGroup, str]:
            try:
                return upload_group(location.open(), sent.open(location), group), ""
            except FileGone as error:
                return UploadedGroup(error.uploaded), str(error)

        return self._spark.sparkContext.parallelize(list(groups), len(groups)).map(work).collect()


class HadoopUploader(_UploadJob):
    """Uploads files that only Hadoop can open; how they are spread over tasks is Spark's choice."""

    _gone_hint = GONE_HINT

    def _run(self, groups: Groups, target: UploadTarget) -> list[tuple[UploadedGroup, str]]:
        items = {item.file.path: item for group in groups for item in group}
        root = self._location.url.rstrip("/")
        prefix = HadoopFiles(self._spark).qualified_path(root).rstrip("/") + "/"
        sent = TaskTarget.of(target, self._url, self._options)

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow  # noqa: PLC0415 - in the task alone

            opened = sent.open()
            found = _rows(batches, prefix, items)
            for rows in group_by_size(found, lambda row: len(row[1]), GROUP_BYTES):
                answer = orjson.dumps(_upload(opened, rows)).decode("utf-8")
                yield pyarrow.RecordBatch.from_pydict({"answer": [answer]})

        files = self._spark.read.format("binaryFile").load([f"{root}/{path}" for path in items])
        frame = files.select("path", "length", "content")
        return [_decoded(orjson.loads(row[0])) for row in frame.mapInArrow(work, _ANSWER).collect()]

    def _explain(self, problem: str) -> None:
        if any(word in problem for word in _ABSENT):
            text = "a file that was listed is gone from the checkpoint location"
            raise FileGone(text, hint=self._gone_hint) from None
        super()._explain(problem)


def _rows(
    batches: Iterable[pa.RecordBatch], prefix: str, items: Mapping[str, UploadItem]
) -> Iterator[tuple[UploadItem, bytes]]:
    for batch in batches:
        for path, content in zip(batch.column(0), batch.column(2), strict=True):
            name = unquote(urlsplit(path.as_py()).path).removeprefix(prefix)
            yield items[name], content.as_py()


def _upload(target: UploadTarget, rows: Sequence[tuple[UploadItem, bytes]]) -> dict[str, Any]:
    try:
        for item, data in rows:
            check_same(item, data)
    except FileGone as error:
        return {"gone": error.message}
    done = upload_bytes(target, [item for item, _ in rows], [staged_item(*row) for row in rows])
    return {"refs": [[path, asdict(ref)] for path, ref in done.refs], "requests": asdict(done.requests)}


def _decoded(answer: dict[str, Any]) -> tuple[UploadedGroup, str]:
    refs = tuple((path, ArtifactRef(**fields)) for path, fields in answer.get("refs", ()))
    return UploadedGroup(refs, RequestCount(**answer.get("requests", {}))), answer.get("gone", "")
