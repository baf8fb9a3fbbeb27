"""Options, Hadoop's keys and the environment become settings, in that order, without a leak."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.errors import MissingExtra, SettingsError
from pyspark_checkpoint.store.open import parse_store_settings
from pyspark_checkpoint.store.options import KNOWN, is_store_option
from pyspark_checkpoint.store.settings import (
    AzureSettings,
    GcsSettings,
    LocalSettings,
    MemorySettings,
    S3Settings,
    ServerEncryption,
    StoreSettings,
)

S3_ENV = {
    "AWS_ENDPOINT_URL": "https://general.example",
    "AWS_ENDPOINT_URL_S3": "https://s3.example",
    "AWS_REGION": "eu-west-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "env-key",
    "AWS_SECRET_ACCESS_KEY": "env-secret",
    "AWS_SESSION_TOKEN": "env-token",
}
HADOOP = {
    "spark.hadoop.fs.s3a.endpoint": "minio.example:9000",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.endpoint.region": "region-of-hadoop",
    "spark.hadoop.fs.s3a.access.key": "hadoop-key",
    "spark.hadoop.fs.s3a.secret.key": "hadoop-secret",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.unknown.key": "ignored",
    "spark.app.name": "ignored",
}


def backend(url: str, options: dict[str, str] | None = None, env: dict[str, str] | None = None) -> object:
    return parse_store_settings(url, options, env=env or {}).backend


def test_defaults_leave_everything_to_the_sdk() -> None:
    """No option, no environment: only the place is known."""
    assert backend("s3://b/p") == S3Settings("b", "p")
    assert backend("gs://b") == GcsSettings("b")
    assert backend("memory://n/p") == MemorySettings("n", "p")
    assert backend("/data") == LocalSettings(Path("/data"))
    settings = parse_store_settings("s3://b", env={})
    assert isinstance(settings, StoreSettings)
    assert (settings.retry.limit_seconds, settings.allow_unsafe_store) == (30.0, False)


def test_options_are_read_in_any_case() -> None:
    """Spark lowers the names of options; users type camelCase."""
    options = {
        "ENDPOINT": "http://127.0.0.1:9000/",
        "region": "r",
        "accesskey": "a",
        "secretKey": "s",
        "sessionToken": "t",
        "pathStyleAccess": "TRUE",
        "timeoutSeconds": "2.5",
        "partSizeBytes": "6000000",
        "maxConcurrency": "9",
    }
    assert backend("s3://b", options) == S3Settings(
        "b",
        "",
        "http://127.0.0.1:9000",
        "r",
        "a",
        "s",
        "t",
        True,
        timeout_seconds=2.5,
        part_size_bytes=6_029_312,
        max_concurrency=9,
    )
    settings = parse_store_settings("s3://b", {"retrySeconds": "0", "allowUnsafeStore": "true"}, env={})
    assert (settings.retry.limit_seconds, settings.allow_unsafe_store) == (0.0, True)


def test_the_environment_is_read_last() -> None:
    """Options win over Hadoop's keys, those over the environment; S3's own variable over the general."""
    assert backend("s3://b", env=S3_ENV) == S3Settings(
        "b", "", "https://s3.example", "eu-west-1", "env-key", "env-secret", "env-token"
    )
    assert backend("s3://b", HADOOP, S3_ENV) == S3Settings(
        "b", "", "http://minio.example:9000", "region-of-hadoop", "hadoop-key", "hadoop-secret", None, True
    )
    typed = {**HADOOP, "endpoint": "https://typed.example", "accessKey": "typed", "secretKey": "typed2"}
    assert backend("s3://b", typed, S3_ENV) == S3Settings(
        "b", "", "https://typed.example", "region-of-hadoop", "typed", "typed2", None, True
    )


def test_credentials_of_two_sources_are_never_mixed() -> None:
    """A typed key without a token does not get the token of the environment."""
    found = backend("s3://b", {"accessKey": "a", "secretKey": "s"}, S3_ENV)
    assert isinstance(found, S3Settings)
    assert (found.access_key, found.secret_key, found.session_token) == ("a", "s", None)
    anonymous = backend("s3://b", {"anonymous": "true"}, S3_ENV)
    assert isinstance(anonymous, S3Settings)
    assert (anonymous.anonymous, anonymous.access_key) == (True, None)
    explicit = backend("s3://b", {"anonymous": "false"}, S3_ENV)
    assert isinstance(explicit, S3Settings)
    assert explicit.access_key == "env-key"
    half = backend("s3://b", env={"AWS_ACCESS_KEY_ID": "only", "AWS_SESSION_TOKEN": "token"})
    assert half == S3Settings("b")


def test_hadoop_settings_of_one_bucket_win() -> None:
    """fs.s3a.bucket.NAME.* holds for that bucket alone."""
    options = {
        **HADOOP,
        "spark.hadoop.fs.s3a.bucket.b.endpoint": "https://own.example",
        "spark.hadoop.fs.s3a.bucket.b.access.key": "own-key",
        "spark.hadoop.fs.s3a.bucket.open.aws.credentials.provider": (
            "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        ),
    }
    own = backend("s3a://b", options)
    assert isinstance(own, S3Settings)
    assert (own.endpoint, own.access_key, own.secret_key) == (
        "https://own.example",
        "own-key",
        "hadoop-secret",
    )
    other = backend("s3a://other", options)
    assert isinstance(other, S3Settings)
    assert other.access_key == "hadoop-key"
    opened = backend("s3a://open", options)
    assert isinstance(opened, S3Settings)
    assert opened.anonymous


def test_the_global_s3_endpoint_of_hadoop_is_no_endpoint() -> None:
    """s3.amazonaws.com stands for "the usual one"; the SDK knows the one of the region."""
    found = backend("s3://b", {"fs.s3a.endpoint": "s3.amazonaws.com"})
    assert isinstance(found, S3Settings)
    assert found.endpoint is None


def test_values_of_hadoop_are_trimmed() -> None:
    """As S3A trims them: a file of XML has line breaks around its values."""
    spaced = {
        "fs.s3a.endpoint": "\n    http://minio.example:9000\n  ",
        "fs.s3a.access.key": " key ",
        "fs.s3a.secret.key": "\tsecret\n",
        "fs.s3a.path.style.access": " true",
        "fs.s3a.session.token": "  ",
    }
    assert backend("s3://b", spaced) == S3Settings(
        "b", "", "http://minio.example:9000", None, "key", "secret", None, True
    )


def test_an_access_point_of_hadoop_is_not_looked_for_at_hadoops_endpoint() -> None:
    """S3A goes to the access point's own host and region; what was typed for us still holds."""
    arn = "arn:aws:s3:eu-west-1:123456789012:accesspoint/finance"
    options = {**HADOOP, "fs.s3a.bucket.b.accesspoint.arn": arn}
    found = backend("s3a://b", options)
    assert isinstance(found, S3Settings)
    assert (found.access_point, found.access_key) == (arn, "hadoop-key")
    assert (found.endpoint, found.region, found.path_style) == (None, None, None)
    typed = backend("s3a://b", {**options, "endpoint": "https://vpce.example"})
    assert isinstance(typed, S3Settings)
    assert typed.endpoint == "https://vpce.example"
    other = backend("s3a://other", options)
    assert isinstance(other, S3Settings)
    assert other.endpoint == "http://minio.example:9000"


