"""Which epochs a stream of changes serves, and when it must not go on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.manifest_parts import FeedPosition
from pyspark_checkpoint.table.feed import (
    NOTHING_SERVED,
    FeedEntry,
    find_newest,
    find_newest_backwards,
    plan_feed,
)

E, R, B, C, T = (
    ManifestKind.EPOCH,
    ManifestKind.REPLACEMENT,
    ManifestKind.ROLLBACK,
    ManifestKind.CLAIM,
    ManifestKind.TOMBSTONE,
)


def history(*steps: tuple[ManifestKind, int], first: int = 1, final: bool = False) -> list[FeedEntry]:
    entries = [FeedEntry(first + at, epoch, kind) for at, (kind, epoch) in enumerate(steps)]
    if final:
        last = entries[-1]
        entries[-1] = FeedEntry(last.checkpoint_id, last.epoch, last.kind, final=True)
    return entries


def served(entries: list[FeedEntry], after: FeedPosition = NOTHING_SERVED) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.checkpoint_id) for entry in plan_feed(entries, after)]


def test_the_newest_epoch_waits_until_it_is_final() -> None:
    """It may still be replaced; a later epoch, or a seal, makes it final."""
    assert served(history((E, 0), (E, 1))) == [(0, 1)]
    assert served(history((E, 0), (E, 1), final=True)) == [(0, 1), (1, 2)]


def test_a_claim_makes_nothing_final() -> None:
    """The run that claims may run the head's epoch again."""
    assert served(history((E, 0), (C, 0))) == []
    assert served(history((E, 0), (C, 0), (E, 1))) == [(0, 1)]


def test_a_replacement_is_served_instead_of_what_it_replaced() -> None:
    """The consumer gets the rows that count, once."""
    assert served(history((E, 0), (E, 1), (C, 1), (R, 1), (E, 2))) == [(0, 1), (1, 4)]


def test_epochs_that_were_rolled_back_unserved_are_left_out() -> None:
    """What never happened is not told."""
    entries = history((E, 0), (E, 1), (E, 2), (B, 0), (E, 1), (E, 2))
    assert served(entries) == [(0, 1), (1, 5)]
    assert served(entries[1:], FeedPosition(1, 0)) == [(1, 5)]


def test_a_rollback_below_what_was_served_stops_the_consumer() -> None:
    """It has seen what never happened; the message says what to do."""
    with pytest.raises(RefusedError, match="rolled back to epoch 0") as caught:
        served(history((E, 2), (B, 0), first=3), FeedPosition(2, 1))
    assert "new checkpoint location" in str(caught.value)


def test_a_pruned_epoch_is_an_error_that_names_it() -> None:
    """Serving the next one that is left would lose rows in silence."""
    with pytest.raises(RefusedError, match="epoch 3 was pruned: the oldest one left is epoch 7"):
        served(history((E, 7), (E, 8), first=30), FeedPosition(10, 2))


def test_the_first_epoch_may_have_been_pruned_too() -> None:
    """Who asks for epoch 0 is not given a later one instead; who asks for the oldest left is."""
    entries = history((E, 7), (E, 8), first=30)
    with pytest.raises(RefusedError, match="epoch 0 was pruned: the oldest one left is epoch 7"):
        served(entries)
    left = plan_feed(entries, NOTHING_SERVED, oldest_left=True)
    assert [(entry.epoch, entry.checkpoint_id) for entry in left] == [(7, 30)]
    assert served(history((E, 57), (E, 58))) == [(57, 1)], "a table may begin with any epoch"


def test_numbers_without_a_hole_are_never_taken_for_pruned() -> None:
    """Epochs may skip numbers where checkpoints do not."""
    assert served(history((E, 7), (E, 8), first=11), FeedPosition(10, 2)) == [(7, 11)]


def test_a_deleted_checkpoint_gives_way_to_one_with_the_same_rows() -> None:
    """A claim names what its parent named."""
    assert served(history((T, 0), (C, 0), (E, 1))) == [(0, 2)]


def test_a_consumer_may_begin_with_any_epoch() -> None:
    """It was given nothing: what is before the epoch that it wants is no rollback, and is not served."""
    entries = history((E, 0), (E, 1), (E, 2), (E, 3))
    assert served(entries, FeedPosition(0, 1)) == [(2, 3)]
    assert served(entries, FeedPosition(0, 7)) == []
    taken_back = history((E, 0), (E, 1), (E, 2), (E, 3), (B, 0), (E, 1), (E, 2), (E, 3))
    assert served(taken_back, FeedPosition(0, 1)) == [(2, 7)]


def test_the_end_of_a_stream_never_moves_back() -> None:
    """Whoever was given an epoch is not given it again, because a later one was taken back."""
    before = history((E, 0), (E, 1), (E, 2), (E, 3))
    assert find_newest(before) == FeedPosition(3, 2)
    for more in ((B, 2), (C, 2)):
        after = [*before, FeedEntry(5, more[1], more[0])]
        assert not find_newest(after).is_behind(FeedPosition(3, 2))
        assert served(after[3:], FeedPosition(3, 2)) == []


def test_a_batch_that_runs_again_is_the_same_batch() -> None:
    """What was planned is given, whatever happened to the table since."""
    before = history((E, 0), (E, 1), (E, 2))
    upto = find_newest(before)
    for later in ([], [FeedEntry(4, 1, B)], [FeedEntry(4, 0, B), FeedEntry(5, 1, E), FeedEntry(6, 2, E)]):
        planned = plan_feed([*before, *later], NOTHING_SERVED, upto)
        assert [(entry.epoch, entry.checkpoint_id) for entry in planned] == [(0, 1), (1, 2)]
    with pytest.raises(RefusedError, match="epoch 1 was pruned"):
        plan_feed(history((E, 2), (E, 3), first=3), FeedPosition(1, 0), upto)
    with pytest.raises(RefusedError, match="epoch 1 was pruned"):
        plan_feed(history((E, 2), (E, 3), first=3), NOTHING_SERVED, upto, oldest_left=True)


