"""The boto client of a process: shared by its threads and stores, never carried over a fork."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import botocore
import botocore.config
import botocore.exceptions
import botocore.session

from pyspark_checkpoint.errors import Invalid
from pyspark_checkpoint.store.settings import S3Settings

_CONNECTIONS = 32
_CONNECT_TIMEOUT_SECONDS = 10.0

# A client holds nothing of a bucket or prefix, and costs a tenth of a second to make: stores of one
# process that connect alike share one. What a parent process had is left alone, see PerProcess.
_clients: dict[tuple[int, S3Settings], Any] = {}


def client_for(settings: S3Settings) -> Any:
    """Return this process's client for ``settings``, made now if need be. Safe across threads and forks."""
    key = _key(settings)
    found = _clients.get(key)
    return found if found is not None else _clients.setdefault(key, _build(settings))


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