def test_an_empty_setting_of_a_bucket_unsets_the_one_of_all_buckets() -> None:
    """As in S3A, where the bucket's value takes the place of the other before anything is read."""
    names = ("endpoint", "endpoint.region", "access.key", "secret.key", "path.style.access")
    unset = {f"fs.s3a.bucket.b.{name}": " " for name in names}
    assert backend("s3a://b", {**HADOOP, **unset}) == S3Settings("b")
    assert backend("s3a://other", {**HADOOP, **unset}) == backend("s3a://other", HADOOP)
    renamed = {
        "fs.s3a.encryption.algorithm": "SSE-KMS",
        "fs.s3a.bucket.b.server-side-encryption-algorithm": "SSE-S3",
        "fs.s3a.bucket.b.encryption.algorithm": "",
    }
    found = backend("s3a://b", renamed)
    assert isinstance(found, S3Settings)
    assert found.server_encryption == ServerEncryption("SSE-S3")


def test_gcs_settings() -> None:
    """Options, Hadoop's keys and the emulator's variable, which also means: no credentials."""
    assert backend("gs://b", {"project": "p", "credentialsFile": "/k.json"}) == GcsSettings(
        "b", project="p", credentials_file="/k.json"
    )
    hadoop = {
        "spark.hadoop.fs.gs.storage.root.url": "http://127.0.0.1:4443",
        "spark.hadoop.google.cloud.auth.service.account.json.keyfile": "/h.json",
        "fs.gs.project.id": "hp",
    }
    assert backend("gs://b", hadoop) == GcsSettings("b", "", "http://127.0.0.1:4443", "hp", "/h.json")
    assert backend("gs://b", env={"STORAGE_EMULATOR_HOST": "localhost:4443"}) == GcsSettings(
        "b", endpoint="http://localhost:4443", anonymous=True
    )


