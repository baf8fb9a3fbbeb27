"""Small JSON objects that prove themselves: every one ends with a digest of its own bytes.

The bytes are compact JSON with sorted keys (``orjson``), and the last member is always
``"self_sha256"``, the SHA-256 of everything before it with the closing brace put back. An
authenticated object carries ``"mac"`` just before it, over the same bytes without both. A flipped
byte anywhere, also in white space that should not be there, is found before anything is parsed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import orjson

from pyspark_checkpoint.errors import FormatError, IntegrityError, UnknownVersion

FORMAT_VERSION = 1
MAX_SEALED_BYTES = 64 * 1024 * 1024

Mac = Callable[[bytes], str]
"""Makes the 64 hex digits that authenticate bytes under a secret key."""

_DIGEST_HEAD = b',"self_sha256":"'
_MAC_HEAD = b',"mac":"'
_TAIL = b'"}'
_HEX = 64


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    """Return the SHA-256 of ``data`` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def encode_sealed(fields: dict[str, Any], *, mac: Mac | None = None) -> bytes:
    """Return the canonical bytes of ``fields``, with its digest at the end, and its MAC if asked for."""
    body = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    if len(body) < 3:
        raise FormatError("an object without fields is never written")
    if mac is not None:
        body = body[:-1] + _MAC_HEAD + mac(body).encode("ascii") + _TAIL
    return body[:-1] + _DIGEST_HEAD + sha256_hex(body).encode("ascii") + _TAIL


def decode_sealed(data: bytes, name: str, *, mac: Mac | None = None) -> dict[str, Any]:
    """Return the fields of a sealed object whose digest is right; ``name`` is for the error.

    With ``mac`` the object must carry a MAC and it must be right. Without it a MAC is left unread.
    """
    body = _check_digest(data, name)
    if mac is not None:
        _check_mac(body, name, mac)
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise FormatError(f"{name} is not JSON") from None
    if not isinstance(fields, dict):
        raise FormatError(f"{name} is not a JSON object")
    fields.pop("self_sha256", None)
    fields.pop("mac", None)
    return fields


def check_version(fields: dict[str, Any], name: str) -> None:
    """Refuse an object that a newer format wrote."""
    version = fields.get("version")
    if version != FORMAT_VERSION:
        raise UnknownVersion(
            f"{name} has format version {version!r}, this package reads {FORMAT_VERSION}",
            hint="upgrade pyspark-checkpoint on the machine that reads",
        )


def _check_digest(data: bytes, name: str) -> bytes:
    size = len(data)
    if size > MAX_SEALED_BYTES:
        raise FormatError(f"{name} has {size} bytes, more than any object of its kind")
    end = size - len(_TAIL) - _HEX
    head = end - len(_DIGEST_HEAD)
    if head < 1 or data[head:end] != _DIGEST_HEAD or data[-len(_TAIL) :] != _TAIL:
        raise FormatError(f"{name} is torn, empty or damaged: its digest is not where it belongs")
    body = data[:head] + b"}"
    expected = data[end : end + _HEX].decode("ascii", "replace")
    actual = sha256_hex(body)
    if expected != actual:
        raise IntegrityError(name, expected, actual)
    return body


def _check_mac(body: bytes, name: str, mac: Mac) -> None:
    end = len(body) - len(_TAIL) - _HEX
    head = end - len(_MAC_HEAD)
    if head < 1 or body[head:end] != _MAC_HEAD:
        raise FormatError(f"{name} is not authenticated, but this store is encrypted")
    expected = body[end : end + _HEX].decode("ascii", "replace")
    actual = mac(body[:head] + b"}")
    if not hmac.compare_digest(expected.encode("utf-8"), actual.encode("utf-8")):
        raise FormatError(
            f"{name} was not written by a holder of this store's key",
            hint="somebody changed it, or the key ring is another one",
        )
