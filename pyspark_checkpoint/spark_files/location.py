"""A checkpoint location of Spark, seen through an object store: one way for disk, clouds and Hadoop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from pyspark_checkpoint.errors import NotFound, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.spark_files.listing import CheckpointListing, sort_listing
from pyspark_checkpoint.spark_files.versions import FileFacts
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.foreign import hadoop_endpoint, hadoop_options
from pyspark_checkpoint.store.open import StoreHome, home_of, open_object_store, parse_store_settings
from pyspark_checkpoint.store.options import CREDENTIALS, SERVER_ENCRYPTION, choose_options
from pyspark_checkpoint.store.settings import AzureSettings
from pyspark_checkpoint.store.url import SCHEMES, StoreUrl, parse_store_url

GONE_HINT = "Spark purges and rewrites files while it runs; capture again, or let it keep more batches"
_SPARK_SCHEMES = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}
_SHORT_AZURE = ("az", "azure")


class FileGone(RefusedError):
    """A file that was listed is gone, or is another one: Spark purged or rewrote it. List again.

    ``uploaded`` has what was in the store by then: files by their paths, and where they are.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        uploaded: Iterable[tuple[str, ArtifactRef]] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.uploaded = tuple(uploaded)


class LocationGone(RefusedError):
    """There is nothing at all at the location although its query has run: removed, or elsewhere."""


class LocationReplaced(RefusedError):
    """The location is another query's by now."""


Opener = Callable[[str], ObjectStore]
"""Opens a location that only Hadoop's file systems know; ``spark.hadoop`` has it."""