def test_azure_settings() -> None:
    """The account comes from the URL, the connection string, an option, Hadoop or the environment."""
    assert backend("az://c", {"accountName": "a", "accountKey": "k"}) == AzureSettings(
        "c", account_name="a", account_key="k"
    )
    connection = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k;"
    assert backend("az://c", env={"AZURE_STORAGE_CONNECTION_STRING": connection}) == AzureSettings(
        "c", account_name="a", connection_string=connection
    )
    hadoop = {"spark.hadoop.fs.azure.account.key.acct.dfs.core.windows.net": "hk"}
    assert backend("abfss://c@acct.dfs.core.windows.net/p", hadoop) == AzureSettings(
        "c", "p", account_name="acct", account_key="hk"
    )
    assert backend("az://c", hadoop) == AzureSettings("c", account_name="acct", account_key="hk")
    sas = {"fs.azure.sas.c.acct.blob.core.windows.net": "st"}
    assert backend("wasbs://c@acct.blob.core.windows.net", sas) == AzureSettings(
        "c", account_name="acct", sas_token="st"
    )
    fixed = {"fs.azure.sas.fixed.token.acct.dfs.core.windows.net": "ft"}
    assert backend("abfss://c@acct.dfs.core.windows.net", fixed) == AzureSettings(
        "c", account_name="acct", sas_token="ft"
    )


def test_azure_keys_of_one_host_are_not_used_for_another() -> None:
    """A key names the whole host. For a URL without one, the only host that has a key is meant."""
    china = "core.chinacloudapi.cn"
    keys = {
        f"fs.azure.account.key.acct.dfs.{china}": "k",
        f"fs.azure.sas.fixed.token.acct.dfs.{china}": "s",
        f"fs.azure.sas.c.acct.blob.{china}": "s",
    }
    assert backend("abfss://c@acct.dfs.core.windows.net", keys) == AzureSettings("c", account_name="acct")
    assert backend("abfss://c@acct.dfs.example.invalid", keys) == AzureSettings(
        "c", account_name="acct", endpoint="https://acct.blob.example.invalid"
    )
    here = AzureSettings("c", account_name="acct", account_key="k", endpoint=f"https://acct.blob.{china}")
    assert backend(f"abfss://c@acct.dfs.{china}", keys) == here
    assert backend("az://c", keys) == here


