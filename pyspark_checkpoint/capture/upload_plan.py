"""What of a capture must be uploaded, and in which groups. Pure.

What an earlier checkpoint has, or what this run has staged for the same one before, is only referenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest, RequestCount
from pyspark_checkpoint.spark_files.inventory import CapturedFile, CapturePlan
from pyspark_checkpoint.spark_files.names import state_directory
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from pyspark_checkpoint.spark_files.versions import FileFacts
from pyspark_checkpoint.store.parallel import group_by_size

GROUP_BYTES = 32 * 1024 * 1024
"""How much one task, or one thread, reads and uploads at a time."""
_NOTHING: Mapping[str, ArtifactRef] = {}


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file as it was when it was captured, and where its bytes are."""

    facts: FileFacts
    ref: ArtifactRef


@dataclass(frozen=True, slots=True)
class UploadItem:
    """A file that must be read. If its bytes are those of ``earlier``, that is named instead."""

    file: CapturedFile
    operator: str
    partition: int
    name: str
    earlier: ArtifactRef | None = None
    sha256: str = ""
    """What its bytes must be, if it was read already; a file that has changed is another."""


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Files to read and upload, and the references that need neither.

    ``here`` goes up from the driver in one object; ``groups`` are for tasks, and empty when all is small.
    """

    here: tuple[UploadItem, ...]
    groups: tuple[tuple[UploadItem, ...], ...]
    reused: Mapping[str, ArtifactRef]


def artifacts_by_path(manifest: CheckpointManifest) -> dict[str, ArtifactRef]:
    """The artifacts of a capture, by their paths in the checkpoint location."""
    return {ref.name: ref for ref in manifest.files} | state_refs(manifest)


def plan_uploads(
    plan: CapturePlan,
    earlier: Mapping[str, ArtifactRef],
    known: Mapping[str, KnownFile],
    opened: Mapping[str, str] | None = None,
    *,
    staged: Mapping[str, ArtifactRef] = _NOTHING,
    group_bytes: int = GROUP_BYTES,
) -> UploadPlan:
    """Decide what must be read. ``earlier`` is what the head names, ``known`` what this process captured.

    A file is the head's without a look if its name is never used twice, or if this process captured
    it and its size and time have not changed. Any other is read, and its digest decides. ``opened`` has
    the digests of files that were looked into while it was planned. ``staged`` are those of the files that
    were staged for this very checkpoint before.
    """
    digests = opened or {}
    reused: dict[str, ArtifactRef] = {}
    needed: list[UploadItem] = []
    for item in _items(plan):
        ref = earlier.get(item.file.path)
        if ref is not None and _is_same(item.file, ref, known.get(item.file.path)):
            reused[item.file.path] = ref
        elif item.file.path in staged:
            reused[item.file.path] = staged[item.file.path]
        else:
            sha256 = digests.get(item.file.path, "")
            needed.append(UploadItem(item.file, item.operator, item.partition, item.name, ref, sha256))
    if sum(item.file.facts.size_bytes for item in needed) <= group_bytes:
        return UploadPlan(tuple(needed), (), reused)
    state = [item for item in needed if item.operator]
    loose = tuple(item for item in needed if not item.operator)
    groups = group_by_size(state, lambda item: item.file.facts.size_bytes, group_bytes)
    return UploadPlan(loose, tuple(groups), reused)


def _is_same(file: CapturedFile, ref: ArtifactRef, known: KnownFile | None) -> bool:
    if file.is_named_once:
        return True
    return known is not None and known.ref == ref and known.facts == file.facts


def _items(plan: CapturePlan) -> Iterator[UploadItem]:
    for operator in plan.operators:
        for partition, files in operator.partitions.items():
            prefix = state_directory(operator.operator, partition)
            for file in files:
                yield UploadItem(file, operator.name, partition, file.path.removeprefix(prefix))
    for file in plan.files:
        yield UploadItem(file, "", -1, file.path)


class StagedFiles:
    """Files that one run has staged for its next checkpoint, and not published yet. For one thread.

    A large first capture may take longer than Spark keeps the files that it began with, and starts over
    with a newer batch; a capture that was prepared finds here what went up before. What is still the same
    file is not uploaded a second time, as long as the next ``checkpoint_id`` is the one that it was staged
    for: by its name, if that is never used twice (RocksDB's tables, files of state format 2), else by size
    and time.
    """

    def __init__(self) -> None:
        self._number = 0
        self._files: dict[str, tuple[CapturedFile, ArtifactRef]] = {}
        self._objects: set[str] = set()
        self.requests = RequestCount()
        """What staging for this number has cost so far."""

    def begin(self, number: int, files: Iterable[CapturedFile]) -> Mapping[str, ArtifactRef]:
        """What can be reused for ``number``, by path: of the files that it needs, those that are unchanged.

        What was staged for another number is that number's.
        """
        if number != self._number:
            self._number, self._files, self._objects = number, {}, set()
            self.requests = RequestCount()
        before, self._files = self._files, {}
        for file in files:
            was, ref = before.get(file.path, (None, None))
            if was is not None and ref is not None and (file.is_named_once or was.facts == file.facts):
                self._files[file.path] = file, ref
        return {path: ref for path, (_, ref) in self._files.items()}

    def add(
        self,
        uploaded: Iterable[tuple[str, ArtifactRef]],
        files: Mapping[str, CapturedFile],
        requests: RequestCount | None = None,
    ) -> None:
        """These are in the store now; ``files`` are those of the plan. Of some the head has the bytes."""
        if requests is not None:
            self.requests = RequestCount.total([self.requests, requests])
        for path, ref in uploaded:
            if ref.path is not None and ref.made_by == self._number:
                self._objects.add(ref.path)
            if path in files:
                self._files[path] = files[path], ref

    def sent(self) -> None:
        """A manifest is on its way that names some of them: it may land, so that nothing is given up."""
        self._objects = set()

    def pop_unused(self) -> tuple[int, list[str]]:
        """The number, and the objects that will not be used. Each is returned once.

        Called when a capture has failed: of files that Spark may write again nothing is kept for the next.
        """
        self._files = {path: kept for path, kept in self._files.items() if kept[0].is_named_once}
        used = {ref.path for _, ref in self._files.values()}
        unused = sorted(self._objects - used)
        self._objects &= used
        return self._number, unused
