"""With a rule taken out the search finds what breaks; else it would prove nothing with the rule in."""

from __future__ import annotations

import pytest

from tests.protocol.simulation.holes import HOLES, Hole
from tests.protocol.simulation.mix import make_world
from tests.protocol.simulation.scenarios import SCENES
from tests.protocol.simulation.schedule import RandomChooser, run

RANDOM_TRIES = 1500
BY_CHANCE = (
    "the floor is not checked after the create",
    "a reader does not read _control again: zombie",
    "the hint is believed",
    "the loser is not fenced: the old run",
    "a new run that loses to the old one's commit is fenced for good",
    "manifests do not name the runs before",
    "who gives up deletes what he staged",
    "the live set is read before the swap",
    "_control is put, not swapped: the floor falls",
    "nothing to write, and nobody looks",
    "a deleted checkpoint leaves no tombstone",
)


@pytest.mark.parametrize("hole", [pytest.param(hole, id=hole.name.replace(" ", "-")) for hole in HOLES])
def test_the_exhaustive_search_finds_the_hole(hole: Hole) -> None:
    """Each hole takes one function of the real code out; its scene then ends as ``shows`` says."""
    by_name = {scene.name: scene for scene in SCENES}
    with hole.open():
        result = by_name[hole.scene].search(faults=hole.faults, all_powers=hole.all_powers)
    assert result.violation is not None, f"{hole.name}: {result}"
    assert result.violation.startswith(hole.shows), f"{hole.name}: {result}"


@pytest.mark.parametrize("name", BY_CHANCE)
def test_chance_finds_the_hole_too(name: str) -> None:
    """Random schedules are worth their time: they find these without knowing the scene."""
    hole = next(hole for hole in HOLES if hole.name == name)
    with hole.open():
        for seed in range(RANDOM_TRIES):
            outcome = run(make_world(seed), RandomChooser(seed))
            if outcome.violation is not None:
                return
    pytest.fail(f"{RANDOM_TRIES} schedules did not find: {name}")
