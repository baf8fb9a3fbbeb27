"""Spark's ``commits/N``, which is written after the sink has committed N: finding it, and sealing with it.

The next batch's manifest carries it. A checkpoint that has no next one, because the query idles or
stopped, or whose next one may be pruned, because it is a savepoint, is sealed with it. Needs no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError, FormatError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.format.records import Seal
from pyspark_checkpoint.history.artifact_reader import WantedArtifact
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.manifest_reader import LoadedManifest, find_manifest
from pyspark_checkpoint.history.seal import find_seal, write_seal
from pyspark_checkpoint.history.sink_status import origins
from pyspark_checkpoint.registry.queries import check_named_location, plain_options
from pyspark_checkpoint.spark_files.divergence import decisive_files, parsed_files
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone, LocationSpec
from pyspark_checkpoint.spark_files.logs import decode_commit_log, decode_query_id
from pyspark_checkpoint.spark_files.names import METADATA, commits_file, offsets_file
from pyspark_checkpoint.spark_files.restore_points import check_commit
from pyspark_checkpoint.spark_files.state_artifacts import state_owners, state_refs

_LOG = logging.getLogger(__name__)
_MAX_STARTS = 50
"""How many starts that died before they had copied a seal are skipped."""


def find_commit(history: CheckpointStore, manifest: CheckpointManifest) -> bytes | None:
    """What Spark wrote to ``commits/N`` of a checkpoint of rows and state; None if that is not known.

    From its seal, or from the manifest of the next batch. A claim or a rollback whose writer died before it
    had copied the seal has the commit log of the checkpoint that it repeats: without that, a restore which
    died there would restore something else when it is repeated. A rerun of the batch gave other rows and
    state, and its log is not this checkpoint's. A damaged record counts as absent.
    """
    record = manifest.state
    if record is None:
        return None
    try:
        said = origins(history.store, manifest, mac=history.authenticator(), limit=_MAX_STARTS)
        seen: set[int] = set()
        found = (_find_commit(history, origin, record, seen) for origin in said)
        return next((commit for commit in found if commit is not None), None)
    except FormatError as error:
        _LOG.warning("what follows checkpoint %d cannot be read: %s", manifest.checkpoint_id, error)
        return None


def _find_commit(
    history: CheckpointStore, manifest: CheckpointManifest, record: StateRecord, seen: set[int]
) -> bytes | None:
    """From the checkpoint on through its claims; those that were ``seen`` are skipped."""
    name, store = commits_file(record.batch_id), history.store
    current = find_manifest(store, manifest.checkpoint_id, mac=history.authenticator())
    while current is not None and current.number not in seen:
        seen.add(current.number)
        seal = _find_seal_with(history, current.manifest, name)
        if seal is not None:
            return seal.files[name]
        following = _next_of(history, current)
        if following is None or following.manifest.kind is not ManifestKind.CLAIM:
            return _carried(history, record, manifest, following)
        current = following
    return None


def keep_commit(
    history: CheckpointStore,
    manifest: CheckpointManifest,
    commit: bytes,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Seal | None:
    """Seal a checkpoint with ``commits/N``, whose content is known to belong to it."""
    record = manifest.state
    if record is None:
        return None
    return write_seal(
        history.store,
        manifest,
        {commits_file(record.batch_id): commit},
        clock,
        check=commit_problem,
        mac=history.authenticator(),
    )


def seal_head(
    history: CheckpointStore, location: CheckpointLocation, *, clock: Clock = SYSTEM_CLOCK
) -> Seal | None:
    """Seal the newest checkpoint if Spark has finished its batch; None if it has not, or has no state.

    The log is read before the head is read once more: if the head is still the same, no later attempt
    of the batch can have written it. Refused (rule 12) if the location's state is not the manifest's.
    """
    head = history.load_latest()
    record = None if head is None else head.state
    if head is None or record is None:
        return None
    name = commits_file(record.batch_id)
    there = _find_seal_with(history, head, name)
    if there is not None:
        return there
    try:
        commit = location.read(name)
        problem = _other_location(history, head, record, location)
    except FileGone:
        return None
    newest = history.load_latest()
    if problem is not None or newest is None or newest.checkpoint_id != head.checkpoint_id:
        _LOG.info("checkpoint %d is not sealed: %s", head.checkpoint_id, problem or "it has a successor")
        return None
    return keep_commit(history, head, commit, clock=clock)


def seal_known(
    history: CheckpointStore,
    number: int,
    options: Mapping[str, str] | None = None,
    *,
    typed_url: str | None = None,
) -> None:
    """Seal a checkpoint with what is known of its batch, so that it can do without its successor.

    Where nothing is known yet, the query's own location is asked, if it can be reached from here.
    ``typed_url`` is what the user gave to get here, if that is not the history's own URL.
    """
    manifest = history.load_by_id(number)
    record = None if manifest is None else manifest.state
    if manifest is None or record is None:
        return
    commit = find_commit(history, manifest)
    if commit is None:
        try:
            named = manifest.query.checkpoint_location
            check_named_location(named, typed_url or history.store.url, options)
            location = LocationSpec(named, plain_options(options))
            seal_head(history, location.open())
        except CheckpointError as error:
            _LOG.info("checkpoint %d is not sealed: %s", number, error)
        commit = find_commit(history, manifest)  # its successor, if it has one by now, carries it
    if commit is not None and _find_seal_with(history, manifest, commits_file(record.batch_id)) is None:
        keep_commit(history, manifest, commit)  # in an encrypted store that needs its keys


def _find_seal_with(history: CheckpointStore, manifest: CheckpointManifest, name: str) -> Seal | None:
    """The seal of a checkpoint, if it has this file."""
    seal = find_seal(history.store, manifest, mac=history.authenticator())
    return seal if seal is not None and name in seal.files else None


def commit_problem(manifest: CheckpointManifest, files: Mapping[str, bytes]) -> str | None:
    """Rule 12: why the files do not belong to what the manifest names; None if they do."""
    record = manifest.state
    if record is None:
        return "it has no state of Spark"
    name = commits_file(record.batch_id)
    if set(files) != {name}:
        return f"{name} and nothing else seals it"
    return check_commit(record, state_refs(manifest), decode_commit_log(files[name], name))


def _next_of(history: CheckpointStore, current: LoadedManifest) -> LoadedManifest | None:
    """The manifest after ``current``, which proves by its parent's digest that it is."""
    following = find_manifest(history.store, current.number + 1, mac=history.authenticator())
    if following is None or following.manifest.parent_sha256 != current.sha256:
        return None
    return following


