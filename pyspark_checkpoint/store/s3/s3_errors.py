"""What boto raises, in our words: the only place where S3's exceptions and error codes are known.

An answer is judged by its error code first, which only the service itself can have written, then by
its HTTP status. A write that may have been carried out is ``OutcomeUnknown``: 500, 502, 504, a bare
503, a timeout, a torn connection, an unreadable answer. What S3 itself declined is not."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import botocore.exceptions as boto
import botocore.parsers
import urllib3.exceptions

from pyspark_checkpoint.errors import StoreError
from pyspark_checkpoint.store.remote import Call, describe_status, error_code, parse_retry_after

FOREIGN: tuple[type[Exception], ...] = (
    boto.ClientError,
    boto.BotoCoreError,
    botocore.parsers.ResponseParserError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,  # boto's own for endpoints, host names and time stamps that it cannot read
)
"""Every exception that a call of boto is known to raise."""

_SLOW_DOWN = frozenset(
    {
        "SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "ThrottledException",
        "RequestThrottled", "RequestLimitExceeded", "TooManyRequests", "TooManyRequestsException",
        "BandwidthLimitExceeded", "LimitExceededException", "Busy", "ServerBusy",
    }
)  # fmt: skip
# The request did not arrive whole, or another writer was busy with the key: nothing was done.
_DECLINED = frozenset(
    {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "IncompleteBody"}
)
# Lists of parts and of keys have no checksum everywhere; a server that cannot follow ours got another.
_DAMAGED = frozenset(
    {
        "BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch",
        "ContentSHA256Mismatch", "ChecksumMismatch", "MalformedXML", "InvalidPart", "InvalidPartOrder",
    }
)  # fmt: skip
_CREDENTIALS = frozenset(
    {
        "AccessDenied", "AllAccessDisabled", "AccountProblem", "ExpiredToken", "InvalidToken",
        "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NotSignedUp",
        "InvalidClientTokenId", "UnrecognizedClientException",
    }
)  # fmt: skip
_WRONG_REGION = frozenset(
    {
        "PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException", "InvalidRegionName",
    }
)  # fmt: skip


def _classes(*names: str) -> tuple[type[Exception], ...]:
    """Classes of botocore by name, as far as the installed version has them."""
    return tuple(getattr(boto, name) for name in names if hasattr(boto, name))


_NO_CREDENTIALS = _classes(
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "NoAuthTokenError",
    "TokenRetrievalError",
    "SSOError",
    "LoginError",
    "RefreshWithMFAUnsupportedError",
    "MetadataRetrievalError",
    "ProfileNotFound",
    "UnknownCredentialError",
    "InfiniteLoopConfigError",
)
_NEVER_SENT = (
    *_classes("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError"),
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    ConnectionRefusedError,
)
_BROKEN = _classes("HTTPClientError", "ConnectionError", "IncompleteReadError", "AwsChunkedWrapperError")
_CHECKSUM = _classes("ChecksumError", "FlexibleChecksumError")
_ACCESS_HINT = (
    "give accessKey and secretKey, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a "
    "role; it needs s3:GetObject, PutObject, DeleteObject and ListBucket (without the last, S3 forbids "
    "what is merely absent)"
)


@contextmanager
def translated(call: Call) -> Iterator[None]:
    """A block in which boto is called: what it raises leaves as one of our errors.

    The text of the foreign exception is not passed on, and neither is the exception itself, because
    both may hold headers.
    """
    try:
        yield
    except FOREIGN as error:
        raise translate(error, call) from None


def translate(error: Exception, call: Call) -> StoreError:
    """Return our error for anything of ``FOREIGN``."""
    if isinstance(error, boto.ClientError):
        return translate_answer(error.response, call)
    name = type(error).__name__
    if isinstance(error, _CHECKSUM):
        return call.damaged("the checksum does not match the bytes that arrived")
    if isinstance(error, _NO_CREDENTIALS):
        return call.denied(f"no usable credentials ({name})", _ACCESS_HINT)
    if isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return call.invalid(
            "the server's certificate is not trusted", "check the endpoint and AWS_CA_BUNDLE"
        )
    if isinstance(error, _NEVER_SENT):
        return call.unavailable(f"no connection ({name})")
    if isinstance(error, _BROKEN) or not isinstance(error, boto.BotoCoreError):
        return call.unanswered(f"the connection broke, or the answer cannot be read ({name})")
    return call.invalid(f"the SDK refuses the request ({name})", "check bucket, endpoint and region")


def translate_answer(response: Any, call: Call) -> StoreError:
    """Return our error for an answer of the service that is none of success."""
    metadata = response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0))
    code = error_code(response.get("Error", {}).get("Code"))
    headers = metadata.get("HTTPHeaders", {})
    return translate_code(code, status, call, parse_retry_after(headers.get("retry-after")))


def translate_code(
    code: str, status: int, call: Call, retry_after_seconds: float | None = None
) -> StoreError:
    """Return our error for a code and a status of S3, as in an answer or for one key of a batch."""
    detail = describe_status(status, code) if status else code
    if code in _SLOW_DOWN or code in _DECLINED:
        return call.unavailable(detail, retry_after_seconds)
    if code in _DAMAGED:
        return call.damaged(f"{detail}: the checksum does not match; nothing was stored")
    if code == "RequestTimeTooSkewed":
        return call.denied(detail, "set this machine's clock: it differs from the server's")
    if code in _CREDENTIALS or status in (401, 403):
        return call.denied(detail, _ACCESS_HINT)
    if code in _WRONG_REGION or (300 <= status < 400 and status != 304):
        return call.invalid(detail, "set the option region to the bucket's region, and check the endpoint")
    if code == "NoSuchBucket":
        return missing_bucket(call)
    if status == 304:
        return call.lost_race()
    if status == 404:
        return _missing(code, detail, call)
    return _by_status(status, detail, call, retry_after_seconds)


def missing_bucket(call: Call) -> StoreError:
    """The bucket itself is not there."""
    return call.invalid("the bucket does not exist", f"create it: aws s3 mb {call.where}")


def _missing(code: str, detail: str, call: Call) -> StoreError:
    if code == "NoSuchUpload":
        return call.unanswered(f"{detail}: the upload was finished or aborted by somebody")
    # Absence must be said by S3 itself: another server at this address would say 404 as well. Only
    # the answer to a HEAD has no room for a code.
    if code == "NoSuchKey" or (call.verb == "head" and code in ("", "NotFound")):
        return call.lost_race() if call.if_match else call.absent()
    return call.invalid(f"{detail} is not an answer of S3", "check the endpoint")


def _by_status(status: int, detail: str, call: Call, retry_after_seconds: float | None) -> StoreError:
    if status == 501:
        return call.invalid(detail, "the server does not implement this part of S3")
    if status == 503 and retry_after_seconds is None:
        return call.unanswered(detail)  # of something in front of the service, perhaps after the fact
    if status == 0 or status < 300:
        return call.unanswered(detail or "an answer without a status")
    return call.from_status(status, detail, retry_after_seconds)