def test_azure_credentials_of_another_account_are_left_alone() -> None:
    """The environment's connection string is not for an account that the URL names otherwise."""
    env = {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=other;AccountKey=k;"}
    assert backend("abfss://c@acct.dfs.core.windows.net", env=env) == AzureSettings(
        "c", account_name="acct"
    )
    with pytest.raises(SettingsError, match="another account"):
        backend("abfss://c@acct.dfs.core.windows.net", {"connectionString": "AccountName=other"})
    with pytest.raises(SettingsError, match="AZURE_STORAGE_ACCOUNT"):
        backend("az://c")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acessKey": "a"}, "did you mean accessKey?"),
        ({"path.style": "true"}, "did you mean pathStyleAccess?"),
        ({"xyz": "1"}, "known: endpoint"),
        ({"pathStyleAccess": "maybe"}, "true or false"),
        ({"timeoutSeconds": "soon"}, "write a number"),
        ({"timeoutSeconds": "nan"}, "timeoutSeconds"),
        ({"retrySeconds": "-1"}, "retrySeconds"),
        ({"partSizeBytes": "1000"}, "partSizeBytes"),
        ({"maxConcurrency": "0"}, "maxConcurrency"),
        ({"endpoint": "minio:9000"}, "http:// or https://"),
        ({"endpoint": "http://user:s3cr3t@minio"}, "without user and password"),
        ({"accessKey": "s3cr3t"}, "go together"),
    ],
)
def test_a_wrong_option_says_what_is_right(options: dict[str, str], says: str) -> None:
    """Unknown names get the nearest known one, wrong values the form that is expected; no secret shows."""
    with pytest.raises(SettingsError) as caught:
        parse_store_settings("s3://b", options, env={})
    assert says in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_options_of_another_backend_are_ignored() -> None:
    """One set of options may serve a source and a target store."""
    assert backend("/data", {"endpoint": "http://x", "accountKey": "k"}) == LocalSettings(Path("/data"))
    assert all(is_store_option(name.upper()) for name in KNOWN)
    assert is_store_option("spark.hadoop.fs.s3a.endpoint")
    assert not is_store_option("keyColumns")


CUSTOMER_KEY = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"serverEncryption": "aes256"}, ServerEncryption("SSE-S3")),
        ({"serverEncryption": "SSE-KMS"}, ServerEncryption("SSE-KMS")),
        ({"serverEncryption": "none"}, None),
        (
            {"fs.s3a.encryption.algorithm": "SSE-C", "fs.s3a.encryption.key": CUSTOMER_KEY},
            ServerEncryption("SSE-C", CUSTOMER_KEY),
        ),
        (
            {
                "spark.hadoop.fs.s3a.server-side-encryption-algorithm": "SSE-KMS",
                "spark.hadoop.fs.s3a.server-side-encryption.key": "arn-of-old-name",
            },
            ServerEncryption("SSE-KMS", "arn-of-old-name"),
        ),
        (
            {
                "spark.hadoop.fs.s3a.encryption.algorithm": "SSE-C",
                "spark.hadoop.fs.s3a.encryption.key": CUSTOMER_KEY,
                "spark.hadoop.fs.s3a.bucket.b.encryption.algorithm": "DSSE-KMS",
                "spark.hadoop.fs.s3a.bucket.b.encryption.key": "arn-of-bucket",
                "spark.hadoop.fs.s3a.bucket.b.encryption.context": "a=1,b=x=y",
            },
            ServerEncryption("DSSE-KMS", "arn-of-bucket", (("a", "1"), ("b", "x=y"))),
        ),
        ({"fs.s3a.encryption.key": "of-no-algorithm"}, None),
        (
            {
                "serverEncryption": "SSE-KMS",
                "fs.s3a.encryption.algorithm": "SSE-C",
                "fs.s3a.encryption.key": CUSTOMER_KEY,
            },
            ServerEncryption("SSE-KMS"),
        ),
    ],
)
def test_the_servers_encryption_is_read_as_hadoop_reads_it(
    options: dict[str, str], expected: ServerEncryption | None
) -> None:
    """By options, by Hadoop's names old and new, for a bucket; no algorithm gets another one's key."""
    assert backend("s3://b", options) == S3Settings("b", server_encryption=expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"serverEncryption": "SSE-C"}, "serverEncryptionKey"),
        ({"serverEncryption": "SSE-C", "serverEncryptionKey": "s3cr3t"}, "32 bytes"),
        ({"serverEncryptionKey": "s3cr3t"}, "serverEncryption"),
        ({"serverEncryption": "SSE-K"}, "SSE-KMS"),
        ({"serverEncryption": "SSE-KMS", "serverEncryptionContext": "s3cr3t"}, "key=value"),
        ({"spark.hadoop.fs.s3a.encryption.algorithm": "CSE-KMS"}, "Hadoop's own client"),
        ({"accessPoint": "finance"}, "ARN"),
    ],
)
def test_encryption_that_cannot_be_is_refused_before_anything_is_written(
    options: dict[str, str], words: str
) -> None:
    """Objects that are not encrypted as was asked for must not come into being; no key is shown."""
    with pytest.raises(SettingsError, match=words) as caught:
        backend("s3://b", options)
    assert "s3cr3t" not in str(caught.value)