def test_a_batch_that_would_go_back_is_refused() -> None:
    """The next one would give epochs a second time."""
    with pytest.raises(RefusedError, match=r"given epoch 2 \(checkpoint 3\).*end with epoch 1"):
        plan_feed(history((E, 3), first=4), FeedPosition(3, 2), FeedPosition(2, 1))
    with pytest.raises(RefusedError, match="rolled back to epoch 1"):
        plan_feed(history((B, 1), first=4), FeedPosition(3, 2), FeedPosition(2, 1))


@pytest.mark.parametrize("kind", [E, R])
def test_an_epoch_that_was_served_and_written_anew_stops_the_consumer(kind: ManifestKind) -> None:
    """Also when the rollback before it was pruned."""
    with pytest.raises(RefusedError, match="epoch 4 was run again by checkpoint 9"):
        served(history((kind, 4), (E, 5), first=9), FeedPosition(5, 4))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["epoch", "again", "claim"]), max_size=20), st.integers(0, 20))
def test_serving_in_pieces_serves_each_epoch_once(steps: list[str], cut: int) -> None:
    """Wherever a consumer stops and goes on, it gets every final epoch exactly once, in order."""
    entries: list[FeedEntry] = []
    epoch = -1
    for step in steps:
        if step == "epoch" or epoch < 0:
            epoch += 1
            kind = E
        else:
            kind = R if step == "again" else C
        entries.append(FeedEntry(len(entries) + 1, epoch, kind))
    first = plan_feed(entries[:cut], NOTHING_SERVED)
    position = FeedPosition(first[-1].checkpoint_id, first[-1].epoch) if first else NOTHING_SERVED
    rest = plan_feed([e for e in entries if e.checkpoint_id > position.checkpoint_id], position)
    assert [e.epoch for e in (*first, *rest)] == list(range(max(epoch, 0)))


def with_lineages(entries: list[FeedEntry], *lineages: str, before: str = "") -> list[FeedEntry]:
    """The entries with these lineages, each on top of the one of the epoch before."""
    found = []
    for entry, lineage in zip(entries, lineages, strict=True):
        position = FeedPosition(entry.checkpoint_id - 1, entry.epoch - 1, before) if before else None
        found.append(FeedEntry(entry.checkpoint_id, entry.epoch, entry.kind, False, lineage, position))
        before = lineage
    return found


def test_the_oldest_epoch_left_must_follow_on_what_was_served() -> None:
    """Between the two something was pruned, which may have been a rollback."""
    after = FeedPosition(5, 4, "abandoned")
    left = with_lineages(history((E, 5), (E, 6), first=9), "a", "b", before="abandoned")
    assert served(left, after) == [(5, 9)], "only claims were pruned"
    other = with_lineages(history((E, 5), (E, 6), first=9), "a", "b", before="another")
    with pytest.raises(RefusedError, match=r"oldest one left is epoch 5 .*was rolled back since"):
        served(other, after)
    for unsure in (FeedPosition(5, 4), FeedPosition(5, 4, "x")):
        with pytest.raises(RefusedError, match="nothing says whether the table was rolled back"):
            served(history((E, 5), (E, 6), first=9), unsure)
    skipping = with_lineages(history((E, 8), (E, 9), first=9), "a", "b", before="abandoned")
    assert served(skipping, after) == [(8, 9)], "epochs may skip numbers: nothing is missing"


def test_claims_that_are_left_of_an_epoch_must_have_its_rows() -> None:
    """Whatever is left of the epoch that was served says again what was served, or the stream stops."""
    after = FeedPosition(5, 4, "a")
    assert served(with_lineages(history((C, 4), (E, 5), (E, 6), first=9), "a", "b", "c"), after) == [
        (5, 10)
    ]
    for kind in (C, B):
        with pytest.raises(RefusedError, match="was rolled back since"):
            served(with_lineages(history((kind, 4), (E, 5), first=9), "x", "b"), after)
    gone = [
        *history((T, 4), first=9),
        *with_lineages(history((C, 4), (E, 5), (E, 6), first=10), "a", "b", "c"),
    ]
    assert served(gone, after) == [(5, 11)], "a deleted one says nothing"


def test_a_rollback_to_other_rows_of_an_epoch_counts_for_it() -> None:
    """It was replaced, and the table went back to what it was before."""
    entries = with_lineages(history((E, 0), (E, 1), (R, 1), (E, 2), (B, 1), (E, 2)), *"abcdbe")
    assert served(entries) == [(0, 1), (1, 5)]
    with pytest.raises(RefusedError, match="rolled back to other rows of epoch 1"):
        served(entries[3:], FeedPosition(3, 1, "c"))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["epoch", "again", "claim", "back"]), st.integers(0, 3)), max_size=20
    )
)
def test_the_newest_final_epoch_is_the_same_from_the_end(steps: list[tuple[str, int]]) -> None:
    """Reading back stops where more would change nothing, whatever happened to the table."""
    entries: list[FeedEntry] = []
    epoch = -1
    for step, amount in steps:
        if step == "epoch" or epoch < 0:
            epoch, kind = epoch + 1, E
        elif step == "back":
            epoch, kind = max(0, epoch - amount), B
        else:
            kind = R if step == "again" else C
        entries.append(FeedEntry(len(entries) + 1, epoch, kind))
    assert find_newest_backwards(reversed(entries)) == find_newest(entries)
