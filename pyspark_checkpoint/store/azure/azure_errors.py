"""The one place where what the Azure SDK raises becomes our errors.

The SDK raises ``AzureError`` and its subclasses, a plain ``ValueError`` for answers that it cannot
read, and now and then lets an exception of its transport, ``requests``, through. Over an answer whose
head was cut, so that headers are missing, it stumbles with whatever Python raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
import urllib3.exceptions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
)

from pyspark_checkpoint.errors import StoreError
from pyspark_checkpoint.store.http_session import is_never_sent, is_untrusted, root_cause
from pyspark_checkpoint.store.remote import Call, describe_status, error_code, parse_retry_after

_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError)
FOREIGN = (
    AzureError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    *_UNREADABLE,
)
"""Everything that a call of the SDK can raise."""

_ABSENT = frozenset({"BlobNotFound", "PathNotFound", "CannotVerifyCopySource"})
_TAKEN = frozenset({"BlobAlreadyExists", "PathAlreadyExists"})
_CONDITION = frozenset({"", "ConditionNotMet", "TargetConditionNotMet"})
_DAMAGED = frozenset({"Md5Mismatch", "Crc64Mismatch", "InvalidOperation"})
"""Azure says Md5Mismatch, Azurite InvalidOperation, when an upload does not match its Content-MD5."""
_BLOCKS_GONE = frozenset({"InvalidBlockList", "InvalidBlobOrBlock"})
"""Another put of the same key has finished and discarded the blocks staged for this one."""
_NEVER_ALLOWED = frozenset({"BlobImmutableDueToPolicy"})
_NEVER_VALID = frozenset(
    {
        "BlobArchived",
        "SnapshotsPresent",
        "InvalidBlobType",
        "ResourceTypeMismatch",
        "FeatureVersionMismatch",
    }
)


def translate(error: BaseException, call: Call) -> StoreError:
    """Return our error for anything of ``FOREIGN``. Certain that nothing was sent: ``Unavailable``."""
    name = type(error).__name__
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        headers = getattr(error.response, "headers", None) or {}
        return translate_answer(error.status_code, answer_code(error, headers), headers, call)
    if isinstance(error, ClientAuthenticationError):
        return call.denied(f"no usable credentials ({name})", _access_hint(call))
    if is_untrusted(error):
        return call.untrusted()
    if is_never_sent(error) or (isinstance(error, ServiceRequestError) and root_cause(error) is error):
        return call.unavailable(f"no connection ({type(root_cause(error)).__name__})")
    if isinstance(error, _UNREADABLE) and not isinstance(error, requests.RequestException):
        return call.unanswered(f"the answer cannot be read ({name})")
    return call.unanswered(f"connection broken ({name})")


def translate_answer(status: int, code: str, headers: Mapping[str, str], call: Call) -> StoreError:
    """Return the error that an HTTP answer means for ``call``. ``headers`` finds names in any case."""
    detail = describe_status(status, code)
    if status == 404:
        return _missing(code, detail, call)
    if status == 409:
        return _conflict(code, detail, call)
    if status == 412:
        # A lease, or the source of a copy, is not our condition.
        return call.lost_race() if code in _CONDITION else call.unavailable(detail)
    if status == 400 and code in _DAMAGED and call.verb == "put":
        return call.damaged("the checksum does not match the bytes that arrived; nothing was stored")
    if status == 400 and code in _BLOCKS_GONE:
        return call.unavailable(detail)
    if status in (401, 403):
        return call.denied(detail, _access_hint(call))
    if status < 400:
        return call.unanswered(f"unexpected {detail}")
    return call.from_status(status, detail, parse_retry_after(headers.get("Retry-After")))


def answer_code(error: Any, headers: Mapping[str, str]) -> str:
    """Return Azure's error code: from the exception, else from the header that also HEAD answers have."""
    found = getattr(error, "error_code", None)
    return error_code(getattr(found, "value", found)) or error_code(headers.get("x-ms-error-code"))


def _missing(code: str, detail: str, call: Call) -> StoreError:
    """Absence counts only when the service names the blob; anything else is a wrong address."""
    if code in _ABSENT:
        return call.absent()
    if code == "ContainerNotFound":
        name = call.where.rpartition("/")[2]
        return call.invalid(
            "the container does not exist", f"create it: az storage container create --name {name}"
        )
    return call.invalid(detail, "check the account's name and endpoint")


def _conflict(code: str, detail: str, call: Call) -> StoreError:
    if code in _TAKEN and call.if_absent:
        return call.lost_race()
    if code in _NEVER_ALLOWED:
        return call.denied(detail, "an immutability policy protects the object")
    if code in _NEVER_VALID:
        return call.invalid(detail)
    return call.unavailable(detail)


def _access_hint(call: Call) -> str:
    return (
        "give the option accountKey, sasToken or connectionString, or sign in for DefaultAzureCredential "
        "(az login, a managed identity, or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET); "
        f"the role Storage Blob Data Contributor on {call.where} is enough"
    )