def test_who_pays_and_access_points_are_read_as_hadoop_reads_them() -> None:
    """An access point belongs to one bucket."""
    arn = "arn:aws:s3:eu-west-1:123456789012:accesspoint/finance"
    hadoop = {
        "spark.hadoop.fs.s3a.requester.pays.enabled": "true",
        "spark.hadoop.fs.s3a.bucket.b.accesspoint.arn": arn,
    }
    assert backend("s3://b", hadoop) == S3Settings("b", requester_pays=True, access_point=arn)
    assert backend("s3://c", hadoop) == S3Settings("c", requester_pays=True)
    assert backend("s3://c", {"accessPoint": arn}) == S3Settings("c", access_point=arn)


def test_secrets_are_not_in_a_repr() -> None:
    """Settings may be logged."""
    s3 = parse_store_settings(
        "s3://b", {"accessKey": "s3cr3t1", "secretKey": "s3cr3t2", "sessionToken": "s3cr3t3"}, env={}
    )
    azure = parse_store_settings(
        "az://c", {"accountName": "a", "accountKey": "s3cr3t1", "sasToken": "s3cr3t2"}, env={}
    )
    connection = parse_store_settings(
        "az://c", {"connectionString": "AccountName=a;AccountKey=s3cr3t"}, env={}
    )
    sealed = parse_store_settings(
        "s3://b", {"serverEncryption": "SSE-C", "serverEncryptionKey": CUSTOMER_KEY}, env={}
    )
    for settings in (s3, azure, connection, sealed):
        assert "s3cr3t" not in repr(settings)
        assert CUSTOMER_KEY not in repr(settings)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://b", "boto3", "s3"),
        ("gs://b", "google.cloud.storage", "gcs"),
        ("az://c", "azure.storage.blob", "azure"),
    ],
)
def test_a_missing_package_is_named_with_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    """Without the SDK the error is what to type."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as caught:
        open_object_store(url, {"accountName": "a"}, env={})
    assert f"pip install 'pyspark-checkpoint[{extra}]'" in str(caught.value)
    assert package in str(caught.value)


def test_opening_sends_nothing() -> None:
    """A store opens without a network: what is wrong there shows at the first request."""
    options = {"endpoint": "http://127.0.0.1:9", "anonymous": "true", "accountName": "a"}
    for url in ("s3://bucket/p", "gs://bucket/p"):
        assert open_object_store(url, options, env={}).url == url
    assert open_object_store("az://c/p", {"accountName": "a"}, env={}).url
