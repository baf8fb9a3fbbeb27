"""The driver's part of a batch: planning it before the tasks, committing it after them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from pyspark_checkpoint.capture.manifest_builder import build_manifest
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import CheckpointError, Unsupported
from pyspark_checkpoint.format.keys import CheckpointId, parse_attempt_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import TableMode
from pyspark_checkpoint.format.summary import summarize_manifest
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.history.live_set import SummaryCache
from pyspark_checkpoint.history.manifest_reader import exists
from pyspark_checkpoint.history.retention import RetentionPolicy, forget_below, prune_history
from pyspark_checkpoint.history.rules import check_encryption, choose_kind
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.settle import settle_parts
from pyspark_checkpoint.sink.batch_manifest import (
    Batch,
    describe_batch,
    gather,
    has_gap,
    is_of_last_batch,
    prepare_table,
    query_info,
)
from pyspark_checkpoint.sink.batch_plan import SinkPlan, check_owner, other_owner, plan_sink
from pyspark_checkpoint.sink.location_check import only_repartitioned_since
from pyspark_checkpoint.sink.query import WriterFacts, read_offsets
from pyspark_checkpoint.sink.state_commit import commit_state
from pyspark_checkpoint.sink.state_driver import choose_state, seal_before_claim
from pyspark_checkpoint.sink.table_options import WriteOptions
from pyspark_checkpoint.sink.worker_cache import (
    CACHE,
    OpenTable,
    PlannedHead,
    catch_up,
    open_for_writing,
    open_location,
    open_run,
    open_to_plan,
    store_key,
)
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.table.schema import TableSchema

_LOG = logging.getLogger(__name__)
_PRUNING = threading.Lock()


# --- before the tasks ----------------------------------------------------------------------------


def plan_batch(options: WriteOptions, schema: TableSchema, *, streaming: bool, overwrite: bool) -> SinkPlan:
    """Plan the next batch on the newest head; a run that is new, and is not refused, claims the table.

    Raises ``RefusedError`` or ``SettingsError`` if the batch cannot be committed, before any row is read,
    and ``FencedError`` if another run has taken the table over.
    """
    opened, head = open_to_plan(
        options.shared,
        begun=options.facts.begun,
        is_last=lambda manifest: is_of_last_batch(manifest, options.facts),
    )
    check_encryption(head, None if opened.cipher is None else opened.cipher.key_id)

    def plan_on(head: Head | None) -> SinkPlan:
        return _plan_on(head, options, schema, opened, streaming=streaming, overwrite=overwrite)

    run = _find_claimant(options, opened, head, streaming=streaming)
    plan = plan_on(head)
    if run is None or head is None:
        return plan

    def check_newer_head(now: Head) -> None:
        """What the run before has committed since is checked as the head before it was."""
        if now.sha256 != head.sha256:
            check_owner(now, options, streaming=streaming)
            plan_on(now)
        seal_before_claim(options, now.manifest)

    run.claim(check_newer_head)
    CACHE.heads.put(store_key(options.shared), run.head)
    return plan_on(run.head)


def _plan_on(
    head: Head | None,
    options: WriteOptions,
    schema: TableSchema,
    opened: OpenTable,
    *,
    streaming: bool,
    overwrite: bool,
) -> SinkPlan:
    plan = plan_sink(
        head, options, schema, streaming=streaming, overwrite=overwrite, store_id=opened.store_id
    )
    tasks = options.facts.tasks or (plan.table.partitions if plan.table.routed else 0)
    manifest = head.manifest if head is not None and plan.follows else None
    plan = replace(plan, state=choose_state(options, manifest, streaming=streaming, tasks=tasks))
    if opened.cipher is not None:
        held = () if plan.state is None else plan.state.held.values()
        refs = chain(chain.from_iterable(plan.chains.values()), held)
        keys = {ref.data_key_id for ref in refs if ref.data_key_id}
        plan = replace(plan, cipher=opened.cipher.task_cipher(sorted(keys)))
    return plan


def _find_claimant(
    options: WriteOptions, opened: OpenTable, head: Head | None, *, streaming: bool
) -> Run | None:
    """Rule 6: the run that has to claim the table; ``FencedError`` if another one has taken it over.

    None if the run is not known yet, or has claimed it. A query that takes over another one's table does
    so by its first commit, in which its epochs begin.
    """
    facts = options.facts
    if head is None or not streaming or not facts.run_id or head.manifest.run_id == facts.run_id:
        return None
    if check_owner(head, options, streaming=streaming):
        return None
    query = replace(query_info(facts, batch=False), conf=head.manifest.query.conf)
    known = CACHE.runs.find((*store_key(options.shared), facts.run_id))
    run = open_run(options, opened, facts, query, head)
    if known is not None:
        run.refresh()
    return run


# --- after the tasks -----------------------------------------------------------------------------


def commit_batch(
    options: WriteOptions, messages: Sequence[object], *, run_id: str | None = None
) -> CheckpointManifest:
    """Publish what the tasks of a batch have staged: two PUTs and one GET when nothing is unusual.

    Everything that the manifest names is durable before it is created; creating it is the commit.
    ``run_id`` is that of a batch job, which Spark does not give one.
    """
    # 1. What the tasks staged, as one batch.
    batch = gather(messages, options.facts)
    batch = replace(batch, facts=_complete_facts(batch, run_id))

    # 2. The run, on the head that the batch was planned on.
    opened = open_for_writing(options.shared, store_id=batch.plan.store_id)
    query = query_info(batch.facts, batch=batch.plan.table.batch)
    planned = PlannedHead(batch.plan.checkpoint_id - 1, batch.plan.parent_sha256)
    run = open_run(options, opened, batch.facts, query, planned)
    catch_up(run, planned)

    # 3. Whether this batch may follow on that head.
    _refuse_other_owner(run, query.id, options)
    _refuse_unseen(opened.store, batch)
    table = prepare_table(batch, run.head, is_split=_is_repartitioned(run, batch))
    described = describe_batch(batch, run.head, options.shared.path)
    draft = build_manifest(described, table=table)
    choose_kind(draft, run.head)

    # 4. What the manifest names besides the rows becomes durable.
    attempt = CheckpointId(batch.plan.checkpoint_id, SYSTEM_CLOCK.uuid7())
    if batch.plan.table.mode is TableMode.APPEND:
        draft = settle_parts(run.store, draft, batch.plan.table.operator, attempt, run.clock)
        entry = draft.operators[table.record.operator]
        table = replace(table, entry=entry, requests=draft.requests)
    complete = build_manifest(described, commit_state(run, batch), table)

    # 5. The commit, and what is old enough to go.
    manifest = run.publish(complete, attempt)
    prune_if_due(options, run, manifest)
    return manifest


def _complete_facts(batch: Batch, run_id: str | None) -> WriterFacts:
    """The facts with the run of a batch job, and with the offsets where only this process can read them."""
    facts = batch.facts if run_id is None else replace(batch.facts, run_id=run_id)
    if facts.offsets or batch.batch_id < 0 or not facts.checkpoint_location:
        return facts
    return replace(facts, offsets=read_offsets(facts.checkpoint_location, batch.batch_id))


def _refuse_other_owner(run: Run, query_id: str, options: WriteOptions) -> None:
    """Without the jar it is only now known which query this is."""
    owner = "" if run.head is None else run.head.manifest.query.id
    if owner and query_id and owner != query_id and not options.take_over:
        raise other_owner(owner, query_id)


def _refuse_unseen(store: ObjectStore, batch: Batch) -> None:
    """A directory that is not shared by all machines would give a table full of holes."""
    if "://" in store.url and not store.url.startswith("file:"):
        return
    for part in batch.parts:
        refs = [part.ref, part.rewritten.ref if part.rewritten else None]
        refs += [file.ref for file in part.state]
        for path in {ref.path for ref in refs if ref is not None and ref.path is not None}:
            attempt = parse_attempt_key(path)
            if (
                attempt is not None
                and attempt[0].number == batch.plan.checkpoint_id
                and not exists(store, path)
            ):
                raise Unsupported(
                    f"the driver does not see {path}, which a task has written below {store.url}",
                    hint="on several machines the path must be on a disk that all of them share, or in an "
                    "object store",
                )


def _is_repartitioned(run: Run, batch: Batch) -> bool:
    """Whether there are batches between the head and this one that only repartitioned the state."""
    manifest = None if run.head is None else run.head.manifest
    if manifest is None or batch.plan.state is None or not has_gap(batch, manifest):
        return False
    logs = open_location(batch.plan.state.location, run.run_id).logs
    return only_repartitioned_since(manifest, batch, logs)


# --- pruning -------------------------------------------------------------------------------------


def prune_if_due(options: WriteOptions, run: Run, manifest: CheckpointManifest) -> None:
    """Remove old epochs now and then, beside the query; at once if far too many have gathered.

    ``manifest`` was just published. A failure to prune never fails a batch: the next prune finishes what
    this one left.
    """
    head = run.head
    if head is None or options.retain is None:
        return
    known = _summaries(options, head.control.store_id)
    known[manifest.checkpoint_id] = summarize_manifest(manifest)
    forget_below(known, head.control.floor)
    length = head.number - head.control.floor + 1
    slack = max(10, options.retain // 2)
    if length <= options.retain + slack:
        return
    if length > 3 * (options.retain + slack):
        _prune(options, run, head)
    elif _PRUNING.acquire(blocking=False):
        _PRUNING.release()
        threading.Thread(target=_prune, args=(options, run, head), daemon=True).start()


def _summaries(options: WriteOptions, store_id: str) -> SummaryCache:
    """What this process knows of the manifests that a prune looks at."""
    return CACHE.summaries.get((*store_key(options.shared), store_id), dict)


def _prune(options: WriteOptions, run: Run, head: Head) -> None:
    with _PRUNING:
        cache = _summaries(options, head.control.store_id)
        try:
            prune_history(run.store, head, RetentionPolicy(options.retain), run.clock, cache=cache)
        except CheckpointError as error:
            # Old epochs stay a little longer; the table is whole, and so the query goes on.
            _LOG.warning("pruning %s failed: %s", options.shared.path, error)
