"""Checkpoint locations on GCS and Azure, spelled as Spark spells them, with its settings. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.capture.upload import find_server_copier
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.preflight import preflight
from pyspark_checkpoint.spark_files.location import LocationSpec, location_options
from pyspark_checkpoint.store.open import open_object_store
from tests.capture.test_upload_copy import captured, moved
from tests.support.made_location import MadeLocation, contents, needed
from tests.support.servers.azurite import ACCOUNT, ACCOUNT_KEY, AzureServer
from tests.support.servers.gcs import GcsServer


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1)


def check(made: MadeLocation, there: str, settings: dict[str, str], tmp_path: Path) -> None:
    """Capture a location to disk, restore it beside itself, and capture that."""
    spec = moved(made, f"{there}/lost", settings)
    assert spec.open().listing().newest_committed == 1
    store = str(tmp_path / "store")
    manifest = captured(made, spec, store, {})
    assert manifest.query.checkpoint_location == f"{there}/lost"
    restore(store, str(tmp_path / "disk"), clone=False)
    assert contents(tmp_path / "disk") == needed(made, 1)
    report = restore(store, f"{there}/fresh", location_options=settings)
    assert report.location == f"{there}/fresh"
    fresh = LocationSpec(f"{there}/fresh", settings)
    opened = fresh.open().store
    assert {info.key: opened.get(info.key) for info in opened.list()} == needed(made, 1)
    assert preflight(fresh, partitions=2, sources=1) == ()
    with pytest.raises(RefusedError, match="in use"):
        restore(store, f"{there}/fresh", location_options=settings)


def check_copies(
    made: MadeLocation, spec: LocationSpec, url: str, options: dict[str, str], tmp_path: Path
) -> None:
    """Where one service has both, what is large is copied by it."""
    assert find_server_copier(spec, url, options) is not None
    captured(made, spec, url, options)
    assert list(CheckpointStore.open(url, options).verify()) == []
    restore(url, str(tmp_path / "copied"), options=options, location_options={}, clone=False)
    assert contents(tmp_path / "copied") == needed(made, 1)


def test_a_location_on_google_with_the_settings_of_its_connector(
    made: MadeLocation, gs_server: GcsServer, tmp_path: Path
) -> None:
    """The address and the way to log in come from Spark's own keys."""
    settings = {
        "spark.hadoop.fs.gs.storage.root.url": gs_server.endpoint,
        "spark.hadoop.fs.gs.project.id": "ckpt-test",
        "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
    }
    there = gs_server.url("cloud-locations")
    assert there.startswith("gs://")
    check(made, there, location_options(there, settings, {}), tmp_path)
    spec = LocationSpec(f"{there}/lost", settings)
    check_copies(made, spec, gs_server.url("cloud-copies"), gs_server.options, tmp_path)


def test_a_location_on_azure_with_the_settings_of_its_connector(
    made: MadeLocation, az_server: AzureServer, tmp_path: Path
) -> None:
    """Container and account are in the URL, the key in Spark's settings; the emulator's address is ours."""
    settings = {
        f"spark.hadoop.fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": ACCOUNT_KEY,
        "endpoint": f"{az_server.endpoint}/{ACCOUNT}",
    }
    there = f"abfss://{az_server.container}@{ACCOUNT}.dfs.core.windows.net/cloud-locations"
    check(made, there, settings, tmp_path)
    spelled = open_object_store(az_server.url("cloud-locations/fresh"), az_server.options)
    assert {info.key for info in spelled.list()} == needed(made, 1).keys(), "it is where the URL says"
