"""Uploading state files of a Hadoop file system from the executors: Spark reads them, tasks upload them.

Python on an executor cannot open such files itself, so Spark's ``binaryFile`` reader hands them over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import orjson
from pyspark.sql import SparkSession

from pyspark_checkpoint.capture.upload import (
    UploadedGroup,
    UploadTarget,
    check_same,
    staged_item,
    upload_bytes,
)
from pyspark_checkpoint.capture.upload_plan import GROUP_BYTES, UploadItem
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.spark.jvm import HadoopFiles, is_stopping
from pyspark_checkpoint.spark.upload_jobs import JOB_DESCRIPTION, TaskTarget, upload_here
from pyspark_checkpoint.spark_files.location import FileGone, LocationSpec

if TYPE_CHECKING:
    import pyarrow as pa

_ANSWER = "answer string"
_ABSENT = ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException")
"""How Spark says that a file is not there: before its job, in it, and from within."""


class HadoopUploader:
    """Uploads groups of state files in one Spark job; how they are spread over tasks is Spark's choice."""

    def __init__(
        self, spark: SparkSession, location: LocationSpec, url: str, options: Mapping[str, str]
    ) -> None:
        self._spark = spark
        self._location = location
        self._url = url
        self._options = options

    def __call__(
        self, groups: Sequence[tuple[UploadItem, ...]], target: UploadTarget
    ) -> list[UploadedGroup]:
        """Upload every file, and say for each where it is."""
        items = {item.file.path: item for group in groups for item in group}
        root = self._location.url.rstrip("/")
        prefix = HadoopFiles(self._spark).qualified_path(root).rstrip("/") + "/"
        sent = TaskTarget.of(target, self._url, self._options)

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow  # noqa: PLC0415 - in the task alone

            opened = sent.open()
            for rows in _portions(_rows(batches, prefix, items)):
                answer = orjson.dumps(_upload(opened, rows)).decode("utf-8")
                yield pyarrow.RecordBatch.from_pydict({"answer": [answer]})

        try:
            self._spark.sparkContext.setJobDescription(JOB_DESCRIPTION)
            files = self._spark.read.format("binaryFile").load([f"{root}/{path}" for path in items])
            frame = files.select("path", "length", "content")
            answers = [orjson.loads(row[0]) for row in frame.mapInArrow(work, _ANSWER).collect()]
        except Exception as error:
            if is_stopping(self._spark):
                return upload_here(self._location, groups, target)
            if any(word in str(error) for word in _ABSENT):
                raise FileGone("a file that was listed is gone from the checkpoint location") from None
            raise
        gone = [answer["gone"] for answer in answers if "gone" in answer]
        if gone:
            done = [_decoded(answer) for answer in answers if "gone" not in answer]
            raise FileGone(gone[0], uploaded=chain.from_iterable(group.refs for group in done))
        return [_decoded(answer) for answer in answers]


def _rows(
    batches: Iterable[pa.RecordBatch], prefix: str, items: Mapping[str, UploadItem]
) -> Iterator[tuple[UploadItem, bytes]]:
    for batch in batches:
        for path, content in zip(batch.column(0), batch.column(2), strict=True):
            name = unquote(urlsplit(path.as_py()).path).removeprefix(prefix)
            yield items[name], content.as_py()


def _portions(rows: Iterator[tuple[UploadItem, bytes]]) -> Iterator[list[tuple[UploadItem, bytes]]]:
    portion: list[tuple[UploadItem, bytes]] = []
    size = 0
    for item, data in rows:
        portion.append((item, data))
        size += len(data)
        if size >= GROUP_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _upload(target: UploadTarget, rows: Sequence[tuple[UploadItem, bytes]]) -> dict[str, Any]:
    try:
        for item, data in rows:
            check_same(item, data)
    except FileGone as error:
        return {"gone": error.message}
    done = upload_bytes(target, [item for item, _ in rows], [staged_item(*row) for row in rows])
    return {"refs": [[path, asdict(ref)] for path, ref in done.refs], "requests": asdict(done.requests)}


def _decoded(answer: dict[str, Any]) -> UploadedGroup:
    refs = tuple((path, ArtifactRef(**fields)) for path, fields in answer["refs"])
    return UploadedGroup(refs, RequestCount(**answer["requests"]))
