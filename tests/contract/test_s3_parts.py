"""What S3 alone does: parts, copies by the server, listings, credentials, encryption. On a real server."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.store.open import parse_store_settings
from pyspark_checkpoint.store.s3.s3_store import S3Store
from pyspark_checkpoint.store.s3.s3_transfer import MAX_PARTS, MIN_PART_BYTES, part_ranges
from pyspark_checkpoint.store.settings import S3Settings
from tests.support.servers.proxy import Fault, FaultProxy, Rule
from tests.support.servers.s3 import S3Server

MIB = 1024 * 1024
LARGE = b"0123456789abcdef" * (12 * MIB // 16)
OTHER = b"fedcba9876543210" * (11 * MIB // 16)


@dataclass
class Setting:
    """A store whose large objects begin at 6 MiB, and the proxy that it goes through."""

    server: S3Server
    proxy: FaultProxy
    prefix: str
    store: S3Store

    def open_uploads(self) -> int:
        """How many uploads the server still keeps parts of."""
        client = self.server.client()
        found = client.list_multipart_uploads(Bucket=self.server.bucket, Prefix=self.prefix)
        client.close()
        return len(found.get("Uploads", []))


@pytest.fixture
def setting(s3_server: S3Server) -> Iterator[Setting]:
    prefix = SYSTEM_CLOCK.uuid7()
    with FaultProxy(s3_server.endpoint) as proxy:
        settings = s3_settings(s3_server.url(prefix), s3_server.options_at(proxy.endpoint))
        store = S3Store(settings, single_put_bytes=6 * MIB, copy_whole_bytes=6 * MIB)
        yield Setting(s3_server, proxy, prefix, store)


def s3_settings(url: str, options: dict[str, str]) -> S3Settings:
    more = {"partSizeBytes": str(5 * MIB), "maxConcurrency": "2"}
    backend = parse_store_settings(url, {**options, **more}, env={}).backend
    assert isinstance(backend, S3Settings)
    return backend


def test_conditions_hold_for_uploads_in_parts(setting: Setting) -> None:
    """Create and swap of a large body are refused like those of a small one, and leave no parts."""
    store = setting.store
    version = store.put("k", LARGE, if_absent=True, nonce="mine")
    assert store.head("k").nonce == "mine"
    with pytest.raises(AlreadyExists):
        store.put("k", OTHER, if_absent=True)
    swapped = store.put("k", OTHER, if_match=version)
    with pytest.raises(Conflict):
        store.put("k", LARGE, if_match=version)
    with pytest.raises(Conflict):
        store.put("absent", LARGE, if_match=version)
    assert store.read("k").data == OTHER
    assert store.head("k").version == swapped
    assert setting.open_uploads() == 0


def test_a_refused_upload_is_refused_before_its_bytes_are_sent(setting: Setting) -> None:
    """A key that is taken costs a HEAD, not the upload."""
    setting.store.put("k", b"taken")
    setting.proxy.clear()
    with pytest.raises(AlreadyExists):
        setting.store.put("k", LARGE, if_absent=True)
    assert [request.method for request in setting.proxy.requests] == ["HEAD"]


def test_the_condition_is_decided_when_the_parts_are_joined(setting: Setting) -> None:
    """Somebody who creates the key during the upload wins, and the parts are given up."""
    rival = S3Store(s3_settings(setting.server.url(setting.prefix), setting.server.options))

    def create_before_joining(method: str, target: str) -> None:
        if method == "POST" and "uploadId=" in target:
            rival.put("k", b"rival", if_absent=True)

    setting.proxy.before = create_before_joining
    with pytest.raises(AlreadyExists):
        setting.store.put("k", LARGE, if_absent=True)
    assert rival.get("k") == b"rival"
    assert setting.open_uploads() == 0


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.ERROR_503, Fault.LOSE_RESPONSE, Fault.FLIP_REQUEST])
def test_a_part_that_fails_in_passing_is_sent_again(setting: Setting, fault: Fault) -> None:
    """One bad part does not cost the others: a part is invisible and may be repeated."""
    setting.proxy.add(Rule(fault, contains="partNumber=2", retry_after_seconds=0))
    setting.store.put("k", LARGE)
    assert setting.store.get("k") == LARGE
    assert setting.proxy.count("PUT", "partNumber=2") == 2
    assert setting.proxy.count("PUT", "partNumber=1") == 1


def test_a_part_that_keeps_failing_leaves_nothing(setting: Setting) -> None:
    """The key stays absent, the error says that nothing was written, and no part is left."""
    setting.proxy.add(Rule(Fault.ERROR_503, contains="partNumber=2", times=None, retry_after_seconds=0))
    with pytest.raises(Unavailable):
        setting.store.put("k", LARGE)
    with pytest.raises(NotFound):
        setting.store.head("k")
    assert setting.open_uploads() == 0


def test_giving_up_is_repeated_until_no_part_is_left(setting: Setting) -> None:
    """An abort that fails in passing is sent again."""
    setting.proxy.add(Rule(Fault.ERROR_500, contains="partNumber=2", times=None))
    setting.proxy.add(Rule(Fault.RESET, method="DELETE", times=2))
    with pytest.raises(Unavailable):
        setting.store.put("k", LARGE)
    assert setting.open_uploads() == 0


def test_a_large_copy_is_made_by_the_server_in_parts(setting: Setting) -> None:
    """No byte passes through here, and the condition holds."""
    setting.store.put("source", LARGE, nonce="mine")
    setting.proxy.clear()
    version = setting.store.copy("source", "k")
    sent = sum(request.request_bytes + request.response_bytes for request in setting.proxy.requests)
    assert sent < 100_000
    assert setting.store.read("k").data == LARGE
    info = setting.store.head("k")
    assert (info.version, info.nonce) == (version, None)
    with pytest.raises(AlreadyExists):
        setting.store.copy("source", "k", if_absent=True)
    assert setting.open_uploads() == 0


def test_conditional_copies_go_to_the_server_once_it_has_proven_itself(setting: Setting) -> None:
    """The first goes through here and tests the server; from then on no byte does."""
    store = setting.store
    store.put("source", b"x" * 100_000)
    store.copy("source", "first", if_absent=True)
    setting.proxy.clear()
    store.copy("source", "second", if_absent=True)
    assert setting.proxy.count("GET") == 0
    with pytest.raises(AlreadyExists):
        store.copy("source", "second", if_absent=True)
    assert setting.proxy.count("GET") == 0
    assert store.get("first") == store.get("second") == b"x" * 100_000


def test_conditional_copies_avoid_a_server_that_ignores_the_condition(rclone_server: S3Server) -> None:
    """Where the test fails, every conditional copy stays a read and a conditional put."""
    with FaultProxy(rclone_server.endpoint) as proxy:
        options = rclone_server.options_at(proxy.endpoint)
        store = S3Store(s3_settings(rclone_server.url(SYSTEM_CLOCK.uuid7()), options))
        store.put("source", b"x" * 1000)
        store.copy("source", "first", if_absent=True)
        proxy.clear()
        store.copy("source", "second", if_absent=True)
        assert proxy.count("GET") == 1
        assert store.get("second") == b"x" * 1000


def test_an_absent_key_costs_one_more_request_once(setting: Setting) -> None:
    """The answer to a HEAD does not say whether the bucket is missing: that is asked the first time."""
    for expected in (2, 3, 4):
        with pytest.raises(NotFound):
            setting.store.head("absent")
        assert setting.proxy.count("HEAD") == expected


@pytest.mark.parametrize("key", ["there", "absent"])
def test_an_answer_to_a_get_says_that_the_bucket_is_there(setting: Setting, key: str) -> None:
    """Then an absent key costs no more."""
    setting.store.put("there", b"x")
    with contextlib.suppress(NotFound):
        setting.store.get(key)
    with pytest.raises(NotFound):
        setting.store.head("gone")
    assert setting.proxy.count("HEAD") == 1


def test_credentials_that_may_only_read_are_denied_to_write(s3_server: S3Server) -> None:
    """Reading works; writing is Denied, with a hint, and nothing is written."""
    url = s3_server.url(SYSTEM_CLOCK.uuid7())
    owner, reader = (
        S3Store(s3_settings(url, s3_server.options)),
        S3Store(s3_settings(url, s3_server.reader_options)),
    )
    owner.put("k", b"x")
    assert reader.get("k") == b"x"
    for write in (
        lambda: reader.put("k", b"y"),
        lambda: reader.put("k", b"y", if_absent=True),
        lambda: reader.delete(["k"]),
        lambda: reader.delete(["k", "l"]),
        lambda: reader.copy("k", "l"),
    ):
        with pytest.raises(Denied) as caught:
            write()
        assert caught.value.hint
    assert [info.key for info in owner.list()] == ["k"]


def test_a_wrong_secret_is_denied_and_not_shown(s3_server: S3Server) -> None:
    """Every verb says Denied; the secret is in no message."""
    options = {**s3_server.options, "secretKey": "wrong-and-private"}
    store = S3Store(s3_settings(s3_server.url("p"), options))
    for call in (
        lambda: store.put("k", b"x"),
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: list(store.list()),
        lambda: store.delete(["k"]),
    ):
        with pytest.raises(Denied) as caught:
            call()
        assert "wrong-and-private" not in f"{caught.value!r}{caught.value}"
    assert "wrong-and-private" not in repr(s3_settings("s3://bkt/p", options))


def test_no_credentials_at_all_are_denied(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the SDK's chain finds nothing, the hint says what to give."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"endpoint": s3_server.endpoint, "region": "us-east-1", "timeoutSeconds": "7"}
    with pytest.raises(Denied, match="accessKey"):
        S3Store(s3_settings("s3://ckpt-test/p", options)).put("k", b"x")


def test_nobody_at_the_endpoint_is_unavailable_also_for_a_write(s3_server: S3Server) -> None:
    """A refused connection has sent nothing."""
    options = s3_server.options_at("http://127.0.0.1:1")
    store = S3Store(s3_settings("s3://ckpt-test/p", options))
    with pytest.raises(Unavailable):
        store.put("k", b"x", if_absent=True)


@pytest.mark.parametrize("endpoint", ["http://", "http://bad host", "http://127.0.0.1:99999"])
def test_an_endpoint_that_cannot_be_is_invalid(s3_server: S3Server, endpoint: str) -> None:
    """What was typed wrong is said so, as an error of ours."""
    settings = S3Settings("ckpt-test", "p", endpoint, "us-east-1", "a", "b")
    with pytest.raises((Invalid, Unavailable)):
        S3Store(settings).get("k")


@given(st.integers(1, 50 * 1024**4), st.integers(1, 1024**3))
def test_parts_cover_the_object_within_the_limits(size_bytes: int, part_bytes: int) -> None:
    """Parts are contiguous, at most 10,000, and none but the last is below 5 MiB."""
    step = max(part_bytes, MIN_PART_BYTES, -(-size_bytes // MAX_PARTS))
    if size_bytes // step > 2000:  # the law is the same, the list only longer
        size_bytes = step * 2000 + size_bytes % step
    ranges = list(part_ranges(size_bytes, part_bytes))
    assert 1 <= len(ranges) <= MAX_PARTS
    assert [part.number for part in ranges] == list(range(1, len(ranges) + 1))
    assert ranges[0].start == 0
    assert ranges[-1].end == size_bytes
    assert all(one.end == two.start for one, two in itertools.pairwise(ranges))
    assert all(part.end - part.start >= MIN_PART_BYTES for part in ranges[:-1])


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.TRUNCATE, Fault.ERROR_503])
def test_a_stream_goes_on_after_a_passing_failure(setting: Setting, fault: Fault) -> None:
    """A chunk is of a version that cannot change, so that it may be asked for again."""
    data = bytes(range(256)) * 1000
    setting.store.put("k", data)
    setting.proxy.clear()
    setting.proxy.add(Rule(fault, skip=2, retry_after_seconds=0))
    assert b"".join(setting.store.stream("k", chunk_bytes=50_000)) == data
    assert setting.proxy.count("GET") == 7


def use_every_verb(store: S3Store) -> None:
    """Put, read, copy, list and delete; small and in parts, except for a copy in parts."""
    version = store.put("small", b"first", if_absent=True)
    store.put("small", b"second", if_match=version)
    store.put("large", LARGE)
    assert store.read("small").data == b"second"
    assert store.get("large", start=7, end=11) == LARGE[7:11]
    assert b"".join(store.stream("large", chunk_bytes=8 * MIB)) == LARGE
    assert store.head("large").size_bytes == len(LARGE)
    store.copy("small", "copied")
    store.copy("small", "created", if_absent=True)
    assert store.get("copied") == store.get("created") == b"second"
    keys = ["copied", "created", "large", "small"]
    assert [info.key for info in store.list()] == keys
    store.delete(keys[:1])
    store.delete(keys[1:])
    assert list(store.list()) == []


def with_options(setting: Setting, **options: str) -> S3Store:
    """The setting's store, opened with further options."""
    given = {**setting.server.options_at(setting.proxy.endpoint), **options}
    settings = s3_settings(setting.server.url(setting.prefix), given)
    return S3Store(settings, single_put_bytes=6 * MIB, copy_whole_bytes=6 * MIB)


