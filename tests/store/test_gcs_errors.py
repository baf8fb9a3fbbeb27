"""What Google answers or its transport raises, and which of our errors that is."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import requests
import urllib3.exceptions
from google.auth import exceptions as auth_errors

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
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.gcs.gcs_api import GcsConnection
from pyspark_checkpoint.store.gcs.gcs_errors import FOREIGN, parse_answer, translate, translate_answer
from pyspark_checkpoint.store.gcs.gcs_store import GcsStore
from pyspark_checkpoint.store.remote import Call, PerProcess
from pyspark_checkpoint.store.settings import GcsSettings
from tests.support.foreign_errors import SECRET, exception_classes, make, names

READ = Call("gs://b", "get", "k")
PUT = Call("gs://b", "put", "k", writes=True)
CREATE = Call("gs://b", "put", "k", writes=True, if_absent=True)
SWAP = Call("gs://b", "put", "k", writes=True, if_match=True)
CLASSES = exception_classes(requests.exceptions, urllib3.exceptions, auth_errors)


def body(message: str = "", reason: str = "") -> bytes:
    return json.dumps({"error": {"message": message, "errors": [{"reason": reason}]}}).encode()


@pytest.mark.parametrize(
    ("status", "text", "call", "expected"),
    [
        (412, body(), CREATE, AlreadyExists),
        (412, body(), SWAP, Conflict),
        (404, body("No such object: b/k"), READ, NotFound),
        (404, b"No such object: b/k", READ, NotFound),
        (404, body("The specified bucket does not exist."), READ, Invalid),
        (404, b"The specified bucket does not exist.", CREATE, Invalid),
        (
            400,
            body('Provided CRC32C "AA==" doesn\'t match calculated CRC32C "BB==".'),
            CREATE,
            ChecksumRefused,
        ),
        (400, body('Provided MD5 hash "A" doesn\'t match calculated MD5 hash "B".'), PUT, ChecksumRefused),
        (400, body("Invalid argument.", "invalid"), PUT, Invalid),
        (401, body("", "authError"), READ, Denied),
        (403, body("", "forbidden"), PUT, Denied),
        (403, body("", "rateLimitExceeded"), PUT, Unavailable),
        (403, body("", "userRateLimitExceeded"), READ, Unavailable),
        (408, body(), READ, Unavailable),
        (408, body(), PUT, OutcomeUnknown),
        (409, body("", "conflict"), PUT, Unavailable),
        (410, body(), PUT, Unavailable),
        (411, b"", PUT, Invalid),
        (413, b"", PUT, Invalid),
        (416, b"", READ, Invalid),
        (429, body("", "rateLimitExceeded"), CREATE, Unavailable),
        (500, body("", "backendError"), READ, Unavailable),
        (500, body("", "backendError"), CREATE, OutcomeUnknown),
        (502, b"<html>", CREATE, OutcomeUnknown),
        (503, body("", "backendError"), CREATE, Unavailable),
        (504, b"", SWAP, OutcomeUnknown),
        (302, b"", READ, Unavailable),
        (302, b"", PUT, OutcomeUnknown),
        (500, b'{"error": "a string"}', READ, Unavailable),
        (500, b'{"error": {"errors": []}}', READ, Unavailable),
    ],
)
def test_an_answer_means_one_error(
    status: int, text: bytes, call: Call, expected: type[StoreError]
) -> None:
    """The table of answers, from the service's own words."""
    error = translate_answer(parse_answer(status, {}, text), call)
    assert type(error) is expected
    assert error.key == "k"


def test_retry_after_is_passed_on() -> None:
    """What the server asked for reaches the retry wrapper; a date or nonsense does not."""
    for value, seconds in (("3", 3.0), ("0.5", 0.5), ("Tue, 17 Nov 2026 06:58:24 GMT", None), ("-1", None)):
        error = translate_answer(parse_answer(503, {"retry-after": value}, b""), READ)
        assert isinstance(error, Unavailable)
        assert error.retry_after_seconds == seconds


def test_what_a_user_must_fix_comes_with_a_hint() -> None:
    """Missing buckets and credentials say what to type."""
    missing = translate_answer(parse_answer(404, {}, b"The specified bucket does not exist."), READ)
    denied = translate_answer(parse_answer(403, {}, b""), READ)
    nobody = translate(auth_errors.DefaultCredentialsError(SECRET), READ)
    assert "gcloud storage buckets create gs://b" in str(missing)
    assert "application-default login" in str(denied)
    assert isinstance(nobody, Denied) and nobody.hint == denied.hint


