"""Small scenes, searched whole: no interleaving of them, with lost and late writes, breaks a promise.

``SEEDS`` above the daily number asks for the thorough search, without a limit of interruptions.
"""

from __future__ import annotations

import pytest

from tests.protocol.simulation.scenarios import SCENES
from tests.protocol.simulation.scene import Scene
from tests.protocol.simulation.test_schedules import THOROUGH


@pytest.mark.timeout(0)
@pytest.mark.parametrize("one", [pytest.param(scene, id=scene.name) for scene in SCENES])
def test_no_interleaving_breaks_a_promise(one: Scene) -> None:
    """Each scene is a story that broke a draft of the protocol; the search covers all of it."""
    result = one.search(thorough=THOROUGH)
    assert result.violation is None, f"{one.story}\n{result}"
    assert result.complete, f"{one.story}\n{result}"
    assert result.states > 5, "the actors did nothing"


def test_every_scene_has_a_name_of_its_own() -> None:
    """Holes refer to scenes by name."""
    assert len({one.name for one in SCENES}) == len(SCENES)
