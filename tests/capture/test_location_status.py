"""Whether a location fits its history, and how it is opened. No Spark."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.location_status import LocationStatus
from pyspark_checkpoint.format.manifest import ConnectorCheckpoint
from pyspark_checkpoint.listener.listener import is_prune_due
from pyspark_checkpoint.spark_files.location import LocationSpec, location_options
from pyspark_checkpoint.store.open import parse_store_settings
from pyspark_checkpoint.store.settings import AzureSettings, GcsSettings, S3Settings, ServerEncryption
from tests.support.made_location import MadeLocation, capture

SPARKS = {
    "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:1",
    "spark.hadoop.fs.s3a.access.key": "spark",
    "spark.hadoop.fs.s3a.secret.key": "spark",
}
DIVERGED = "checkpoint location has diverged: offsets of batch 2 differ from checkpoint {}"
STORES = {"endpoint": "http://127.0.0.1:2", "accessKey": "store", "secretKey": "store"}


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2)


def status(path: Path) -> LocationStatus:
    return LocationStatus.of(LocationSpec(str(path)).open())


def test_a_location_may_be_ahead_of_its_history_and_not_behind(made: MadeLocation, tmp_path: Path) -> None:
    """Also one that is empty; and whatever it comes to later, what it was at the start counts."""
    first, second, third = capture(made, str(tmp_path / "store"), 0, 1, 2)
    now = status(made.path)
    assert now.find_problem(None, "run") is None
    assert now.find_problem(first, "run") is None
    assert now.find_problem(third, "run") is None
    (made.path / "commits/2").unlink()
    behind = status(made.path)
    assert behind.find_problem(second, "run") is None
    assert "at batch 1, its history at 2" in (behind.find_problem(third, "run") or "")
    made.commit(2, 3, 4)
    assert "at batch 1, its history at 2" in (behind.find_problem(third, "run") or "")
    assert "at batch None" in (status(tmp_path / "none").find_problem(first, "run") or "")


def test_a_run_is_never_behind_itself(made: MadeLocation, tmp_path: Path) -> None:
    """A listener that was started again in the middle of a run finds what the run has captured."""
    (head,) = capture(made, str(tmp_path / "store"), 2)
    (made.path / "commits/2").unlink()
    assert status(made.path).find_problem(head, head.run_id) is None


def test_a_location_whose_offsets_differ_has_diverged(made: MadeLocation, tmp_path: Path) -> None:
    """An old disk comes back: it is as far as the history, which has gone on elsewhere."""
    shutil.copytree(made.path, tmp_path / "old")
    head = capture(made, str(tmp_path / "store"), 2)[0]
    other = tmp_path / "old" / "offsets/2"
    lines = other.read_text().split("\n")
    other.write_text("\n".join([*lines[:2], json.dumps({"topic": {"0": 99}})]))
    assert status(made.path).find_problem(head, "run") is None
    assert status(tmp_path / "old").find_problem(head, "run") == DIVERGED.format(head.checkpoint_id)
    other.unlink()
    MadeLocation(tmp_path / "old").commit(3)
    assert status(tmp_path / "old").find_problem(head, "run") is None, "purged: nothing can be said"


def test_sources_without_an_offset_are_compared_too(made: MadeLocation, tmp_path: Path) -> None:
    """Spark writes a dash for them."""
    head = capture(made, str(tmp_path / "store"), 2)[0]
    waiting = ConnectorCheckpoint({}, 2)
    two = replace(head, source_offsets={**head.source_offsets, "source-1": waiting})
    path = made.path / "offsets/2"
    assert status(made.path).find_problem(two, "run") == DIVERGED.format(head.checkpoint_id)
    path.write_text(path.read_text() + "\n-")
    assert status(made.path).find_problem(two, "run") is None


def test_a_location_is_opened_as_spark_opens_it() -> None:
    """The store may be at another address, under another account: Spark's settings are the location's."""
    options = location_options("s3a://bucket/location", SPARKS, STORES)
    settings = parse_store_settings("s3a://bucket/location", options, env={}).backend
    assert isinstance(settings, S3Settings)
    assert (settings.endpoint, settings.access_key) == ("http://127.0.0.1:1", "spark")


def test_the_stores_options_apply_where_spark_has_none() -> None:
    """One set of options for both is what most people have."""
    options = location_options("s3a://bucket/location", {"spark.hadoop.fs.gs.project.id": "x"}, STORES)
    settings = parse_store_settings("s3a://bucket/location", options, env={}).backend
    assert isinstance(settings, S3Settings)
    assert (settings.endpoint, settings.access_key) == ("http://127.0.0.1:2", "store")
    assert location_options("hdfs://host/location", SPARKS, STORES) == SPARKS
    google = {"spark.hadoop.google.cloud.auth.service.account.json.keyfile": "/keys/spark.json"}
    options = location_options("gs://bucket/location", google, {"credentialsFile": "/keys/store.json"})
    found = parse_store_settings("gs://bucket/location", options, env={}).backend
    assert isinstance(found, GcsSettings)
    assert found.credentials_file == "/keys/spark.json"


MINIO = {"endpoint": "https://minio.example:9000", "accessKey": "store", "secretKey": "store"}


@pytest.mark.parametrize(
    "site",
    [
        {"fs.s3a.path.style.access": "true"},
        {"fs.s3a.requester.pays.enabled": "false"},
        {"fs.s3a.encryption.algorithm": "SSE-S3"},
        {"fs.s3a.endpoint.region": "eu-west-1"},
        {"fs.s3a.endpoint": "https://MINIO.example:9000/"},
        {"fs.s3a.endpoint": "minio.example:9000"},
    ],
)
def test_the_stores_credentials_apply_where_spark_has_none(site: dict[str, str]) -> None:
    """Files of Hadoop often have a flag or the endpoint alone, and Spark's keys come from elsewhere."""
    spark = {f"spark.hadoop.{name}": value for name, value in site.items()}
    options = location_options("s3a://bucket/location", spark, MINIO)
    settings = parse_store_settings("s3a://bucket/location", options, env={}).backend
    assert isinstance(settings, S3Settings)
    assert settings.endpoint is not None
    assert settings.endpoint.lower() == "https://minio.example:9000"
    assert (settings.access_key, settings.secret_key) == ("store", "store")