@pytest.mark.parametrize(
    ("error", "of_a_read", "of_a_write"),
    [
        (requests.ConnectionError(urllib3.exceptions.MaxRetryError(None, "/", urllib3.exceptions.NewConnectionError(None, "x"))), Unavailable, Unavailable),  # type: ignore[arg-type]  # noqa: E501
        (requests.ConnectTimeout(), Unavailable, Unavailable),
        (requests.exceptions.ProxyError(), Unavailable, Unavailable),
        (requests.ReadTimeout(), Unavailable, OutcomeUnknown),
        (requests.ConnectionError(urllib3.exceptions.ProtocolError("x", ConnectionResetError(104))), Unavailable, OutcomeUnknown),  # noqa: E501
        (requests.exceptions.ChunkedEncodingError(), Unavailable, OutcomeUnknown),
        (urllib3.exceptions.IncompleteRead(1, 2), Unavailable, OutcomeUnknown),
        (requests.exceptions.SSLError(), Unavailable, OutcomeUnknown),
        (requests.exceptions.InvalidURL(), Invalid, Invalid),
        (requests.exceptions.MissingSchema(), Invalid, Invalid),
        (auth_errors.RefreshError("x"), Denied, Denied),
        (auth_errors.RefreshError("x", retryable=True), Unavailable, Unavailable),
        (auth_errors.TransportError("x"), Unavailable, Unavailable),
        (auth_errors.DefaultCredentialsError("x"), Denied, Denied),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)  # fmt: skip
def test_an_exception_means_what_it_proves(
    error: Exception, of_a_read: type[StoreError], of_a_write: type[StoreError]
) -> None:
    """A write is Unavailable only when it is certain that nothing was sent."""
    assert type(translate(error, READ)) is of_a_read
    assert type(translate(error, CREATE)) is of_a_write


@pytest.mark.parametrize("cls", CLASSES, ids=names(CLASSES))
def test_every_exception_of_the_transport_is_translated(cls: type[Exception]) -> None:
    """None is left out of what is caught, and no text of theirs goes on."""
    assert issubclass(cls, FOREIGN)
    for call in (READ, CREATE):
        assert SECRET not in str(translate(make(cls), call))


VERBS: dict[str, Callable[[ObjectStore], Any]] = {
    "put": lambda store: store.put("k", b"x", if_absent=True),
    "read": lambda store: store.read("k"),
    "get": lambda store: store.get("k", start=0, end=1),
    "stream": lambda store: list(store.stream("k")),
    "head": lambda store: store.head("k"),
    "list": lambda store: list(store.list()),
    "delete": lambda store: store.delete(["k", "l"]),
    "copy": lambda store: store.copy("k", "l"),
}


class BrokenSession(requests.Session):
    """A transport that raises what it is told to."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def request(self, *_: Any, **__: Any) -> Any:
        raise self._error


@pytest.mark.parametrize("cls", CLASSES, ids=names(CLASSES))
def test_no_foreign_exception_leaves_a_verb(cls: type[Exception]) -> None:
    """Whatever the transport raises, each verb raises an error of ours, without the foreign text."""
    store = GcsStore(GcsSettings("b", endpoint="http://127.0.0.1:1", anonymous=True))
    connection = GcsConnection(BrokenSession(make(cls)), "http://127.0.0.1:1")
    store._api._connections = PerProcess(lambda: connection, lambda _: None)
    for act in VERBS.values():
        with pytest.raises(StoreError) as caught:
            act(store)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_nobody_listening_is_unavailable() -> None:
    """A refused connection, for real: nothing was sent, so that also a write is certain."""
    store = GcsStore(GcsSettings("b", endpoint="http://127.0.0.1:1", anonymous=True))
    for act in VERBS.values():
        with pytest.raises(Unavailable):
            act(store)
    store.close()


def test_a_credentials_file_that_is_none_is_denied(tmp_path: Any) -> None:
    """A missing or broken key file says which option to look at."""
    broken = tmp_path / "key.json"
    broken.write_text('{"type": "service_account", "private_key": "' + SECRET + '"}')
    for path in (tmp_path / "absent.json", broken, tmp_path):
        store = GcsStore(GcsSettings("b", credentials_file=str(path)))
        with pytest.raises(Denied) as caught:
            store.get("k")
        assert caught.value.hint
        assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.process
def test_the_sdk_whose_exceptions_are_not_in_the_table_is_not_used() -> None:
    """google-cloud-storage and google.api_core are never imported, so that they cannot raise."""
    code = (
        "import sys, pyspark_checkpoint.store.gcs.gcs_store; "
        "print([m for m in sys.modules if m.startswith(('google.cloud', 'google.api_core'))])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "[]"
