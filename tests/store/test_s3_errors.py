"""What each answer of S3 and each exception of boto becomes."""

from __future__ import annotations

import http.client
import inspect
from typing import Any

import botocore.exceptions
import botocore.parsers
import pytest
import urllib3.exceptions

from pyspark_checkpoint.errors import (
    AlreadyExists,
    ChecksumRefused,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.s3.s3_errors import FOREIGN, translate, translated

SECRET = "AKIAsecret/Signature=topsecret"
GET = Call("s3://bucket", "get", "k")
HEAD = Call("s3://bucket", "head", "k")
PUT = Call("s3://bucket", "put", "k", writes=True)
CREATE = Call("s3://bucket", "put", "k", writes=True, if_absent=True)
SWAP = Call("s3://bucket", "put", "k", writes=True, if_match=True)


def answer(status: int, code: str, retry_after: str | None = None) -> botocore.exceptions.ClientError:
    headers = {"authorization": SECRET} | ({"retry-after": retry_after} if retry_after else {})
    response: Any = {
        "Error": {"Code": code or str(status), "Message": SECRET},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return botocore.exceptions.ClientError(response, "PutObject")


@pytest.mark.parametrize(
    ("status", "code", "call", "expected"),
    [
        (412, "PreconditionFailed", CREATE, AlreadyExists),
        (412, "PreconditionFailed", SWAP, Conflict),
        (412, "PreconditionFailed", GET, Conflict),
        (304, "NotModified", CREATE, AlreadyExists),
        (304, "", SWAP, Conflict),
        (409, "ConditionalRequestConflict", CREATE, Unavailable),
        (409, "ConditionalRequestConflict", SWAP, Unavailable),
        (409, "OperationAborted", PUT, Unavailable),
        (409, "InvalidBucketState", PUT, Invalid),
        (404, "NoSuchKey", SWAP, Conflict),
        (404, "NoSuchKey", GET, NotFound),
        (404, "", HEAD, NotFound),
        (404, "NotFound", HEAD, NotFound),
        (404, "", GET, Invalid),
        (404, "NoSuchBucket", GET, Invalid),
        (404, "NoSuchBucket", CREATE, Invalid),
        (404, "NoSuchBucket", SWAP, Invalid),
        (404, "NoSuchUpload", CREATE, OutcomeUnknown),
        (403, "AccessDenied", GET, Denied),
        (403, "", HEAD, Denied),
        (401, "Unauthorized", GET, Denied),
        (403, "SignatureDoesNotMatch", PUT, Denied),
        (403, "InvalidAccessKeyId", PUT, Denied),
        (403, "RequestTimeTooSkewed", PUT, Denied),
        (400, "ExpiredToken", PUT, Denied),
        (400, "InvalidToken", GET, Denied),
        (301, "PermanentRedirect", GET, Invalid),
        (307, "TemporaryRedirect", PUT, Invalid),
        (400, "AuthorizationHeaderMalformed", PUT, Invalid),
        (503, "SlowDown", CREATE, Unavailable),
        (503, "ServiceUnavailable", CREATE, Unavailable),
        (429, "TooManyRequests", CREATE, Unavailable),
        (429, "", CREATE, Unavailable),
        (500, "SlowDown", PUT, Unavailable),
        (503, "", CREATE, OutcomeUnknown),
        (503, "", GET, Unavailable),
        (400, "RequestTimeout", PUT, Unavailable),
        (400, "IncompleteBody", PUT, Unavailable),
        (500, "InternalError", CREATE, OutcomeUnknown),
        (500, "InternalError", PUT, OutcomeUnknown),
        (500, "InternalError", GET, Unavailable),
        (502, "", CREATE, OutcomeUnknown),
        (502, "", GET, Unavailable),
        (504, "", PUT, OutcomeUnknown),
        (400, "BadDigest", CREATE, ChecksumRefused),
        (400, "XAmzContentSHA256Mismatch", PUT, ChecksumRefused),
        (400, "XAmzContentChecksumMismatch", PUT, ChecksumRefused),
        (400, "InvalidPart", PUT, ChecksumRefused),
        (400, "MalformedXML", PUT, ChecksumRefused),
        (400, "InvalidRequest", PUT, Invalid),
        (400, "KeyTooLongError", PUT, Invalid),
        (400, "EntityTooLarge", PUT, Invalid),
        (405, "MethodNotAllowed", PUT, Invalid),
        (501, "NotImplemented", PUT, Invalid),
        (200, "Weird", CREATE, OutcomeUnknown),
        (0, "", PUT, OutcomeUnknown),
    ],
)
def test_each_answer_has_one_meaning(
    status: int, code: str, call: Call, expected: type[StoreError]
) -> None:
    """Code first, then status; what the caller asked decides between losing and failing."""
    error = translate(answer(status, code), call)
    assert type(error) is expected
    assert error.key == "k"
    assert "topsecret" not in f"{error}{error!r}{error.hint}"


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("0", 0.0), ("soon", None), (None, None)])
def test_the_server_says_how_long_to_wait(header: str | None, seconds: float | None) -> None:
    """Retry-After in seconds reaches the caller."""
    error = translate(answer(503, "SlowDown", header), PUT)
    assert isinstance(error, Unavailable)
    assert error.retry_after_seconds == seconds


