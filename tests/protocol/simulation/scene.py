"""A small scene: where it begins, who acts, and how far it is searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.protocol.simulation.beginning import Beginning
from tests.protocol.simulation.explore import UNLIMITED, Result, explore
from tests.protocol.simulation.process import Actor

MAX_STATES = 1_000_000
POWERS = frozenset({"swap", "delete", "list", "load"})


@dataclass(frozen=True, slots=True)
class Scene:
    """A beginning and its actors. ``faults`` is how many writes may be lost, late or unapplied."""

    name: str
    story: str
    begin: Beginning
    actors: Callable[[Beginning], list[Actor]]
    faults: int = 1
    descending: bool = False
    """Whether a store deletes the keys of one call in descending order: it may, and so may a server."""
    switches: int = UNLIMITED
    """Interruptions in the daily tests, where searching all of them takes too long for every day."""

    def search(
        self, *, thorough: bool = False, faults: int | None = None, all_powers: bool = False
    ) -> Result:
        """Search every interleaving; ``thorough`` knows no limit of interruptions.

        With ``all_powers`` every actor is taken to be able to do anything to the others.
        """
        actors = self.actors(self.begin)
        if all_powers:
            actors = [replace(actor, may=POWERS) for actor in actors]
        return explore(
            self.begin.objects,
            self.begin.truth,
            actors,
            faults=self.faults if faults is None else faults,
            max_states=MAX_STATES,
            descending=self.descending,
            switches=UNLIMITED if thorough else self.switches,
        )
