"""The Azure SDK's client of one container: SDK retries off, one per process, every failure translated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import requests
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobSasPermissions, ContainerClient, generate_blob_sas

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import MissingExtra
from pyspark_checkpoint.store.azure import azure_errors
from pyspark_checkpoint.store.http_session import close_session, mount_adapters, settle_environment
from pyspark_checkpoint.store.remote import Call, PerProcess
from pyspark_checkpoint.store.settings import AzureSettings

_READ_BLOCK_BYTES = 1024 * 1024
_SINGLE_GET_BYTES = 1024 * 1024 * 1024 * 1024
"""No object is larger than this, so that every read is one request and its bytes are of one version."""
_SINGLE_PUT_BYTES = 5000 * 1024 * 1024
_SOURCE_SECONDS = 3600
_TOKEN_SCOPE = "https://storage.azure.com/.default"  # noqa: S105


@dataclass(frozen=True, slots=True)
class AzureConnection:
    """A client of the container, and the token credential behind it, if that is how it signs in."""

    container: ContainerClient
    session: requests.Session
    token: Any | None = None


class AzureContainer:
    """One container. Used by many threads at once; each process has its own connections."""

    def __init__(self, settings: AzureSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._connections = PerProcess(self._connect, _disconnect)

    @contextmanager
    def asking(self, call: Call) -> Iterator[ContainerClient]:
        """Give the client for one call, and translate whatever the SDK raises meanwhile."""
        try:
            yield self._connections.get().container
        except azure_errors.FOREIGN as error:
            raise azure_errors.translate(error, call) from None

    @property
    def address(self) -> str:
        """The container's URL, without the signature that may be part of it."""
        with self.asking(Call(f"az://{self._settings.bucket}", "open")) as container:
            return str(container.url).partition("?")[0]

    def copy_source(self, name: str, call: Call) -> tuple[str, dict[str, Any]]:
        """Return the URL of a blob that the service may read itself, and the arguments that allow it.

        A shared key signs a URL for an hour; a SAS is part of the URL already; a token is passed on.
        """
        with self.asking(call) as container:
            connection = self._connections.get()
            blob = container.get_blob_client(name)
            if connection.token is not None:
                bearer = connection.token.get_token(_TOKEN_SCOPE).token
                return blob.url, {"source_authorization": f"Bearer {bearer}"}
            key = getattr(container.credential, "account_key", None)
            if key is None or container.account_name is None:
                return blob.url, {}
            signed = generate_blob_sas(
                container.account_name,
                self._settings.bucket,
                name,
                account_key=key,
                permission=BlobSasPermissions(read=True),
                expiry=datetime.fromtimestamp(self._clock.now_ms() // 1000 + _SOURCE_SECONDS, UTC),
            )
            return f"{blob.url}?{signed}", {}

    def close(self) -> None:
        """Close this process's connections. The next call opens new ones."""
        self._connections.close()

    def _connect(self) -> AzureConnection:
        settings = self._settings
        session = requests.Session()
        mount_adapters(session)
        transport = RequestsTransport(
            session=session,
            connection_timeout=settings.timeout_seconds,
            read_timeout=settings.timeout_seconds,
            connection_data_block_size=_READ_BLOCK_BYTES,
        )
        try:
            connection = _open(settings, session, transport)
        except ValueError as error:
            raise Call(f"az://{settings.bucket}", "open").invalid(
                f"these settings make no client ({type(error).__name__})",
                "check accountName, endpoint, connectionString and the credential",
            ) from None
        transport.connection_config.verify = settle_environment(session, connection.container.url)
        return connection


def _open(
    settings: AzureSettings, session: requests.Session, transport: RequestsTransport
) -> AzureConnection:
    options: dict[str, Any] = {
        "transport": transport,
        "retry_total": 0,
        "max_single_put_size": _SINGLE_PUT_BYTES,
        "max_single_get_size": _SINGLE_GET_BYTES,
    }
    name = settings.bucket
    if settings.connection_string is not None:
        made = ContainerClient.from_connection_string(settings.connection_string, name, **options)
        return AzureConnection(made, session)
    credential, token = _credential(settings)
    made = ContainerClient(_account_url(settings), name, credential=credential, **options)
    return AzureConnection(made, session, token)


def _account_url(settings: AzureSettings) -> str:
    return settings.endpoint or f"https://{settings.account_name}.blob.core.windows.net"


def _credential(settings: AzureSettings) -> tuple[Any, Any | None]:
    """Return what the SDK takes as credential, and the same again if it is a token credential."""
    if settings.account_key is not None:
        named = {"account_name": settings.account_name, "account_key": settings.account_key}
        return (named if settings.account_name is not None else settings.account_key), None
    if settings.sas_token is not None:
        return settings.sas_token.lstrip("?"), None
    if settings.anonymous:
        return None, None
    try:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415
    except ImportError:
        raise MissingExtra(
            "az:// without a key, SAS or connection string needs the package azure-identity",
            hint="pip install 'pyspark-checkpoint[azure]'",
        ) from None
    token = DefaultAzureCredential()
    return token, token


def _disconnect(connection: AzureConnection) -> None:
    close_session(connection.session)
    connection.container.close()
    if connection.token is not None:
        connection.token.close()
