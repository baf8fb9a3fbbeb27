"""What a store needs to be opened, as frozen values. Parsed by ``store.options``; used by the backends.

Secrets never show in a ``repr``. ``None`` means that the SDK's own chain decides. A prefix has no
leading and no trailing slash, and is empty for a whole bucket.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

MIB = 1024 * 1024
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_RETRY_SECONDS = 30.0
DEFAULT_PART_SIZE_BYTES = 16 * MIB
DEFAULT_MAX_CONCURRENCY = 4


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How long and how patiently a failed request is repeated.

    The n-th wait is between half and all of ``first_delay_seconds * 2**n``, at most
    ``max_delay_seconds``, or what the server asked for if that is longer. No wait begins that would
    end after ``limit_seconds``; zero means that nothing is repeated.
    """

    limit_seconds: float = DEFAULT_RETRY_SECONDS
    first_delay_seconds: float = 0.1
    max_delay_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """A store within this process: everyone who opens ``name`` sees the same objects."""

    name: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """A directory. It is made by the first put."""

    root: Path


@dataclass(frozen=True, slots=True)
class ServerEncryption:
    """How an S3 server encrypts what it is given.

    ``algorithm`` is one of ``SSE-S3``, ``SSE-KMS``, ``DSSE-KMS``, ``SSE-C``. With KMS, ``key`` names a key
    of the service, None its default one, and ``context`` is what the key's policy may ask for. With SSE-C
    ``key`` is the key itself, 32 bytes in base64, which the server forgets and every request carries.
    """

    algorithm: str
    key: str | None = field(default=None, repr=False)
    context: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """A bucket or container, and what every cloud's requests have. ``endpoint`` None is the usual one."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    _: KW_ONLY
    anonymous: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    part_size_bytes: int = DEFAULT_PART_SIZE_BYTES
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY


@dataclass(frozen=True, slots=True)
class S3Settings(CloudSettings):
    """An S3 bucket, or one of a server that speaks S3.

    ``path_style`` None means: by path if there is an ``endpoint``, else as the SDK decides.
    ``access_point`` is the ARN of one that requests go to instead of the bucket. ``server_encryption``
    None leaves it to the bucket's own settings.
    """

    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    access_point: str | None = None
    requester_pays: bool = False
    server_encryption: ServerEncryption | None = None


@dataclass(frozen=True, slots=True)
class GcsSettings(CloudSettings):
    """A Google Cloud Storage bucket."""

    project: str | None = None
    credentials_file: str | None = None


@dataclass(frozen=True, slots=True)
class AzureSettings(CloudSettings):
    """An Azure Blob Storage container, as ``bucket``.

    ``endpoint`` is the account's whole blob URL. At most one of ``account_key``, ``sas_token`` and
    ``connection_string`` is set.
    """

    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    connection_string: str | None = field(default=None, repr=False)


BackendSettings = MemorySettings | LocalSettings | S3Settings | GcsSettings | AzureSettings


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Everything about one store: where it is, how it is retried, which risk is accepted."""

    scheme: str
    """One of ``memory``, ``file``, ``s3``, ``gs``, ``az``."""
    backend: BackendSettings
    retry: RetrySettings = RetrySettings()
    allow_unsafe_store: bool = False
