"""What Azure answers or its SDK raises, and which of our errors that is."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import azure.core.exceptions
import azure.identity
import pytest
import requests
import urllib3.exceptions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    IncompleteReadError,
    ServiceRequestError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import PartialBatchErrorException

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
from pyspark_checkpoint.store.azure.azure_errors import FOREIGN, translate, translate_answer
from pyspark_checkpoint.store.azure.azure_store import AzureStore
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.settings import AzureSettings
from tests.support.foreign_errors import SECRET, exception_classes, make, names

READ = Call("az://c", "get", "k")
PUT = Call("az://c", "put", "k", writes=True)
CREATE = Call("az://c", "put", "k", writes=True, if_absent=True)
SWAP = Call("az://c", "put", "k", writes=True, if_match=True)
CLASSES = [
    *exception_classes(azure.core.exceptions, requests.exceptions),
    azure.identity.CredentialUnavailableError,
    PartialBatchErrorException,
    ValueError,
]


@pytest.mark.parametrize(
    ("status", "code", "call", "expected"),
    [
        (409, "BlobAlreadyExists", CREATE, AlreadyExists),
        (409, "PathAlreadyExists", CREATE, AlreadyExists),
        (412, "ConditionNotMet", CREATE, AlreadyExists),
        (412, "TargetConditionNotMet", CREATE, AlreadyExists),
        (412, "ConditionNotMet", SWAP, Conflict),
        (412, "", SWAP, Conflict),
        (412, "ConditionNotMet", READ, Conflict),
        (412, "LeaseIdMissing", SWAP, Unavailable),
        (412, "SourceConditionNotMet", CREATE, Unavailable),
        (409, "BlobAlreadyExists", PUT, Unavailable),
        (409, "LeaseAlreadyPresent", CREATE, Unavailable),
        (409, "ContainerBeingDeleted", CREATE, Unavailable),
        (409, "PendingCopyOperation", PUT, Unavailable),
        (409, "BlobImmutableDueToPolicy", PUT, Denied),
        (409, "BlobArchived", READ, Invalid),
        (409, "SnapshotsPresent", PUT, Invalid),
        (404, "BlobNotFound", READ, NotFound),
        (404, "PathNotFound", READ, NotFound),
        (404, "ContainerNotFound", READ, Invalid),
        (404, "ContainerNotFound", CREATE, Invalid),
        (404, "ResourceNotFound", READ, Invalid),
        (404, "", READ, Invalid),
        (400, "Md5Mismatch", CREATE, ChecksumRefused),
        (400, "InvalidOperation", PUT, ChecksumRefused),
        (400, "InvalidOperation", READ, Invalid),
        (400, "InvalidBlockList", CREATE, Unavailable),
        (400, "InvalidBlobOrBlock", PUT, Unavailable),
        (400, "InvalidHeaderValue", PUT, Invalid),
        (401, "InvalidAuthenticationInfo", READ, Denied),
        (403, "AuthenticationFailed", READ, Denied),
        (403, "AuthorizationFailure", PUT, Denied),
        (403, "AuthorizationPermissionMismatch", CREATE, Denied),
        (413, "RequestBodyTooLarge", PUT, Invalid),
        (416, "InvalidRange", READ, Invalid),
        (429, "", CREATE, Unavailable),
        (500, "InternalError", READ, Unavailable),
        (500, "InternalError", CREATE, OutcomeUnknown),
        (500, "OperationTimedOut", SWAP, OutcomeUnknown),
        (502, "", CREATE, OutcomeUnknown),
        (503, "ServerBusy", CREATE, Unavailable),
        (503, "ServerBusy", READ, Unavailable),
        (304, "", PUT, OutcomeUnknown),
    ],
)
def test_an_answer_means_one_error(status: int, code: str, call: Call, expected: type[StoreError]) -> None:
    """The table of answers, by status and error code."""
    error = translate_answer(status, code, {}, call)
    assert type(error) is expected
    assert error.key == "k"


def test_retry_after_is_passed_on() -> None:
    """What the server asked for reaches the retry wrapper."""
    error = translate_answer(503, "ServerBusy", {"Retry-After": "7"}, READ)
    assert isinstance(error, Unavailable)
    assert error.retry_after_seconds == 7.0


def test_what_a_user_must_fix_comes_with_a_hint() -> None:
    """A missing container, a wrong account and missing credentials say what to type."""
    assert "az storage container create --name c" in str(
        translate_answer(404, "ContainerNotFound", {}, READ)
    )
    assert "endpoint" in str(translate_answer(404, "", {}, READ))
    assert "connectionString" in str(translate_answer(403, "AuthorizationFailure", {}, READ))
    assert "az login" in str(translate(azure.identity.CredentialUnavailableError(SECRET), READ))


def never_connected() -> Exception:
    inner = urllib3.exceptions.NewConnectionError(None, "refused")  # type: ignore[arg-type]
    wrapped = requests.ConnectionError(urllib3.exceptions.MaxRetryError(None, "/", inner))  # type: ignore[arg-type]
    return ServiceRequestError(wrapped, error=wrapped)


def broken_before_the_answer() -> Exception:
    """What the SDK calls a request that was not sent, though only the handshake or the proxy may know."""
    inner = requests.exceptions.SSLError("bad record")
    return ServiceRequestError(inner, error=inner)


@pytest.mark.parametrize(
    ("error", "of_a_read", "of_a_write"),
    [
        (never_connected(), Unavailable, Unavailable),
        (ServiceRequestError("x"), Unavailable, Unavailable),
        (broken_before_the_answer(), Unavailable, OutcomeUnknown),
        (ServiceResponseError("x"), Unavailable, OutcomeUnknown),
        (ServiceResponseTimeoutError("x"), Unavailable, OutcomeUnknown),
        (IncompleteReadError("x"), Unavailable, OutcomeUnknown),
        (HttpResponseError("x"), Unavailable, OutcomeUnknown),
        (AzureError("x"), Unavailable, OutcomeUnknown),
        (ValueError("x"), Unavailable, OutcomeUnknown),
        (ClientAuthenticationError("x"), Denied, Denied),
        (requests.exceptions.ChunkedEncodingError(), Unavailable, OutcomeUnknown),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_an_exception_means_what_it_proves(
    error: Exception, of_a_read: type[StoreError], of_a_write: type[StoreError]
) -> None:
    """A write is Unavailable only when it is certain that nothing was sent."""
    assert type(translate(error, READ)) is of_a_read
    assert type(translate(error, CREATE)) is of_a_write


VERBS: dict[str, Callable[[ObjectStore], Any]] = {
    "put": lambda store: store.put("k", b"x", if_absent=True),
    "put-large": lambda store: store.put("k", b"x" * 3000),
    "read": lambda store: store.read("k"),
    "get": lambda store: store.get("k", start=0, end=1),
    "stream": lambda store: list(store.stream("k")),
    "head": lambda store: store.head("k"),
    "list": lambda store: list(store.list()),
    "delete": lambda store: store.delete(["k", "l"]),
    "delete-batch": lambda store: store.delete([f"k{index}" for index in range(20)]),
    "copy": lambda store: store.copy("k", "l"),
}


def opened() -> AzureStore:
    settings = AzureSettings(
        "c",
        account_name="a",
        account_key="c2VjcmV0",
        endpoint="http://127.0.0.1:1/a",
        part_size_bytes=1000,
    )
    return AzureStore(settings, single_put_bytes=1000)


@pytest.mark.parametrize("cls", CLASSES, ids=names(CLASSES))
def test_no_foreign_exception_leaves_a_verb(cls: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the transport raises, each verb raises an error of ours, without the foreign text."""
    assert issubclass(cls, FOREIGN)
    error = make(cls)

    def send(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(RequestsTransport, "send", send)
    store = opened()
    for act in VERBS.values():
        with pytest.raises(StoreError) as caught:
            act(store)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    store.close()


def test_nobody_listening_is_unavailable() -> None:
    """A refused connection, for real: nothing was sent, so that also a write is certain."""
    store = opened()
    for act in VERBS.values():
        with pytest.raises(Unavailable):
            act(store)
    store.close()


def test_settings_that_make_no_client_are_invalid() -> None:
    """A connection string that is none says so, and does not repeat it."""
    store = AzureStore(AzureSettings("c", connection_string=SECRET))
    with pytest.raises(Invalid) as caught:
        store.get("k")
    assert caught.value.hint
    assert SECRET not in "".join(traceback.format_exception(caught.value))
