"""What a restore would do, and everything that it would be refused for. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpoint.capture.commit_log import find_commit
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.ckpt_sink import LinkedSink
from pyspark_checkpoint.registry.queries import plain_options, resolve_root
from pyspark_checkpoint.restorer.api import RestoreRequest, choose_checkpoint, clone_id
from pyspark_checkpoint.restorer.execute import Restore
from pyspark_checkpoint.restorer.plan import RestorePlan
from pyspark_checkpoint.spark_files.location import LocationSpec


@dataclass(frozen=True, slots=True)
class RestorePreview:
    """A restore that would go through."""

    plan: RestorePlan
    manifest: CheckpointManifest
    newest_id: int
    resumes: bool
    """Whether an interrupted restore into the location would go on."""
    sink_target: int | None
    """The checkpoint that the query's table would be rolled back to; None if it stays."""


def preview_restore(
    request: RestoreRequest,
    *,
    clone: bool = False,
    rollback_sink: bool = False,
    options: Mapping[str, str] | None = None,
    location_options: Mapping[str, str] | None = None,
    sink_options: Mapping[str, str] | None = None,
) -> RestorePreview:
    """Plan a restore; refused as the restore itself would be."""
    history = CheckpointStore.open(resolve_root(request.url, request.query, options), options)
    number = choose_checkpoint(history, request)
    manifest = history.load_by_id(number)
    if manifest is None:
        raise RefusedError(f"there is no checkpoint {number}", hint="ckpt list shows what there is")
    sink = LinkedSink(manifest, request.url, options, sink_options)
    target = None if clone else sink.plan(may_roll_back=rollback_sink)
    location = LocationSpec(
        request.to, plain_options(options if location_options is None else location_options)
    ).open()
    restore = Restore(
        history.store,
        history.reader(),
        manifest,
        location,
        query_id=clone_id(location, manifest, SYSTEM_CLOCK) if clone else None,
        point=request.point,
        commit=find_commit(history, manifest),
    )
    place = restore.check()
    return RestorePreview(restore.plan, manifest, max(history.list_ids()), place.resumes, target)
