"""From a URL to a store. Only the backend that is asked for is imported."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import MissingExtra, SettingsError
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.foreign import connection_account
from pyspark_checkpoint.store.options import Choices, choose_options
from pyspark_checkpoint.store.retry import RetryingStore
from pyspark_checkpoint.store.settings import (
    AzureSettings,
    BackendSettings,
    GcsSettings,
    LocalSettings,
    MemorySettings,
    RetrySettings,
    S3Settings,
    ServerEncryption,
    StoreSettings,
)
from pyspark_checkpoint.store.url import USUAL_AZURE_SUFFIX, StoreUrl, parse_store_url

_CLOUD = {
    "s3": ("pyspark_checkpoint.store.s3.s3_store", "S3Store", "boto3", "s3"),
    "gs": ("pyspark_checkpoint.store.gcs.gcs_store", "GcsStore", "google.cloud.storage", "gcs"),
    "az": ("pyspark_checkpoint.store.azure.azure_store", "AzureStore", "azure.storage.blob", "azure"),
}
_SERVER_ENCRYPTION = ("SSE-S3", "SSE-KMS", "DSSE-KMS", "SSE-C", "NONE")
_ACCESS_POINT = re.compile(
    r"arn:[a-z0-9-]+:s3[a-z-]*:[a-z0-9-]*:\d{12}:(outpost/[\w-]+/)?accesspoint[:/][\w.-]+"
)


def open_object_store(
    url: str,
    options: Mapping[str, str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ObjectStore:
    """Open a store, wrapped so that passing failures are retried.

    Nothing is sent yet: a wrong credential or a missing bucket shows at the first request.

    Args:
        url: ``s3://``, ``gs://``, ``az://``, ``file://``, ``memory://`` or a directory.
        options: Options of the store, as ``store.options`` names them.
        env: Stands for the environment, in which options may be too.
        clock: Where times and ids come from, and what waits between two tries.

    Returns:
        The store; ``store.base`` says what each call promises.

    Raises:
        SettingsError: The URL or an option is wrong, or a package is missing.
    """
    settings = parse_store_settings(url, options, env=env)
    return RetryingStore(_open_backend(settings, clock), settings.retry, clock)


@dataclass(frozen=True, slots=True)
class StoreHome:
    """Whose a store is: its bucket, or its Azure account and the host of that. Local disks are one home."""

    scheme: str
    name: str
    endpoint: str = ""

    @property
    def spelled(self) -> str:
        """A URL in this home."""
        if self.scheme == "az" and self.name:
            suffix = self.endpoint.partition(f"//{self.name}.blob.")[2] or USUAL_AZURE_SUFFIX
            return f"abfss://CONTAINER@{self.name}.dfs.{suffix}"
        return f"{self.scheme}://{self.name or '/'}"


def home_of(
    url: str, options: Mapping[str, str] | None = None, *, env: Mapping[str, str] | None = None
) -> StoreHome:
    """Whose store ``url`` is, opened with these options. Pure but for the environment."""
    where = parse_store_url(url)
    if where.scheme != "az":
        return StoreHome(where.scheme, where.bucket)
    choices = choose_options(where, options or {}, os.environ if env is None else env)
    account = where.account or connection_account(choices.text("connectionString"))
    return StoreHome(
        "az",
        account or choices.text("accountName") or "",
        choices.endpoint() or where.endpoint or "",
    )


def parse_store_settings(
    url: str, options: Mapping[str, str] | None = None, *, env: Mapping[str, str] | None = None
) -> StoreSettings:
    """Decide everything about a store before it is opened. Pure but for the environment."""
    where = parse_store_url(url)
    choices = choose_options(where, options or {}, os.environ if env is None else env)
    return StoreSettings(
        scheme=where.scheme,
        backend=_backend_settings(where, choices),
        retry=RetrySettings(limit_seconds=choices.retry_seconds),
        allow_unsafe_store=choices.flag("allowUnsafeStore") or False,
    )


def _backend_settings(where: StoreUrl, choices: Choices) -> BackendSettings:
    if where.scheme == "s3":
        return _s3_settings(where, choices)
    if where.scheme == "gs":
        return GcsSettings(
            **_every_cloud(where, choices),
            project=choices.text("project"),
            credentials_file=choices.text("credentialsFile"),
        )
    if where.scheme == "az":
        return _azure_settings(where, choices)
    if where.scheme == "memory":
        return MemorySettings(where.bucket, where.path)
    return LocalSettings(Path(where.path))


def _every_cloud(where: StoreUrl, choices: Choices) -> dict[str, Any]:
    """The fields of ``CloudSettings``."""
    return {
        "bucket": where.bucket,
        "prefix": where.path,
        "endpoint": choices.endpoint(),
        "anonymous": choices.flag("anonymous") or False,
        "timeout_seconds": choices.timeout_seconds,
        "part_size_bytes": choices.part_size_bytes,
        "max_concurrency": choices.max_concurrency,
    }


def _s3_settings(where: StoreUrl, choices: Choices) -> S3Settings:
    access_key, secret_key = choices.text("accessKey"), choices.text("secretKey")
    if (access_key is None) != (secret_key is None):
        raise SettingsError(
            "accessKey and secretKey go together, and only one is given",
            hint="give both, or neither: then the usual chain of AWS credentials is asked",
        )
    return S3Settings(
        **_every_cloud(where, choices),
        region=choices.text("region"),
        access_key=access_key,
        secret_key=secret_key,
        session_token=choices.text("sessionToken"),
        path_style=choices.flag("pathStyleAccess"),
        access_point=_access_point(choices),
        requester_pays=choices.flag("requesterPays") or False,
        server_encryption=_server_encryption(choices),
    )


def _access_point(choices: Choices) -> str | None:
    arn = choices.text("accessPoint")
    if arn is not None and not _ACCESS_POINT.fullmatch(arn):
        raise SettingsError(
            f"option accessPoint is the ARN of an S3 access point, not {arn!r}",
            hint="type arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME; its alias can be typed as the bucket",
        )
    return arn


def _server_encryption(choices: Choices) -> ServerEncryption | None:
    typed, key = choices.text("serverEncryption"), choices.text("serverEncryptionKey")
    context = choices.text("serverEncryptionContext")
    if typed is None:
        if key or context:
            raise SettingsError(
                "serverEncryptionKey and serverEncryptionContext need the option serverEncryption",
                hint=f"give serverEncryption, one of {', '.join(_SERVER_ENCRYPTION)}",
            )
        return None
    algorithm = "SSE-S3" if typed.upper() == "AES256" else typed.upper()
    if algorithm == "NONE":
        return None
    if algorithm.startswith("CSE"):
        raise SettingsError(
            f"{algorithm} is encryption by Hadoop's own client, which nothing else can read or write",
            hint="give the option serverEncryption for this store (NONE is none); the option "
            "encryptionKeyFile encrypts checkpoints before they are sent",
        )
    if algorithm not in _SERVER_ENCRYPTION:
        raise SettingsError(
            f"option serverEncryption is {typed!r}",
            hint=f"choose one of {', '.join(_SERVER_ENCRYPTION)}",
        )
    if algorithm == "SSE-C" and not _is_customer_key(key):
        raise SettingsError(
            "SSE-C needs the option serverEncryptionKey, 32 bytes in base64", hint="openssl rand -base64 32"
        )
    with_kms = algorithm in ("SSE-KMS", "DSSE-KMS")
    return ServerEncryption(
        algorithm,
        key if with_kms or algorithm == "SSE-C" else None,
        _context(context) if with_kms and context else (),
    )


def _is_customer_key(key: str | None) -> bool:
    try:
        return len(base64.b64decode(key or "", validate=True)) == 32
    except ValueError:
        return False


def _context(text: str) -> tuple[tuple[str, str], ...]:
    """Take apart what Hadoop writes as ``key=value, key=value``."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise SettingsError(
            "option serverEncryptionContext is not a list of key=value",
            hint="separate the pairs with commas, such as department=finance,purpose=state",
        )
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _azure_settings(where: StoreUrl, choices: Choices) -> AzureSettings:
    connection = choices.text("connectionString")
    account = where.account or connection_account(connection) or choices.text("accountName")
    if connection is not None and connection_account(connection) not in (None, account):
        raise SettingsError(
            f"the connection string is for another account than the URL's {account}",
            hint="give the one of this account, or leave the account out of the URL",
        )
    endpoint = choices.endpoint() or where.endpoint
    if account is None and connection is None and endpoint is None:
        raise SettingsError(
            f"no account for az://{where.bucket}",
            hint=f"type abfss://{where.bucket}@ACCOUNT.dfs.core.windows.net/prefix, give the option "
            "accountName or connectionString, or set AZURE_STORAGE_ACCOUNT",
        )
    key, sas = choices.text("accountKey"), choices.text("sasToken")
    return AzureSettings(
        **_every_cloud(where, choices) | {"endpoint": endpoint},
        account_name=account,
        account_key=None if connection else key,
        sas_token=None if connection or key else sas,
        connection_string=connection,
    )


def _open_backend(settings: StoreSettings, clock: Clock) -> ObjectStore:
    backend = settings.backend
    if isinstance(backend, MemorySettings):
        from pyspark_checkpoint.store.memory import MemoryStore  # noqa: PLC0415

        return MemoryStore(backend.name, backend.prefix, clock)
    if isinstance(backend, LocalSettings):
        from pyspark_checkpoint.store.local.local_store import LocalStore  # noqa: PLC0415

        return LocalStore(backend.root, clock=clock)
    module, name, package, extra = _CLOUD[settings.scheme]
    if not _installed(package):
        raise MissingExtra(
            f"a {settings.scheme}:// store needs the package {package}, which is not installed",
            hint=f"pip install 'pyspark-checkpoint[{extra}]'",
        )
    store: ObjectStore = getattr(importlib.import_module(module), name)(backend)
    return store


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