def test_a_key_of_the_customer_is_sent_with_every_request_that_needs_it(setting: Setting) -> None:
    """SSE-C: the server encrypts and forgets the key; without it not even a head is answered."""
    key = base64.b64encode(bytes(range(32))).decode()
    options = {
        "spark.hadoop.fs.s3a.encryption.algorithm": "SSE-C",
        "spark.hadoop.fs.s3a.encryption.key": key,
    }
    store = with_options(setting, **options)
    use_every_verb(store)
    store.put("large", LARGE)
    setting.proxy.clear()
    with contextlib.suppress(Invalid):  # SeaweedFS does not implement the copy of a part with such a key
        store.copy("large", "large-copy")
    parts = [request for request in setting.proxy.requests if "partNumber" in request.target]
    assert parts
    for request in parts:
        assert request.headers["x-amz-server-side-encryption-customer-key"] == key
        assert request.headers["x-amz-copy-source-server-side-encryption-customer-key"] == key
    store.put("kept", b"sealed")
    for read in (setting.store.get, setting.store.head):
        with pytest.raises((Invalid, Denied)):
            read("kept")
    other = {**options, "spark.hadoop.fs.s3a.encryption.key": base64.b64encode(bytes(32)).decode()}
    with pytest.raises((Invalid, Denied)):
        with_options(setting, **other).get("kept")
    assert store.get("kept") == b"sealed"


