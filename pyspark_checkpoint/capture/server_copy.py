"""Large files that store and location keep in one bucket: the server copies them, nothing is uploaded.

The copy is ours alone and never changes, so its digest is taken from it afterwards, by reading it once:
what is recorded is the SHA-256 of the stored bytes, as everywhere. Saved is the upload, not the read.

The server copies with the store's credentials, which need not be those that Spark reads the location with.
Where they may not read it, files are uploaded as from anywhere else.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpoint.errors import Denied, NotFound
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone, LocationSpec
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store, parse_store_settings
from pyspark_checkpoint.store.settings import BackendSettings, S3Settings
from pyspark_checkpoint.store.url import parse_store_url

_LOG = logging.getLogger(__name__)

COPY_BYTES = 8 * 1024 * 1024
"""From here on a copy by the server is worth its requests."""
_SERVICES = ("s3", "gs", "az", "memory")
_SAME = ("bucket", "container", "name", "endpoint", "account_name", "project", "access_point")
_DENIED: set[tuple[str, str]] = set()
"""Buckets and prefixes in them that this process may not copy from: tasks come and go, and ask once."""
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class CopiedObject:
    """What a copy is, as it is stored."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ServerCopier:
    """Copies from a location to a store that are in one bucket."""

    bucket: ObjectStore
    location_prefix: str
    store_prefix: str

    def copy(self, path: str, artifact_path: str) -> CopiedObject | None:
        """Copy a file of the location to a name that only the caller uses, and read it for its digest.

        None if the store's credentials may not copy it: the caller uploads it.
        """
        if (self.bucket.url, self.location_prefix) in _DENIED:
            return None
        target = _join(self.store_prefix, artifact_path)
        try:
            self.bucket.copy(_join(self.location_prefix, path), target)
        except NotFound:
            raise FileGone(f"{path} is gone from the checkpoint location") from None
        except Denied:
            self._remember_denial()
            return None
        digest, size_bytes = hashlib.sha256(), 0
        for chunk in self.bucket.stream(target):
            digest.update(chunk)
            size_bytes += len(chunk)
        return CopiedObject(size_bytes, digest.hexdigest())

    def _remember_denial(self) -> None:
        with _LOCK:
            is_new = (self.bucket.url, self.location_prefix) not in _DENIED
            _DENIED.add((self.bucket.url, self.location_prefix))
        if is_new:
            _LOG.warning(
                "%s refuses to copy from the checkpoint location with the store's credentials: large files "
                "are uploaded instead. Let these credentials read %s/, and start again",
                self.bucket.url,
                self.location_prefix,
            )


def find_server_copier(
    location: LocationSpec | CheckpointLocation, url: str, options: Mapping[str, str] | None
) -> ServerCopier | None:
    """What copies from ``location`` to the store at ``url``; None if no one server has both."""
    spec = location.spec if isinstance(location, CheckpointLocation) else location
    if spec.is_foreign:
        return None
    here, there = parse_store_url(spec.url), parse_store_url(url)
    if here.scheme != there.scheme or here.scheme not in _SERVICES:
        return None
    source = parse_store_settings(spec.url, spec.options).backend
    target = parse_store_settings(url, options).backend
    if any(getattr(source, name, None) != getattr(target, name, None) for name in _SAME):
        return None
    if _customer_key(source) != _customer_key(target):
        return None
    scheme, _, rest = url.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    return ServerCopier(open_object_store(root, options), here.path, there.path)


def _customer_key(backend: BackendSettings) -> str | None:
    """The key without which the server can neither read nor copy, if the user keeps it."""
    encryption = backend.server_encryption if isinstance(backend, S3Settings) else None
    return encryption.key if encryption is not None and encryption.algorithm == "SSE-C" else None


def _join(prefix: str, key: str) -> str:
    return f"{prefix}/{key}" if prefix else key
