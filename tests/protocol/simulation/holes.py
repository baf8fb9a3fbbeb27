"""The protocol with one rule taken out at a time: each must be found by a search, or the search is blind.

Every hole replaces one function of the real code, the one that is the rule, by what somebody who did
not know the rule would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pyspark_checkpoint.history import deletion as delete
from pyspark_checkpoint.history import (
    head,
    live_set,
    lookup,
    orphans,
    publish,
    rollback,
    rules,
    savepoint,
    verify,
)
from pyspark_checkpoint.history import recovery as recover
from pyspark_checkpoint.history import retention as retain
from pyspark_checkpoint.history import run as commit
from tests.protocol.simulation import broken

Patch = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Hole:
    """A rule that is missing: what to patch, the scene in which that shows, and how it shows."""

    name: str
    patches: tuple[Patch, ...]
    scene: str
    shows: str
    """The first word of the violation."""
    faults: int | None = None
    all_powers: bool = False
    """Whether actors now do what their scene does not know of, so that nothing is searched in short."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Run the block with the rule taken out."""
        patches = [patch() for patch in self.patches]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()


def _patch(target: Any, name: str, new: Any) -> Patch:
    return lambda: mock.patch.object(target, name, new)


HOLES = (
    Hole(
        "the floor is not checked after the create",
        (_patch(publish, "check_floor", broken.no_floor_check),),
        "b1",
        "BELIEF",
    ),
    Hole(
        "found by read-back, the floor is not checked",
        (
            _patch(publish, "settle_taken", broken.read_back_is_enough),
            _patch(publish, "check_floor", broken.floor_unless_read_back),
        ),
        "b1",
        "BELIEF",
        faults=1,
    ),
    Hole(
        "a reader does not read _control again: stale hint",
        (_patch(head, "floor_allows", lambda *_: True),),
        "a1",
        "READER",
    ),
    Hole(
        "a reader does not read _control again: prune",
        (_patch(head, "floor_allows", lambda *_: True),),
        "a2",
        "READER",
    ),
    Hole(
        "a reader does not read _control again: zombie",
        (_patch(head, "floor_allows", lambda *_: True),),
        "a3",
        "READER",
    ),
    Hole(
        "a reader by number does not look at the floor",
        (_patch(lookup, "is_visible", lambda *_: True),),
        "a4",
        "READER",
    ),
    Hole("the hint is believed", (_patch(head, "_climb", lambda store, start: start),), "a2", "READER"),
    Hole(
        "the loser is not fenced: two new runs",
        (
            _patch(publish, "refuse_loser", broken.loser_looks_again),
            _patch(commit.Run, "_check_takeover", lambda *_: None),
        ),
        "e1",
        "FENCE",
    ),
    Hole(
        "the loser is not fenced: the old run",
        (
            _patch(publish, "refuse_loser", broken.loser_looks_again),
            _patch(commit.Run, "_check_takeover", lambda *_: None),
        ),
        "e3",
        "FENCE",
    ),
    Hole(
        "a new run that loses to the old one's commit is fenced for good",
        (_patch(commit.Run, "_loser_of", broken.every_loser_is_fenced),),
        "e3",
        "STUCK",
        faults=0,
    ),
    Hole(
        "a new run whose claim nobody answered takes the old one for its heir",
        (_patch(commit.Run, "_check_takeover", broken.asking_is_publishing),),
        "e5",
        "STUCK",
    ),
    Hole(
        "a rollback that loses to the old run's commit is fenced for good",
        (_patch(commit.Run, "_loser_of", broken.every_loser_is_fenced),),
        "d8",
        "STUCK",
    ),
    Hole(
        "a run that looks again does not notice its heir",
        (_patch(commit.Run, "_check_takeover", lambda *_: None),),
        "e4",
        "FENCE",
    ),
    Hole(
        "manifests do not name the runs before",
        (_patch(rules, "was_taken_over", lambda *_: False),),
        "u1",
        "FENCE",
    ),
    Hole(
        "an earlier attempt counts as this one",
        (_patch(publish, "settle_taken", broken.same_run_is_ours),),
        "e4",
        "BELIEF",
    ),
    Hole(
        "the generation is not raised",
        (_patch(rules, "next_generation", broken.parents_generation),),
        "e1",
        "GENERATION",
    ),
    Hole(
        "who gives up deletes what he staged",
        (_patch(commit.Run, "_publish", broken.publish_or_delete),),
        "m1",
        "HOLE",
        all_powers=True,
    ),
    Hole(
        "who is fenced deletes what he staged",
        (_patch(commit.Run, "_publish", broken.publish_or_delete),),
        "m2",
        "HOLE",
        all_powers=True,
    ),
    Hole(
        "who is fenced deletes his manifest",
        (_patch(publish, "check_floor", broken.fenced_deletes_manifest),),
        "b3",
        "HOLE",
        all_powers=True,
    ),
    Hole(
        "the live set is read before the swap",
        (_patch(retain, "execute_prune", broken.live_set_before_the_floor),),
        "d1",
        "HOLE",
    ),
    Hole(
        "the live set is not checked again",
        (_patch(retain, "settle_live_set", broken.live_set_unchecked),),
        "d2",
        "HOLE",
    ),
    Hole(
        "a missing pinned manifest is passed over",
        (
            _patch(live_set, "_read_pinned", broken.read_pinned_or_nothing),
            _patch(live_set, "floor_is_ours", lambda *_: True),
        ),
        "i3",
        "HOLE",
    ),
    Hole(
        "a rollback does not pin its target: prune",
        (_patch(rollback, "pin_target", lambda *_: None),),
        "d1",
        "HOLE",
    ),
    Hole(
        "a rollback does not pin its target: unsave",
        (_patch(rollback, "pin_target", lambda *_: None),),
        "o1",
        "HOLE",
    ),
    Hole(
        "a prune drops the pin of a rollback under way",
        (_patch(retain, "drop_stale_pins", broken.drop_all_rollback_pins),),
        "d1",
        "HOLE",
    ),
    Hole(
        "anything may be pinned",
        (
            _patch(savepoint, "may_pin", lambda *_: True),
            _patch(savepoint, "_read_pinnable", broken.whatever_lies_there),
        ),
        "c1",
        "HOLE",
    ),
    Hole(
        "_control is put, not swapped: the floor falls",
        (_patch(retain, "swap_control", broken.blind_swap),),
        "f2",
        "CONTROL",
    ),
    Hole(
        "_control is put, not swapped: a savepoint and a prune",
        (
            _patch(retain, "swap_control", broken.blind_swap),
            _patch(savepoint, "swap_control", broken.blind_swap),
        ),
        "c1",
        "CONTROL",
    ),
    Hole(
        "nothing to write, and nobody looks",
        (_patch(commit.Run, "_confirm_head", broken.head_manifest),),
        "h2",
        "BELIEF",
    ),
    Hole(
        "the collector does not look at numbers",
        (_patch(orphans, "is_orphan_artifact", broken.any_number),),
        "i1",
        "HOLE",
    ),
    Hole("a manifest may name anything", (_patch(rules, "check_names", lambda *_: None),), "r1", "HOLE"),
    Hole(
        "pinned checkpoints may be deleted",
        (_patch(delete, "mark_deleted", broken.mark_without_looking),),
        "t1",
        "PIN",
    ),
    Hole(
        "a deleted checkpoint leaves no tombstone",
        (_patch(delete, "write_tombstone", broken.delete_without_tombstone),),
        "t4",
        "HOLE",
    ),
    Hole(
        "the control record is made by a plain put",
        (_patch(commit, "ensure_control", broken.control_by_plain_put),),
        "x1",
        "CONTROL",
    ),
    Hole(
        "verify takes a prune for damage",
        (_patch(verify, "was_removed_since", lambda *_: False),),
        "v1",
        "BAD",
    ),
    Hole(
        "verify takes a deletion for damage",
        (_patch(verify, "was_removed_since", lambda *_: False),),
        "v2",
        "BAD",
    ),
    Hole(
        "verify takes a late write for damage",
        (_patch(verify, "was_removed_since", lambda *_: False),),
        "v5",
        "BAD",
    ),
    Hole(
        "recovery takes a prune for damage",
        (_patch(recover, "was_removed_since", lambda *_: False),),
        "v3",
        "SURPRISE",
    ),
    Hole(
        "a reader takes a prune for damage",
        (_patch(lookup, "was_removed_since", lambda *_: False),),
        "a5",
        "SURPRISE",
    ),
)
