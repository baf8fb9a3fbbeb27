"""From what users write to frozen settings: options, then Hadoop's keys, then the environment.

Each source is turned into the same small vocabulary (``KNOWN``) first. For most names the first
source that has it decides. Credentials go together: the first source that has any of them gives all
of them, so that a session token of the environment is never joined to a key that was typed. So do the
settings of the server's encryption.

One set of options may serve several stores: what another backend needs is ignored, what no backend
knows is refused. Keys that begin with ``spark.``, ``fs.`` or ``google.`` are Spark's and Hadoop's;
of those only the few below are read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.store.foreign import environment_options, hadoop_options
from pyspark_checkpoint.store.settings import (
    DEFAULT_MAX_CONCURRENCY,
    DEFAULT_PART_SIZE_BYTES,
    DEFAULT_RETRY_SECONDS,
    DEFAULT_TIMEOUT_SECONDS,
    MIB,
)
from pyspark_checkpoint.store.url import StoreUrl

TRUSTED_STORES = "trustedStores"
"""URLs, with commas, of other accounts and buckets in which tables that records name may be opened."""
KNOWN = (
    "endpoint",
    "region",
    "accessKey",
    "secretKey",
    "sessionToken",
    "pathStyleAccess",
    "accessPoint",
    "requesterPays",
    "serverEncryption",
    "serverEncryptionKey",
    "serverEncryptionContext",
    "connectionString",
    "accountName",
    "accountKey",
    "sasToken",
    "credentialsFile",
    "project",
    "anonymous",
    "timeoutSeconds",
    "retrySeconds",
    "partSizeBytes",
    "maxConcurrency",
    "allowUnsafeStore",
    TRUSTED_STORES,
)
CREDENTIALS = (
    "accessKey",
    "secretKey",
    "sessionToken",
    "connectionString",
    "accountKey",
    "sasToken",
    "credentialsFile",
    "anonymous",
)
SERVER_ENCRYPTION = ("serverEncryption", "serverEncryptionKey", "serverEncryptionContext")
HIDDEN = (*CREDENTIALS, "serverEncryptionKey")
"""Options that Spark must not show."""
_BY_LOWER = {name.lower(): name for name in KNOWN}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_FOREIGN = ("spark.", "fs.", "google.")


@dataclass(frozen=True, slots=True)
class Choices:
    """The options that hold for one store, by their names in ``KNOWN``; checked as they are taken."""

    values: Mapping[str, str]

    def text(self, name: str) -> str | None:
        return self.values.get(name) or None

    def flag(self, name: str) -> bool | None:
        value = self.text(name)
        if value is None:
            return None
        if value.strip().lower() not in _FLAGS:
            raise SettingsError(f"option {name} is {value!r}", hint="write true or false")
        return _FLAGS[value.strip().lower()]

    def number(self, name: str, default: float, *, minimum: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not minimum <= number < float("inf"):
            raise SettingsError(
                f"option {name} is {value!r}", hint=f"write a number of at least {minimum:g}"
            )
        return number

    def endpoint(self) -> str | None:
        value = self.text("endpoint")
        if value is None:
            return None
        if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", value):
            raise SettingsError(
                "option endpoint is not a plain http:// or https:// URL",
                hint="type for example https://storage.example.com:9000, without user and password",
            )
        return value.rstrip("/")

    @property
    def timeout_seconds(self) -> float:
        return self.number("timeoutSeconds", DEFAULT_TIMEOUT_SECONDS, minimum=0.1)

    @property
    def retry_seconds(self) -> float:
        return self.number("retrySeconds", DEFAULT_RETRY_SECONDS, minimum=0)

    @property
    def part_size_bytes(self) -> int:
        """A multiple of 256 KiB (Google asks for that) and at least 5 MiB (Amazon asks for that)."""
        typed = int(self.number("partSizeBytes", DEFAULT_PART_SIZE_BYTES, minimum=5 * MIB))
        return -(-typed // (MIB // 4)) * (MIB // 4)

    @property
    def max_concurrency(self) -> int:
        return int(self.number("maxConcurrency", DEFAULT_MAX_CONCURRENCY, minimum=1))


def is_store_option(name: str) -> bool:
    """Say whether ``open_object_store`` takes an option of this name, in any case of letters."""
    return name.lower() in _BY_LOWER or name.lower().startswith(_FOREIGN)


def choose_options(url: StoreUrl, options: Mapping[str, str], env: Mapping[str, str]) -> Choices:
    """Join the three sources for one store. Raises ``SettingsError`` for an option nobody knows."""
    typed = _typed_options(options)
    sources = (typed, hadoop_options(url, options), environment_options(url, env))
    values: dict[str, str] = {}
    together = (*CREDENTIALS, *SERVER_ENCRYPTION)
    for source in reversed(sources):
        values |= {name: value for name, value in source.items() if name not in together}
    return Choices(values | _credentials(sources) | _server_encryption(sources))


def _credentials(sources: Sequence[Mapping[str, str]]) -> dict[str, str]:
    for source in sources:
        given = {name: source[name] for name in CREDENTIALS if source.get(name)}
        if given and (set(given) != {"anonymous"} or _FLAGS.get(given["anonymous"].lower()) is not False):
            return given
    return {}


def _server_encryption(sources: Sequence[Mapping[str, str]]) -> dict[str, str]:
    for source in sources:
        given = {name: source[name] for name in SERVER_ENCRYPTION if source.get(name)}
        if given:
            return given
    return {}


def _typed_options(options: Mapping[str, str]) -> dict[str, str]:
    typed = {}
    for name, value in options.items():
        known = _BY_LOWER.get(name.lower())
        if known is not None:
            typed[known] = str(value)
        elif not name.lower().startswith(_FOREIGN):
            raise _unknown_option(name)
    return typed


def _unknown_option(name: str) -> SettingsError:
    near = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1, cutoff=0.5)
    hint = f"did you mean {_BY_LOWER[near[0]]}?" if near else f"known: {', '.join(KNOWN)}"
    return SettingsError(f"unknown store option {name}", hint=hint)