def _carried(
    history: CheckpointStore,
    record: StateRecord,
    manifest: CheckpointManifest,
    following: LoadedManifest | None,
) -> bytes | None:
    if following is None or following.manifest.kind is not ManifestKind.EPOCH:
        return None
    if following.manifest.query.id != manifest.query.id or following.manifest.epoch != manifest.epoch + 1:
        return None
    name = commits_file(record.batch_id)
    ref = _find_file(following.manifest, name)
    if ref is None:
        return None
    commit = history.reader().read(ref)
    return None if commit_problem(manifest, {name: commit}) is not None else commit


def _find_file(manifest: CheckpointManifest, name: str) -> ArtifactRef | None:
    return next((ref for ref in manifest.files if ref.name == name), None)


def _other_location(
    history: CheckpointStore,
    manifest: CheckpointManifest,
    record: StateRecord,
    location: CheckpointLocation,
) -> str | None:
    """Why a location is not the one that a checkpoint was made from; None if it is."""
    if decode_query_id(location.read(METADATA)) != manifest.query.id:
        return "the location is of another query"
    name = offsets_file(record.batch_id)
    ref = _find_file(manifest, name)
    if ref is None or history.reader().read(ref) != location.read(name):
        return f"{name} is another one"
    refs, owners, reader = state_refs(manifest), state_owners(manifest), history.reader()
    for path in decisive_files(parsed_files(refs), record.batch_id + 1):
        if not reader.has_bytes(WantedArtifact(refs[path], *owners[path]), location.read(path)):
            return f"{path} has other bytes"
    return None
