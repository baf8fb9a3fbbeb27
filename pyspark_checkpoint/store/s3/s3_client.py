"""The boto client of a process, and one bucket that is asked through it."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import botocore
import botocore.config
import botocore.exceptions
import botocore.session

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import Denied, Invalid, NotFound
from pyspark_checkpoint.store.base import ObjectInfo, Version
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.s3.s3_errors import missing_bucket, translated
from pyspark_checkpoint.store.settings import S3Settings

_CONNECTIONS = 32
_CONNECT_TIMEOUT_SECONDS = 10.0

# A client holds nothing of a bucket or prefix, and costs a tenth of a second to make: stores of one
# process that connect alike share one. What a parent process had is left alone, see PerProcess.
_clients: dict[tuple[int, S3Settings], Any] = {}
_BUILDING = threading.Lock()


def _renew_lock() -> None:
    global _BUILDING  # noqa: PLW0603
    _BUILDING = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def client_for(settings: S3Settings) -> Any:
    """Return this process's client for ``settings``, made now if need be. Safe across threads and forks."""
    key = _key(settings)
    found = _clients.get(key)
    if found is None:
        with _BUILDING:
            found = _clients.get(key)
            if found is None:
                found = _clients[key] = _build(settings)
    return found


def close_client(settings: S3Settings) -> None:
    """Close idle connections. The client stays usable, by other stores too, and reconnects."""
    found = _clients.get(_key(settings))
    if found is not None:
        found.close()


def _key(settings: S3Settings) -> tuple[int, S3Settings]:
    alike = replace(settings, bucket="", prefix="", part_size_bytes=0)
    return os.getpid(), replace(alike, requester_pays=False, server_encryption=None)


def _build(settings: S3Settings) -> Any:
    by_path = settings.path_style if settings.path_style is not None else settings.endpoint is not None
    by_path = by_path and settings.access_point is None  # whose name is always part of the host's
    config = botocore.config.Config(
        # One attempt: an SDK that repeats a conditional put takes its own success for a lost race.
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=min(settings.timeout_seconds, _CONNECT_TIMEOUT_SECONDS),
        read_timeout=settings.timeout_seconds,
        max_pool_connections=max(_CONNECTIONS, 2 * settings.max_concurrency),
        tcp_keepalive=True,
        s3={"addressing_style": "path" if by_path else "auto"},
        signature_version=botocore.UNSIGNED if settings.anonymous else None,
        # We give each upload its checksum in a header, which more servers understand than a trailer.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported",
    )
    try:
        return botocore.session.get_session().create_client(
            "s3",
            region_name=settings.region,
            endpoint_url=settings.endpoint,
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
            aws_session_token=settings.session_token,
            config=config,
        )
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise Invalid(
            f"no S3 client can be made for s3://{settings.bucket} ({type(error).__name__})",
            hint="check endpoint, region and AWS_PROFILE",
        ) from None


NONCE_FIELD = "ckpt-nonce"
_KMS = {"SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """What the settings add to requests: who pays, and how the server encrypts. Never printed.

    With SSE-C each request that touches the bytes of an object carries the key: ``customer_key``, and
    ``source_key`` for what is copied. All else is decided where an object is begun: ``begin``, which
    includes the customer's key.
    """

    every: Mapping[str, Any] = field(default_factory=dict, repr=False)
    begin: Mapping[str, Any] = field(default_factory=dict, repr=False)
    customer_key: Mapping[str, Any] = field(default_factory=dict, repr=False)
    source_key: Mapping[str, Any] = field(default_factory=dict, repr=False)


def request_parameters(settings: S3Settings) -> RequestParameters:
    """Return the parameters that ``settings`` ask for. Pure."""
    every = {"RequestPayer": "requester"} if settings.requester_pays else {}
    encryption = settings.server_encryption
    if encryption is None:
        return RequestParameters(every)
    if encryption.algorithm == "SSE-C":
        key = base64.b64decode(encryption.key or "")
        own = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
        source = {f"CopySource{name}": value for name, value in own.items()}
        return RequestParameters(every, own, own, source)
    begin = {"ServerSideEncryption": _KMS.get(encryption.algorithm, "AES256")}
    if encryption.key is not None:
        begin["SSEKMSKeyId"] = encryption.key
    if encryption.context:
        context = json.dumps(dict(encryption.context)).encode()
        begin["SSEKMSEncryptionContext"] = base64.b64encode(context).decode()
    return RequestParameters(every, begin)


class S3Bucket:
    """A bucket, asked through this process's client. Objects are named with the store's prefix."""

    def __init__(self, settings: S3Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.bucket_name = settings.access_point or settings.bucket
        self.parameters = request_parameters(settings)
        self._is_there = False

    @property
    def client(self) -> Any:
        """This process's client."""
        return client_for(self.settings)

    def address(self, name: str) -> dict[str, str]:
        """The parameters that name an object."""
        return {"Bucket": self.bucket_name, "Key": name}

    def asked(self, name: str) -> dict[str, Any]:
        """The parameters of a request that reads an object, or what is known of it."""
        return {**self.address(name), **self.parameters.every, **self.parameters.customer_key}

    def begun(self, name: str) -> dict[str, Any]:
        """The parameters of a request that begins an object."""
        return {**self.address(name), **self.parameters.every, **self.parameters.begin}

    def head(self, call: Call, name: str) -> ObjectInfo:
        """Return what is known of the call's key, or raise ``NotFound``: two requests for the first one."""
        call = Call(call.where, "head", call.key)
        try:
            with translated(call):
                answer = self.client.head_object(**self.asked(name))
        except NotFound:
            self._prove_bucket(call)
            raise
        size, modified = answer.get("ContentLength"), answer.get("LastModified")
        if size is None or modified is None or modified.tzinfo is None:
            raise call.unanswered("the answer was cut short")
        self.note_there()
        return ObjectInfo(
            key=call.key or "",
            size_bytes=size,
            version=Version(checked_etag(answer.get("ETag"), call)),
            modified_ms=int(modified.timestamp() * 1000),
            nonce=answer.get("Metadata", {}).get(NONCE_FIELD),
        )

    def note_there(self) -> None:
        """An answer has proven that the bucket exists: it found an object, or missed the key alone."""
        self._is_there = True

    def _prove_bucket(self, call: Call) -> None:
        """Make sure, once, that it is the key which is absent: the answer to a HEAD does not say."""
        if self._is_there:
            return
        try:
            with translated(call):
                self.client.head_bucket(Bucket=self.bucket_name)
        except NotFound:
            raise missing_bucket(call) from None
        except Denied:
            pass  # to look at it is forbidden, so it exists
        self.note_there()


def checked_etag(value: object, call: Call) -> str:
    """Return an ETag in its quotes, which some servers forget in some answers.

    One that is missing, or has a quote at one end only, means that the answer was cut short.
    """
    if not isinstance(value, str) or not value or value.count('"') not in (0, 2):
        raise call.unanswered("the answer was cut short")
    return value if '"' in value else f'"{value}"'
