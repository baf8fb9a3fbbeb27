"""Store URLs: every spelling that users have, and every mistake with what to type instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.store.url import StoreUrl, local_url, parse_store_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/a/b//", StoreUrl("s3", "bucket", "a/b")),
        ("s3a://bucket/a b/ü%20", StoreUrl("s3", "bucket", "a b/ü%20")),
        ("S3N://bucket/a", StoreUrl("s3", "bucket", "a")),
        ("gs://bucket/a@b:c", StoreUrl("gs", "bucket", "a@b:c")),
        ("gcs://my_bucket.example/x", StoreUrl("gs", "my_bucket.example", "x")),
        ("az://container/p", StoreUrl("az", "container", "p")),
        ("az://$web/p", StoreUrl("az", "$web", "p")),
        ("abfss://c@acct.dfs.core.windows.net/p/q", StoreUrl("az", "c", "p/q", "acct")),
        ("abfs://c@acct.dfs.core.windows.net", StoreUrl("az", "c", "", "acct")),
        ("wasbs://c@acct.blob.core.windows.net/p", StoreUrl("az", "c", "p", "acct")),
        (
            "abfss://c@acct.dfs.core.chinacloudapi.cn/p",
            StoreUrl("az", "c", "p", "acct", "https://acct.blob.core.chinacloudapi.cn"),
        ),
        ("memory://name", StoreUrl("memory", "name", "")),
        ("memory://name/below", StoreUrl("memory", "name", "below")),
        ("file:///data/x", StoreUrl("file", "", "/data/x")),
        ("file:/data/x/", StoreUrl("file", "", "/data/x")),
        ("file://localhost/data", StoreUrl("file", "", "/data")),
        ("file:///data/a%20b", StoreUrl("file", "", "/data/a%20b")),
        ("/data/a b?c#d", StoreUrl("file", "", "/data/a b?c#d")),
        ("file:/data/a b?c#d", StoreUrl("file", "", "/data/a b?c#d")),
        ("file:///data/#1/", StoreUrl("file", "", "/data/#1")),
        ("relative/x", StoreUrl("file", "", f"{Path.cwd()}/relative/x")),
        ("./a:b", StoreUrl("file", "", f"{Path.cwd()}/a:b")),
        ("~/x", StoreUrl("file", "", str(Path("~/x").expanduser()))),
    ],
)
def test_a_url_is_taken_apart(url: str, expected: StoreUrl) -> None:
    """Aliases, trailing slashes and plain paths all name the place that the user means."""
    assert parse_store_url(url) == expected


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "type for example s3://bucket"),
        ("   ", "type for example s3://bucket"),
        ("s3://", "type s3://bucket/prefix"),
        ("s3:///key", "type s3://bucket/prefix"),
        ("s3:/bucket/p", "type s3://bucket/p"),
        ("s3:bucket", "type s3://bucket"),
        ("gs:", "type gs://bucket"),
        ("s3://bucket//a", "single slashes"),
        ("s3://bucket/a/../b", "segment '..'"),
        ("s3://buc ket/a", "is not a name"),
        ("ss3://bucket", "did you mean s3://"),
        ("abffss://c@a.dfs.core.windows.net/", "did you mean abfss://"),
        ("hdfs://nn/x", "unknown scheme hdfs://"),
        ("https://bucket.s3.amazonaws.com/x", "Known: memory://, file://, s3://, gs://, az://"),
        ("file://data/x", "type file:///data/x"),
        ("file:relative", "absolute path"),
        ("abfss://c@nowhere/p", "not the host of an Azure account"),
        ("abfss://@acct.dfs.core.windows.net/p", "abfss://container@account"),
        ("memory://", "type memory://name"),
    ],
)
def test_a_mistake_says_what_to_type(url: str, says: str) -> None:
    """Each malformed URL is a SettingsError whose text has the cure."""
    with pytest.raises(SettingsError) as caught:
        parse_store_url(url)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:s3cr3t@bucket/x",
        "s3a://AKIAKEY:s3cr/3t@bucket/x",
        "gs://user@s3cr3t/x",
        "az://container/p?sig=s3cr3t",
        "s3://bucket/x#s3cr3t",
        "abfss://c:s3cr3t@acct.dfs.core.windows.net/p",
    ],
)
def test_what_may_be_a_secret_is_not_echoed(url: str) -> None:
    """User, password, port, query and fragment are refused, and not repeated in the error."""
    with pytest.raises(SettingsError) as caught:
        parse_store_url(url)
    assert "s3cr" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


@pytest.mark.parametrize("path", ["/data/x", "/data/a b", "/data/a?b#c", "/data/a%20b"])
def test_a_local_url_leads_back_to_its_directory(path: str) -> None:
    """The URL that a local store shows opens the same directory."""
    assert parse_store_url(local_url(Path(path))).path == path
