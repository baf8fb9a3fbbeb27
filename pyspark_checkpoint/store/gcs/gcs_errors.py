"""The one place where what Google Cloud Storage answers, or its transport raises, becomes our errors.

Requests go through google-auth's session on top of ``requests`` and urllib3, so these three trees are
all that can be raised; every other outcome is an HTTP answer."""

from __future__ import annotations

import json
from dataclasses import dataclass

import requests
import urllib3.exceptions
from google.auth import exceptions as auth_errors

from pyspark_checkpoint.errors import StoreError
from pyspark_checkpoint.store.http_session import is_never_sent, is_untrusted, root_cause
from pyspark_checkpoint.store.remote import Call, describe_status, error_code, parse_retry_after

FOREIGN = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    urllib3.exceptions.ProxySchemeUnsupported,
    auth_errors.GoogleAuthError,
)
"""Everything that a request can raise."""

_RATE_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_MALFORMED = (
    requests.exceptions.URLRequired,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidSchema,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidHeader,
    urllib3.exceptions.LocationValueError,
    urllib3.exceptions.ProxySchemeUnsupported,
)
_PERMISSIONS = "storage.objects.create, get, list, delete and update"


@dataclass(frozen=True, slots=True)
class GcsAnswer:
    """An HTTP answer other than success, reduced to what decides its meaning."""

    status: int
    reason: str = ""
    checksum_mismatch: bool = False
    names_bucket: bool | None = None
    """For 404: whether the text speaks of the bucket (True), the object (False) or neither (None)."""
    retry_after_seconds: float | None = None


def parse_answer(status: int, headers: dict[str, str], body: bytes) -> GcsAnswer:
    """Read an error answer. JSON is the rule; media requests answer in plain text."""
    text, reason = body[:4096].decode("utf-8", "replace"), ""
    try:
        error = json.loads(text)["error"]
        text = str(error.get("message", ""))
        reason = error_code(error["errors"][0].get("reason"))
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    lowered = text.lower()
    names_bucket = None
    if "no such object" in lowered:
        names_bucket = False
    elif "bucket" in lowered:
        names_bucket = True
    return GcsAnswer(
        status=status,
        reason=reason,
        checksum_mismatch=status == 400 and "match calculated" in lowered,
        names_bucket=names_bucket,
        retry_after_seconds=parse_retry_after(headers.get("retry-after")),
    )


def translate_answer(answer: GcsAnswer, call: Call) -> StoreError:
    """Return the error that an answer means for ``call``."""
    detail = describe_status(answer.status, answer.reason)
    if answer.status == 404:
        return missing_bucket(call) if answer.names_bucket else call.absent()
    if answer.checksum_mismatch:
        return call.damaged("the checksum does not match the bytes that arrived; nothing was stored")
    if answer.status == 403 and answer.reason in _RATE_REASONS:
        return call.unavailable(detail, answer.retry_after_seconds)
    if answer.status in (401, 403):
        return call.denied(detail, _access_hint(call))
    if answer.status in (409, 410):
        return call.unavailable(detail, answer.retry_after_seconds)
    if answer.status < 400:
        return call.unanswered(f"unexpected {detail}")
    return call.from_status(answer.status, detail, answer.retry_after_seconds)


def translate(error: BaseException, call: Call) -> StoreError:
    """Return our error for anything of ``FOREIGN``. Certain that nothing was sent: ``Unavailable``."""
    name = type(error).__name__
    if isinstance(error, auth_errors.GoogleAuthError):
        if getattr(error, "retryable", False) or isinstance(error, auth_errors.TransportError):
            return call.unavailable(f"the access token could not be fetched ({name})")
        return call.denied(f"no usable credentials ({name})", _access_hint(call))
    if isinstance(error, _MALFORMED):
        return call.invalid(f"the endpoint is not usable ({name})", "check the endpoint option")
    if is_untrusted(error):
        return call.untrusted()
    if is_never_sent(error):
        return call.unavailable(f"no connection ({type(root_cause(error)).__name__})")
    return call.unanswered(f"connection broken ({name})")


def missing_bucket(call: Call) -> StoreError:
    """The bucket itself is not there."""
    return call.invalid(
        "the bucket does not exist", f"create it: gcloud storage buckets create {call.where}"
    )


def _access_hint(call: Call) -> str:
    return (
        "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS or the option "
        f"credentialsFile; the account needs {_PERMISSIONS} on {call.where}"
    )
