"""A history at a glance, and how it went."""

from __future__ import annotations

from hypothesis import given

from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind, RequestCount
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import (
    Entry,
    Gap,
    Overview,
    decode_entry,
    entry_of,
    find_gaps,
    find_run_spans,
    gap_limit_ms,
    read_overview,
    usual_interval_ms,
)
from pyspark_checkpoint.store.memory import MemoryStore
from tests.format.strategies import manifests
from tests.support.history_kit import History, draft_of, history_of, stage_one
from tests.support.made_history import make_history


def test_a_new_store_has_nothing_to_show() -> None:
    """No error, no entry."""
    overview = read_overview(MemoryStore())
    assert (overview.entries, overview.newest, overview.savepoint_names) == ((), None, ())


def test_every_checkpoint_is_shown_with_what_it_added() -> None:
    """New bytes are those staged for it; what it shares with its parent is not counted again."""
    store = MemoryStore()
    make_history(store, 3)
    entries = read_overview(store).entries
    assert [(entry.number, entry.epoch) for entry in entries] == [(1, 1), (2, 2), (3, 3)]
    assert entries[0].new_bytes == entries[0].total_size_bytes
    assert entries[2].new_bytes < entries[2].total_size_bytes
    assert all(entry.requests.puts >= 2 for entry in entries)


def test_a_claim_costs_one_put_whatever_its_parent_cost() -> None:
    """It repeats its parent's content, not its cost: neither in the overview nor in the manifest."""
    history, _ = history_of(2)
    claim = history.run("run-b").claim()
    assert claim is not None
    assert claim.requests == RequestCount(puts=1)
    newest = read_overview(history.inner).newest
    assert newest is not None
    assert (newest.kind, newest.new_bytes, newest.staged_ms) == (ManifestKind.CLAIM, 0, None)
    assert newest.requests == RequestCount(puts=1)


def test_a_damaged_and_a_missing_manifest_are_entries() -> None:
    """The rest is there."""
    history, _ = history_of(4)
    history.flip(manifest_key(2))
    history.inner.delete([manifest_key(3)])
    entries = read_overview(history.inner).entries
    assert [entry.problem is None for entry in entries] == [True, False, False, True]
    assert entries[2].problem == "is missing"


def test_pruned_and_deleted_ones_are_left_out_and_savepoints_are_not() -> None:
    """What exists for readers, no more; with a limit, the newest and the savepoints."""
    history, _ = history_of(8)
    store = CheckpointStore(history.store, clock=history.clock)
    store.savepoint("old", 2)
    store.delete_checkpoint(6)
    store.prune(4)
    overview = store.overview()
    assert [entry.number for entry in overview.entries] == [2, 4, 5, 7, 8]
    assert overview.savepoint_names == ("old",)
    assert [entry.number for entry in store.overview(1).entries] == [2, 8]
    assert [(gap.before, gap.after, gap.missing) for gap in find_gaps(overview)] == [(2, 4, 1), (5, 7, 1)]
    assert [(gap.before, gap.missing) for gap in find_gaps(store.overview(1))] == [(2, 2)]


def test_what_is_pruned_while_it_is_read_is_no_damage() -> None:
    """A pruner between the look at the head and the look at a manifest."""
    history, _ = history_of(6)
    state = {"pruned": False}

    def prune_once(call: object) -> None:
        if not state["pruned"] and getattr(call, "key", "") == manifest_key(1):
            state["pruned"] = True
            History(history.inner, history.clock).prune(2)

    history.plan = prune_once
    overview = read_overview(history.store, max_concurrent_reads=1)
    assert state["pruned"]
    assert [entry.number for entry in overview.entries] == [5, 6]


def test_how_long_a_checkpoint_took_is_in_its_ids() -> None:
    """From the first id made for it, to stage under or to publish as, to the commit."""
    history = History()
    run = history.run("run-a")
    attempt = run.attempt()
    ref = stage_one(run, attempt, 1, "rows")
    history.clock.sleep(7)
    run.publish(draft_of(1, (ref,)), attempt)
    newest = read_overview(history.inner).newest
    assert newest is not None
    assert newest.staged_ms is not None
    assert 6_900 < newest.staged_ms <= 7_000


def at(number: int, seconds: int, generation: int = 1, run_id: str = "a") -> Entry:
    return Entry(
        number,
        epoch=number,
        timestamp_ms=seconds * 1000,
        kind=ManifestKind.EPOCH,
        generation=generation,
        run_id=run_id,
    )


def test_a_gap_is_a_pause_far_longer_than_usual() -> None:
    """Five times the median and at least a minute."""
    entries = (at(1, 0), at(2, 20), at(3, 40), at(4, 200), at(5, 220))
    assert usual_interval_ms(entries) == 20_000
    assert gap_limit_ms(entries) == 100_000
    assert find_gaps(Overview(entries=entries)) == [Gap(3, 4, 160_000, 0)]
    assert find_gaps(Overview(entries=(at(1, 0), at(2, 1), at(3, 2), at(4, 50)))) == []


def test_a_damaged_checkpoint_makes_no_gap() -> None:
    """It exists, though it cannot be read."""
    entries = (at(1, 0), Entry(2, problem="is torn"), at(3, 2))
    assert find_gaps(Overview(entries=entries)) == []


def test_runs_are_told_apart_by_generation() -> None:
    """Each with the part that it wrote."""
    entries = (at(1, 0), at(2, 1), at(3, 2, 2, "b"), at(4, 3, 2, "b"), at(5, 4, 3, "c"))
    spans = find_run_spans(entries)
    assert [(one.generation, one.run_id, one.first, one.last, one.count) for one in spans] == [
        (1, "a", 1, 2, 2),
        (2, "b", 3, 4, 2),
        (3, "c", 5, 5, 1),
    ]


def test_progress_of_a_verification_reaches_the_end() -> None:
    """Bytes done rise to bytes in all, also while something is wrong."""
    history, _ = history_of(4)
    seen: list[tuple[int, int]] = []
    store = CheckpointStore(history.store)
    assert list(store.verify(progress=lambda done, total: seen.append((done, total)))) == []
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0
    assert len({total for _, total in seen}) == 1


@given(manifests)
def test_a_look_at_the_bytes_is_a_look_at_the_manifest(manifest: CheckpointManifest) -> None:
    """Whatever a manifest holds: new bytes as its artifacts tell them, sizes and counts as it has them."""
    entry = decode_entry(encode_manifest(manifest), manifest.checkpoint_id, ("a",))
    assert entry == entry_of(manifest, ("a",))
    places = {
        (ref.path, ref.offset, ref.sha256): ref.size_bytes
        for ref in manifest.artifacts()
        if ref.made_by == manifest.checkpoint_id
    }
    assert entry.new_bytes == sum(places.values())
    assert entry.total_size_bytes == manifest.total_size_bytes
    assert entry.object_count == len(manifest.paths())
    assert entry.query == manifest.query