@dataclass(frozen=True, slots=True)
class LocationSpec:
    """How to open a checkpoint location anywhere: what a task is told. Options are never printed."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    becomes: str = ""
    """Where the location will be when it is used, if that is elsewhere."""
    opener: Opener | None = field(default=None, repr=False, compare=False)

    @property
    def is_foreign(self) -> bool:
        """Whether only Hadoop can reach it: neither a path nor a service that this package speaks to."""
        scheme, colon, _ = self.url.partition(":")
        return bool(colon) and "/" not in scheme and scheme.lower() not in SCHEMES

    @property
    def spark_url(self) -> str:
        """The location as Spark spells it: what Spark finds in files that name their own place."""
        if self.becomes:
            return LocationSpec(self.becomes, self.options).spark_url
        if self.is_foreign:
            return self.url.rstrip("/")
        where = parse_store_url(self.url)
        if where.scheme == "file":
            return f"file:{where.path}"
        typed, colon, rest = self.url.rstrip("/").partition(":")
        if where.scheme == "az" and (where.account is None or typed.lower() in _SHORT_AZURE):
            return self._azure_url(where)
        return f"{_SPARK_SCHEMES.get(typed.lower(), typed)}{colon}{rest}"

    def _azure_url(self, where: StoreUrl) -> str:
        """Spark wants the account in the URL, which our own short one may leave to the options."""
        account = where.account
        if account is None:
            backend = parse_store_settings(self.url, self.options).backend
            account = backend.account_name if isinstance(backend, AzureSettings) else None
        suffix = (where.endpoint or "").partition(".blob.")[2] or "core.windows.net"
        host = f"@{account}.dfs.{suffix}" if account else ""
        return f"abfss://{where.bucket}{host}/{where.path}".rstrip("/")

    def beside(self, suffix: str) -> LocationSpec:
        """Another location next to this one, which is to take its place."""
        return replace(self, url=f"{self.url.rstrip('/')}.{suffix}", becomes=self.url)

    def open(self) -> CheckpointLocation:
        """Open it."""
        if not self.is_foreign:
            return CheckpointLocation(self, open_object_store(self.url, self.options))
        if self.opener is None:
            scheme = self.url.partition(":")[0]
            raise RefusedError(
                f"a checkpoint location on {scheme}: is reached through Spark alone",
                hint="give a session (spark=), whose Hadoop file systems are used; local disk, S3, GCS and "
                "Azure need none",
            )
        return CheckpointLocation(self, self.opener(self.url))


def location_options(
    url: str, spark_settings: Mapping[str, str], store_options: Mapping[str, str]
) -> dict[str, str]:
    """The options to open a location with, if none are given for it.

    Spark reads the location with its own settings, so these decide where they have credentials or another
    endpoint: the store may be at another address, under another account. Otherwise the store's serve for
    what Spark's leave open. Keys of the one never go to the host of the other.
    """
    if LocationSpec(url).is_foreign:
        return dict(spark_settings)
    where = parse_store_url(url)
    found = hadoop_options(where, spark_settings)
    if found.keys() & set(CREDENTIALS) or not _is_same_host(where, spark_settings, store_options):
        return dict(spark_settings)
    decided = {*found, *(SERVER_ENCRYPTION if "serverEncryption" in found else ())}
    lowered = {name.lower() for name in decided}
    return {
        **spark_settings,
        **{name: value for name, value in store_options.items() if name.lower() not in lowered},
    }


def _is_same_host(
    where: StoreUrl, spark_settings: Mapping[str, str], store_options: Mapping[str, str]
) -> bool:
    """Whether the location is where the store's keys belong, as far as Spark's settings and the URL say."""
    if where.scheme == "az" and where.account is not None:
        short = f"az://{where.bucket}"
        return home_of(short, store_options) == StoreHome("az", where.account, where.endpoint or "")
    named = hadoop_endpoint(where, spark_settings)
    if named is None:
        return True
    typed = choose_options(where, store_options, os.environ).endpoint()
    if where.scheme == "s3" and _is_amazon(named):
        return typed is None or _is_amazon(typed)
    return typed is not None and typed.lower() == named.lower().rstrip("/")


def _is_amazon(endpoint: str) -> bool:
    host = (urlsplit(endpoint).hostname or "").lower()
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


class CheckpointLocation:
    """The files of one query's checkpoint location, by their paths relative to it."""

    def __init__(self, spec: LocationSpec, store: ObjectStore) -> None:
        self.spec = spec
        self.url = spec.url
        self.spark_url = spec.spark_url
        self.store = store

    def listing(self, *prefixes: str) -> CheckpointListing:
        """Everything that is there now, or what begins with one of the prefixes."""
        return sort_listing(self.facts(*prefixes))

    def facts(self, *prefixes: str) -> dict[str, FileFacts]:
        """The same, not sorted yet."""
        return {
            found.key: FileFacts(found.size_bytes, found.modified_ms, found.version.token)
            for prefix in prefixes or ("",)
            for found in self.store.list(prefix)
            if not found.key.rsplit("/", 1)[-1].startswith(".")
        }

    def read(self, path: str, facts: FileFacts | None = None) -> bytes:
        """A file's bytes; with ``facts`` only if it is still of that size."""
        try:
            data = self.store.get(path)
        except NotFound:
            raise FileGone(f"{path} is gone from the checkpoint location", hint=GONE_HINT) from None
        if facts is not None and len(data) != facts.size_bytes:
            raise FileGone(f"{path} was written again", hint=GONE_HINT)
        return data


class RememberingLocation(CheckpointLocation):
    """A location of which some files were read already: those are not read again."""

    def __init__(self, location: CheckpointLocation, read: Mapping[str, bytes]) -> None:
        super().__init__(location.spec, location.store)
        self._read = read

    def read(self, path: str, facts: FileFacts | None = None) -> bytes:
        """The bytes that are known, or else those that are there."""
        known = self._read.get(path)
        return super().read(path, facts) if known is None else known


class LocationAhead(CheckpointLocation):
    """A location as it is with a file that is about to be written there: the offsets of the next batch."""

    def __init__(self, inner: CheckpointLocation) -> None:
        super().__init__(inner.spec, inner.store)
        self.inner = inner
        self.ahead: Mapping[str, bytes] = {}

    def listing(self, *prefixes: str) -> CheckpointListing:
        """What is there, and what is about to be."""
        found = self.inner.listing(*prefixes)
        if not self.ahead:
            return found
        ahead = {path: FileFacts(len(data), 0, sha256_hex(data)) for path, data in self.ahead.items()}
        return sort_listing({**found.facts, **ahead})

    def read(self, path: str, facts: FileFacts | None = None) -> bytes:
        """A file that is there, or about to be."""
        data = self.ahead.get(path)
        return self.inner.read(path, facts) if data is None else data
