"""Checksums of whole objects as Google Cloud Storage keeps them: crc32c, and MD5 where that is not fast."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import google_crc32c


@dataclass(frozen=True, slots=True)
class GcsChecksum:
    """A checksum of the whole object, under the name that the API has for it."""

    field: str
    value: str


class Checker:
    """Adds up the pieces of an object: crc32c in C where available (over 10 GB/s), else MD5."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._crc = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        if self.field == "crc32c":
            self._crc = google_crc32c.extend(self._crc, piece)
        else:
            self._md5.update(piece)

    def result(self) -> GcsChecksum:
        """The checksum of all pieces so far."""
        digest = self._crc.to_bytes(4, "big") if self.field == "crc32c" else self._md5.digest()
        return GcsChecksum(self.field, base64.b64encode(digest).decode())


def fast_checksum() -> str:
    """The checksum that costs least here; crc32c in pure Python would be slower than the network."""
    return "crc32c" if google_crc32c.implementation == "c" else "md5Hash"


def checker_for(headers: Mapping[str, str]) -> tuple[Checker, str] | None:
    """Return a checker for a download and what it must find, if the answer names a checksum."""
    found = dict(
        part.strip().split("=", 1) for part in headers.get("x-goog-hash", "").split(",") if "=" in part
    )
    for header, field in (("crc32c", "crc32c"), ("md5", "md5Hash")):
        if header in found and field in ("md5Hash", fast_checksum()):
            return Checker(field), found[header]
    return None
