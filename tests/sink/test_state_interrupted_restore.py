"""A restore of rows and state that dies at every single step, and is repeated. No Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.capture.commit_log import find_commit, seal_head
from pyspark_checkpoint.format.keys import seal_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.restorer.test_restore_steps import Life, living
from tests.support.made_location import contents
from tests.support.made_stream import MadeStream, key_ring


@pytest.fixture
def sealed(tmp_path: Path) -> MadeStream:
    """A query after three batches, whose newest checkpoint is sealed."""
    stream = MadeStream(tmp_path / "stream")
    stream.run(3)
    assert seal_head(stream.history(), LocationSpec(str(stream.location)).open()) is not None
    return stream


@pytest.mark.parametrize("which", [{}, {"epoch": 1}], ids=["sealed", "known by its successor"])
def test_dying_at_any_step_leaves_what_repeating_finishes(
    sealed: MadeStream, tmp_path: Path, which: dict[str, Any]
) -> None:
    """The claim, or the rollback, is there before its seal: what is known of the batch stays known."""
    counted, whole = Life(), tmp_path / "whole"
    shutil.copytree(sealed.table, tmp_path / "counted")
    with living(counted):
        assert restore(str(tmp_path / "counted"), str(whole), **which).point is RestorePoint.AFTER
    assert counted.steps > 15
    for step in range(counted.steps):
        table, fresh = tmp_path / f"table-{step}", tmp_path / f"fresh-{step}"
        shutil.copytree(sealed.table, table)
        with living(Life(step)), pytest.raises(SimulatedCrash):
            restore(str(table), str(fresh), **which)
        if not fresh.exists() or contents(fresh) != contents(whole):
            report = restore(str(table), str(fresh), **which)
            assert report.point is RestorePoint.AFTER, f"died after step {step}"
        assert contents(fresh) == contents(whole), f"died after step {step}"
        assert list(CheckpointStore.open(str(table)).verify()) == []
        shutil.rmtree(table)
        shutil.rmtree(fresh)


def _without_seal(history: CheckpointStore, manifest: CheckpointManifest | None) -> CheckpointManifest:
    """A claim that died before it had copied the seal."""
    assert manifest is not None
    history.store.delete([seal_key(manifest.checkpoint_id)])
    return manifest


@pytest.mark.parametrize("secret", [False, True], ids=["plain", "encrypted"])
def test_claim_of_a_sealed_checkpoint_has_its_commit_log(tmp_path: Path, secret: bool) -> None:
    """However often it was repeated since: a claim, a claim of that, a rollback to it."""
    stream = MadeStream(tmp_path / "stream", options=key_ring(tmp_path) if secret else {})
    stream.run(3)
    assert seal_head(stream.history(), LocationSpec(str(stream.location)).open()) is not None
    commit = (stream.location / "commits" / "2").read_bytes()
    claimed = [_without_seal(stream.history(), stream.history().claim()) for _ in range(2)][-1]
    assert find_commit(stream.history(), claimed) == commit
    history = stream.history()
    back = _without_seal(history, history.rollback(claimed.checkpoint_id))
    assert back.kind is ManifestKind.ROLLBACK
    assert find_commit(stream.history(), back) == commit


def test_claim_of_an_unsealed_checkpoint_has_no_commit_log(tmp_path: Path) -> None:
    """Neither sealed nor followed: the batch runs again, whoever takes the history over."""
    stream = MadeStream(tmp_path)
    stream.run(3)
    claimed = stream.history().claim()
    assert claimed is not None
    assert find_commit(stream.history(), claimed) is None
