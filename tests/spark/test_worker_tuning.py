"""What a worker need not do around every task."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from pyspark_checkpoint.spark.worker_tuning import _freeze, settle_worker


def test_what_was_imported_is_frozen_once() -> None:
    """Spark collects garbage after every task."""
    gc.unfreeze()
    _freeze.cache_clear()
    settle_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    settle_worker()
    assert gc.get_freeze_count() <= frozen
    assert kept
    gc.unfreeze()


def test_a_zip_on_the_path_is_not_read_again_and_still_gives_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 4.1 invalidates all importers before every task; that of a zip reads its whole directory."""
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("first_in_a_zip.py", "")
        made.writestr("second_in_a_zip.py", "")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("first_in_a_zip")
    assert isinstance(sys.path_importer_cache[str(archive)], zipimporter)
    settle_worker()
    assert str(archive) not in sys.path_importer_cache
    importlib.invalidate_caches()
    importlib.import_module("second_in_a_zip")