@pytest.mark.parametrize(
    ("endpoint", "goes_to"),
    [("https://other.example", "https://other.example"), ("s3.amazonaws.com", None)],
)
def test_keys_of_the_store_do_not_go_to_another_host(endpoint: str, goes_to: str | None) -> None:
    """Spark says where the location is; the store's keys are for the store's own endpoint."""
    options = location_options("s3a://bucket/location", {"spark.hadoop.fs.s3a.endpoint": endpoint}, MINIO)
    settings = parse_store_settings("s3a://bucket/location", options, env={}).backend
    assert isinstance(settings, S3Settings)
    assert (settings.endpoint, settings.access_key) == (goes_to, None)


def test_keys_of_spark_do_not_go_to_the_endpoint_of_the_store() -> None:
    """Keys without an endpoint are Amazon's."""
    keys = {name: value for name, value in SPARKS.items() if not name.endswith("endpoint")}
    options = location_options("s3a://bucket/location", keys, MINIO)
    settings = parse_store_settings("s3a://bucket/location", options, env={}).backend
    assert isinstance(settings, S3Settings)
    assert (settings.endpoint, settings.access_key) == (None, "spark")


def test_typed_keys_apply_at_every_amazon_endpoint_that_spark_names() -> None:
    """A store without an endpoint is at Amazon too."""
    spark = {"spark.hadoop.fs.s3a.endpoint": "s3.eu-west-1.amazonaws.com"}
    options = location_options("s3a://bucket/location", spark, {"accessKey": "store", "secretKey": "store"})
    settings = parse_store_settings("s3a://bucket/location", options, env={}).backend
    assert isinstance(settings, S3Settings)
    assert (settings.endpoint, settings.access_key) == ("https://s3.eu-west-1.amazonaws.com", "store")