def test_whoever_pays_is_said_in_every_request(setting: Setting) -> None:
    """Buckets whose requesters pay refuse all requests that do not say so."""
    store = with_options(setting, **{"spark.hadoop.fs.s3a.requester.pays.enabled": "true"})
    use_every_verb(store)
    store.put("large", LARGE)
    store.copy("large", "large-copy")
    setting.proxy.add(Rule(Fault.ERROR_403, contains="partNumber=2"))
    with pytest.raises(Denied):
        store.put("given-up", LARGE)
    requests = setting.proxy.requests
    assert {request.method for request in requests} == {"PUT", "GET", "HEAD", "POST", "DELETE"}
    assert {request.headers.get("x-amz-request-payer") for request in requests} == {"requester"}


@pytest.mark.parametrize(
    ("algorithm", "header"), [("AES256", "AES256"), ("SSE-KMS", "aws:kms"), ("DSSE-KMS", "aws:kms:dsse")]
)
def test_encryption_by_the_service_is_asked_for_where_an_object_begins(
    rclone_server: S3Server, algorithm: str, header: str
) -> None:
    """On the wire: of a put, a copy and an upload in parts; in no other request, which S3 would refuse."""
    with FaultProxy(rclone_server.endpoint) as proxy:
        setting = Setting(rclone_server, proxy, SYSTEM_CLOCK.uuid7(), None)  # type: ignore[arg-type]
        arn = "arn:aws:kms:eu-west-1:123456789012:key/1234"
        options = {
            "spark.hadoop.fs.s3a.encryption.algorithm": algorithm,
            "spark.hadoop.fs.s3a.encryption.key": arn,
            "spark.hadoop.fs.s3a.encryption.context": "project=a, stage=b",
        }
        store = with_options(setting, **options)
        store.put("small", b"x")
        store.put("large", LARGE)
        store.copy("small", "copied")
        store.get("small")
        store.delete(["small", "large"])
        began = [r for r in proxy.requests if "x-amz-server-side-encryption" in r.headers]
        others = [r for r in proxy.requests if r not in began]
    assert [(r.method, r.target.rpartition("/")[2]) for r in began] == [
        ("PUT", "small"),
        ("POST", "large?uploads"),
        ("PUT", "copied"),
    ]
    for request in began:
        assert request.headers["x-amz-server-side-encryption"] == header
        if algorithm == "AES256":
            assert "x-amz-server-side-encryption-aws-kms-key-id" not in request.headers
            continue
        assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == arn
        context = request.headers["x-amz-server-side-encryption-context"]
        assert json.loads(base64.b64decode(context)) == {"project": "a", "stage": "b"}
    assert not any("encryption" in name for request in others for name in request.headers)


def test_requests_go_to_the_access_point(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the wire: its host is asked by name, also where buckets are to stand in the path."""
    monkeypatch.setenv("http_proxy", setting.proxy.endpoint)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    bucket = setting.server.bucket
    options = {
        "endpoint": "http://s3-accesspoint.eu-west-1.example",
        "region": "eu-west-1",
        "pathStyleAccess": "true",
        f"spark.hadoop.fs.s3a.bucket.{bucket}.accesspoint.arn": (
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/finance"
        ),
    }
    store = with_options(setting, **options)
    for ask in (lambda: store.put("k", b"x"), lambda: store.copy("k", "l"), lambda: store.delete(["k"])):
        with contextlib.suppress(StoreError):  # the server behind knows nothing of access points
            ask()
    hosts = {request.headers["host"] for request in setting.proxy.requests}
    assert hosts == {"finance-123456789012.s3-accesspoint.eu-west-1.example"}
    paths = {
        request.target.partition(".example")[2].partition("?")[0] for request in setting.proxy.requests
    }
    assert f"/{setting.prefix}/k" in paths
    assert not any(bucket in path for path in paths)
