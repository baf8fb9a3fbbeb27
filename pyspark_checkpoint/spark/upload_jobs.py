"""Uploading state files from the executors: one Spark job, a group of files a task."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from pyspark.sql import SparkSession

from pyspark_checkpoint.capture.large_files import NO_ROOM, NO_ROOM_HINT
from pyspark_checkpoint.capture.server_copy import find_server_copier
from pyspark_checkpoint.capture.upload import UploadedGroup, UploadTarget, upload_group
from pyspark_checkpoint.capture.upload_plan import UploadItem
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.spark.jvm import is_stopping
from pyspark_checkpoint.spark_files.location import FileGone, LocationSpec
from pyspark_checkpoint.store.open import open_object_store

JOB_DESCRIPTION = "checkpoint upload"
_LACKING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_OTHER_VERSION = "PYTHON_VERSION_MISMATCH"
_SHIP = "ship an environment with --archives and set spark.pyspark.python to its bin/python"


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
        """What a task is told of ``target``, which is at ``url``, to compare and upload ``items``."""
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


class ExecutorUploader:
    """Uploads groups of state files in tasks of a Spark job of its own."""

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
        """Upload every group in a task; a task that runs twice leaves an orphan, never a mix."""
        sent = TaskTarget.of(target, self._url, self._options, chain.from_iterable(groups))
        location = LocationSpec(self._location.url, dict(self._location.options))

        def work(group: tuple[UploadItem, ...]) -> tuple[UploadedGroup, str]:
            try:
                return upload_group(location.open(), sent.open(location), group), ""
            except FileGone as error:
                return UploadedGroup(error.uploaded), str(error)

        try:
            context = self._spark.sparkContext
            context.setJobDescription(JOB_DESCRIPTION)
            answers = context.parallelize(list(groups), len(groups)).map(work).collect()
        except Exception as error:
            if is_stopping(self._spark):
                return upload_here(self._location, groups, target)
            _explain(str(error))
            raise
        gone = [problem for _, problem in answers if problem]
        if gone:
            raise FileGone(
                f"an executor does not find a file of the checkpoint location: {gone[0]}",
                hint="with a file: location every node must see the same path",
                uploaded=chain.from_iterable(group.refs for group, _ in answers),
            )
        return [group for group, _ in answers]


def upload_here(
    location: LocationSpec, groups: Sequence[tuple[UploadItem, ...]], target: UploadTarget
) -> list[UploadedGroup]:
    """Upload from this process: the last checkpoint of a Spark that stops, and runs no job any more."""
    opened = location.open()
    return [upload_group(opened, target, group) for group in groups]


def _explain(trouble: str) -> None:
    """Raise what can be said clearly of a job that failed; return for everything else."""
    lacking = _LACKING.search(trouble)
    if lacking is not None:
        raise RefusedError(
            f"the executors' Python lacks {lacking[1]}",
            hint=f"install the same packages on every node, or {_SHIP}",
        ) from None
    if _OTHER_VERSION in trouble:
        raise RefusedError(
            "the executors' Python is of another version than the driver's",
            hint=f"use the same minor version on every node, or {_SHIP}",
        ) from None
    if NO_ROOM in trouble:
        raise RefusedError(f"on an executor {NO_ROOM}", hint=NO_ROOM_HINT) from None
