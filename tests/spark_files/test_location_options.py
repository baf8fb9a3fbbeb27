"""How a checkpoint location is opened: by Spark's settings, or by the store's options. No Spark."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.spark_files.location import LocationSpec, location_options
from pyspark_checkpoint.store.open import parse_store_settings
from pyspark_checkpoint.store.settings import AzureSettings, GcsSettings, S3Settings, ServerEncryption

SPARKS = {
    "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:1",
    "spark.hadoop.fs.s3a.access.key": "spark",
    "spark.hadoop.fs.s3a.secret.key": "spark",
}
STORES = {"endpoint": "http://127.0.0.1:2", "accessKey": "store", "secretKey": "store"}


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
