"""A listener of the application's own beside the plugin: a run has one producer of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint import CheckpointStore, open_object_store
from pyspark_checkpoint.registry.queries import find_query, root_url
from tests.integration.plugin.lab import Submitter, epoch, write_input

APP = Path(__file__).with_name("beside_app.py")
FILES = 6


def producers(url: str, query: str) -> set[str]:
    """Who has made the checkpoints of a query."""
    root = find_query(open_object_store(url), query)
    assert root is not None
    history = CheckpointStore.open(root_url(url, root.query_id))
    assert list(history.verify()) == []
    manifests = [history.load_by_id(number) for number in history.list_ids()]
    return {manifest.instance_id for manifest in manifests if manifest is not None}


@pytest.mark.timeout(600)
def test_the_second_producer_of_a_run_steps_aside_and_says_so(submitter: Submitter, home: Path) -> None:
    """By asking the plugin where the URLs are the same; by what is in the store where they are spelled
    otherwise. Nobody is fenced, and no batch lacks its checkpoint."""
    write_input(home, FILES)
    url = str(home / "store")
    with submitter.submit(home, [str(APP), str(home), url]) as application:
        assert application.wait() == 0
    assert producers(url, "same") == {"the driver plugin"}
    assert len(producers(url, "other")) == 1
    assert (epoch(home, "same"), epoch(home, "other")) == (FILES - 1, FILES - 1)
    said = [line for line in application.log.splitlines() if "is left alone" in line]
    assert len(said) == 2, said
    assert "its checkpoints are made by the driver plugin already" in said[0]
    assert "its checkpoints are made by" in said[1]
    assert "taken the store over" not in application.log
