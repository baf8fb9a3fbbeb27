"""Whether a query's state is committed with its rows: what the option ``state`` means here and now."""

from __future__ import annotations

import logging

from pyspark_checkpoint.capture.commit_log import seal_head
from pyspark_checkpoint.errors import CheckpointError, SettingsError, Unavailable
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.sink.offset_log import local_directory
from pyspark_checkpoint.sink.state_plan import BY_A_BATCH, StatePlan, plan_state
from pyspark_checkpoint.sink.state_task import open_location
from pyspark_checkpoint.sink.table_options import WriteOptions
from pyspark_checkpoint.sink.worker_cache import ProcessCache
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.names import METADATA

_LOG = logging.getLogger(__name__)
_READABLE: ProcessCache[bool] = ProcessCache()
"""The locations that this process could read."""
_WARNED: ProcessCache[bool] = ProcessCache()
"""What this process has said already: it is true for every batch."""


def choose_state(
    options: WriteOptions, manifest: CheckpointManifest | None, *, streaming: bool, tasks: int
) -> StatePlan | None:
    """The plan of the state, None if only rows are committed.

    ``auto`` commits state where it can; ``on`` refuses where it cannot, before anything is written. So
    does ``auto`` once the run has committed state: a batch without it would be a hole that nobody sees.
    """
    if options.state == "off" or (not streaming and options.state == "auto"):
        return None
    if not streaming:
        raise SettingsError("state=on is for streaming queries", hint="a batch job has no state")
    spec = find_location(options)
    reason = "the checkpoint location is not known to the sink" if spec is None else why_unreadable(spec)
    if spec is not None and reason is None:
        return plan_state(manifest, spec, tasks=tasks)
    begun = _has_state_of(options.facts.run_id, manifest)
    if options.state == "on" or begun:
        what = (
            "this run has committed its state so far, and cannot now" if begun else "state=on cannot work"
        )
        raise SettingsError(
            f"{what}: {reason}",
            hint="give the location by option('checkpointLocation', ...) or add the jar; it must be on a "
            "disk that all machines see, or on S3, GCS or Azure; or set the option state to off",
        )
    if not _WARNED.find((reason,)):
        _LOG.warning("ckpt-sink commits the rows only, without Spark's state: %s", reason)
        _WARNED.put((reason,), True)
    return None


def _has_state_of(run_id: str, manifest: CheckpointManifest | None) -> bool:
    """Whether a batch of this run has committed its state."""
    if manifest is None or not run_id or manifest.run_id != run_id or manifest.kind not in BY_A_BATCH:
        return False
    return manifest.state is not None


def seal_before_claim(options: WriteOptions, manifest: CheckpointManifest) -> None:
    """A run begins: if the last one finished its last batch, its checkpoint can know that from now on.

    A failure costs nothing but that: the checkpoint is then restored to before its batch.
    """
    spec = find_location(options)
    if options.state == "off" or spec is None or manifest.state is None:
        return
    shared = options.shared
    key_file = {} if shared.key_file is None else {"encryptionKeyFile": shared.key_file}
    try:
        history = CheckpointStore.open(shared.path, {**shared.store_options, **key_file})
        seal_head(history, open_location(spec).location)
    except CheckpointError as error:
        _LOG.info("checkpoint %d is not sealed: %s", manifest.checkpoint_id, error)


def find_location(options: WriteOptions) -> LocationSpec | None:
    """The query's checkpoint location, None if nobody has said where it is."""
    url = options.facts.checkpoint_location
    if not url:
        return None
    directory = local_directory(url)
    if directory is not None:
        # Tasks run in directories of their own: a relative path is meant from where the driver is.
        url = str(directory.absolute())
    return LocationSpec(url, options.shared.store_options)


def why_unreadable(spec: LocationSpec) -> str | None:
    """Why the location cannot be read from Python; None if it can.

    A location that does not answer now is an error, also for ``auto``: it would commit this batch without
    its state, and the next one with it.
    """
    key = (spec.url, tuple(sorted(spec.options.items())))
    if _READABLE.find(key):
        return None
    if spec.is_foreign:
        return f"checkpoint locations on {spec.url.partition(':')[0]}: are not read from Python"
    try:
        open_location(spec).location.read(METADATA)
    except Unavailable:
        raise
    except CheckpointError as error:
        return f"the driver cannot read {spec.url}: {error.message}"
    _READABLE.put(key, True)
    return None