def test_encryption_that_spark_chose_is_the_locations() -> None:
    """A key of the store's encryption is not joined to it."""
    spark = {"spark.hadoop.fs.s3a.encryption.algorithm": "SSE-KMS"}
    typed = {**MINIO, "serverencryption": "SSE-KMS", "serverEncryptionKey": "key-of-the-store"}
    options = location_options("s3a://bucket/location", spark, typed)
    settings = parse_store_settings("s3a://bucket/location", options, env={}).backend
    assert isinstance(settings, S3Settings)
    assert settings.server_encryption == ServerEncryption("SSE-KMS")


@pytest.mark.parametrize(
    ("host", "typed", "key"),
    [
        ("shop.dfs.core.windows.net", {"accountName": "shop"}, "a2V5"),
        ("other.dfs.core.windows.net", {"accountName": "shop"}, None),
        ("shop.dfs.core.chinacloudapi.cn", {"accountName": "shop"}, None),
        ("shop.dfs.core.windows.net", {}, None),
    ],
)
def test_a_typed_azure_key_applies_to_its_own_account(
    host: str, typed: dict[str, str], key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which one that is must be typed too."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    options = location_options(f"abfss://box@{host}/location", {}, {**typed, "accountKey": "a2V5"})
    settings = parse_store_settings(f"abfss://box@{host}/location", options, env={}).backend
    assert isinstance(settings, AzureSettings)
    assert settings.account_key == key


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("/data/location", "file:/data/location"),
        ("file:///data/location/", "file:/data/location"),
        ("s3://bucket/a/b", "s3a://bucket/a/b"),
        ("s3a://bucket/a/b/", "s3a://bucket/a/b"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://box/a/b", "abfss://box@shop.dfs.core.windows.net/a/b"),
        ("azure://box/a", "abfss://box@shop.dfs.core.windows.net/a"),
        ("abfss://box@other.dfs.core.windows.net/a/", "abfss://box@other.dfs.core.windows.net/a"),
        ("wasbs://box@other.blob.core.windows.net/a", "wasbs://box@other.blob.core.windows.net/a"),
        ("hdfs://host:8020/a/", "hdfs://host:8020/a"),
    ],
)
def test_spark_finds_a_restored_location_under_the_name_that_it_has_for_it(url: str, spelled: str) -> None:
    """Files that name their own place are rewritten to it; Spark knows no az: and no gcs:."""
    assert LocationSpec(url, {"accountName": "shop", "accountKey": "a2V5"}).spark_url == spelled
    fresh = LocationSpec(url, {"accountName": "shop", "accountKey": "a2V5"}).beside("restored")
    assert fresh.spark_url == spelled


@pytest.mark.parametrize("retain", [1, 2, 3, 4, 20, 21])
@pytest.mark.parametrize("numbers_a_run", [1, 2, 3])
def test_retention_is_due_however_many_checkpoint_ids_a_run_uses(retain: int, numbers_a_run: int) -> None:
    """A scheduled query takes two a start, its claim and its batch: an even step would never be met."""
    captured = range(1, 400, numbers_a_run)
    pruned = [number for number in captured if is_prune_due(number, number - 2, retain)]
    gaps = [later - earlier for earlier, later in pairwise(pruned)]
    assert pruned
    assert max(gaps) <= 3 * max(1, retain // 2) + numbers_a_run
    running = [number for number in range(2, 400) if is_prune_due(number, number - 1, retain)]
    assert len(running) <= 400 // max(1, retain // 2), "most epochs pay nothing"
    assert min(running) > retain, "so long there is nothing to remove"