def test_a_bare_503_that_asks_to_wait_was_not_carried_out() -> None:
    """With Retry-After even a 503 without a code is a plain refusal."""
    assert type(translate(answer(503, "", "1"), CREATE)) is Unavailable


def test_a_missing_bucket_says_what_to_type() -> None:
    """The hint is the command that makes the bucket."""
    assert "aws s3 mb s3://bucket" in str(translate(answer(404, "NoSuchBucket"), GET))


def test_missing_credentials_say_what_to_give() -> None:
    """The hint names options and environment."""
    error = translate(botocore.exceptions.NoCredentialsError(), PUT)
    assert isinstance(error, Denied)
    assert "accessKey" in str(error)
    assert "AWS_PROFILE" in str(error)


@pytest.mark.parametrize(
    ("error", "for_put", "for_get"),
    [
        (botocore.exceptions.EndpointConnectionError(endpoint_url=SECRET), Unavailable, Unavailable),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url=SECRET), Unavailable, Unavailable),
        (botocore.exceptions.ProxyConnectionError(proxy_url=SECRET), Unavailable, Unavailable),
        (ConnectionRefusedError(), Unavailable, Unavailable),
        (botocore.exceptions.ReadTimeoutError(endpoint_url=SECRET), OutcomeUnknown, Unavailable),
        (botocore.exceptions.ConnectionClosedError(endpoint_url=SECRET), OutcomeUnknown, Unavailable),
        (botocore.exceptions.HTTPClientError(error=SECRET), OutcomeUnknown, Unavailable),
        (
            botocore.exceptions.SSLError(endpoint_url="", error=Exception("EOF " + SECRET)),
            OutcomeUnknown,
            Unavailable,
        ),
        (
            botocore.exceptions.SSLError(endpoint_url="", error=Exception("CERTIFICATE_VERIFY_FAILED")),
            Invalid,
            Invalid,
        ),
        (botocore.exceptions.ResponseStreamingError(error=SECRET), OutcomeUnknown, Unavailable),
        (
            botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
            OutcomeUnknown,
            Unavailable,
        ),
        (botocore.parsers.ResponseParserError(SECRET), OutcomeUnknown, Unavailable),
        (urllib3.exceptions.ProtocolError(SECRET), OutcomeUnknown, Unavailable),
        (http.client.IncompleteRead(b""), OutcomeUnknown, Unavailable),
        (ConnectionResetError(), OutcomeUnknown, Unavailable),
        (TimeoutError(), OutcomeUnknown, Unavailable),
        (ValueError(SECRET), OutcomeUnknown, Unavailable),
        (
            botocore.exceptions.FlexibleChecksumError(error_msg=SECRET),
            ChecksumRefused,
            ChecksumRefused,
        ),
        (botocore.exceptions.ParamValidationError(report=SECRET), Invalid, Invalid),
        (botocore.exceptions.InvalidRegionError(region_name=SECRET), Invalid, Invalid),
        (botocore.exceptions.NoCredentialsError(), Denied, Denied),
        (botocore.exceptions.PartialCredentialsError(provider="", cred_var=""), Denied, Denied),
        (botocore.exceptions.ProfileNotFound(profile=SECRET), Denied, Denied),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_a_write_that_may_have_been_sent_is_unknown(
    error: Exception, for_put: type[StoreError], for_get: type[StoreError]
) -> None:
    """The same failure leaves a read unavailable and a write unknown, unless nothing was sent."""
    assert type(translate(error, PUT)) is for_put
    assert type(translate(error, GET)) is for_get
    assert "topsecret" not in str(translate(error, PUT))


def _botocore_exceptions() -> list[type[Exception]]:
    return [
        found
        for found in vars(botocore.exceptions).values()
        if inspect.isclass(found) and issubclass(found, Exception) and not issubclass(found, Warning)
    ]


# Raised while a model is loaded, by nothing that a request goes through.
_NOT_AT_RUNTIME = {"UndefinedModelAttributeError", "MissingServiceIdError"}


@pytest.mark.parametrize("kind", _botocore_exceptions(), ids=lambda kind: kind.__name__)
def test_no_exception_of_boto_leaves(kind: type[Exception]) -> None:
    """Whatever class boto has, also one that we have never heard of, leaves as one of ours."""
    if kind.__name__ in _NOT_AT_RUNTIME:
        return
    assert issubclass(kind, FOREIGN)
    if issubclass(kind, botocore.exceptions.ClientError):
        error: Exception = kind({"Error": {}}, "PutObject")
    else:
        error = kind.__new__(kind)
        error.args = (SECRET,)
    with pytest.raises(StoreError) as caught, translated(PUT):
        raise error
    assert "topsecret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
