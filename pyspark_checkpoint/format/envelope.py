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
MAX_RECORD_BYTES = 8 * 1024 * 1024
"""What a small record may have at most: everything sealed that is not a manifest."""

Mac = Callable[[bytes], str]
"""Makes the 64 hex digits that authenticate bytes under a secret key."""

_DIGEST_HEAD = b',"self_sha256":"'
_MAC_HEAD = b',"mac":"'
_TAIL = b'"}'
_HEX = 64
_ROOM_BYTES = 256
"""More than digest and MAC add to an object."""


def plain_only(body: bytes) -> str:  # noqa: ARG001
    """Stands for the MAC of a store that a holder of keys has found plain: such objects have none.

    Read with it, a manifest that says it is encrypted is damage, because nothing authenticates it.
    """
    raise FormatError("a plain store authenticates nothing")


def mac_of_kind(mac: Mac | None, kind: str) -> Mac | None:
    """The MAC of one kind of object: what is authenticated as that is nothing else.

    Manifests are authenticated as they are, and begin with a brace; no kind does.
    """
    if mac is None or mac is plain_only:
        return mac
    return lambda body: mac(kind.encode("ascii") + b"\n" + body)


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    """Return the SHA-256 of ``data`` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def encode_sealed(fields: dict[str, Any], *, mac: Mac | None = None, max_bytes: int | None = None) -> bytes:
    """Return the canonical bytes of ``fields``, with its digest at the end, and its MAC if asked for.

    What would have over ``max_bytes`` (64 MiB), and so never be read back, is refused.
    """
    body = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    if len(body) < 3:
        raise FormatError("an object without fields is never written")
    if len(body) > (max_bytes or MAX_SEALED_BYTES) - _ROOM_BYTES:
        raise FormatError(
            f"an object of {len(body)} bytes would be larger than any that is read",
            hint="nothing was written; remove savepoints that nobody needs, or use fewer partitions",
        )
    if mac is not None and mac is not plain_only:
        body = body[:-1] + _MAC_HEAD + mac(body).encode("ascii") + _TAIL
    return body[:-1] + _DIGEST_HEAD + sha256_hex(body).encode("ascii") + _TAIL


def decode_sealed(
    data: bytes, name: str, *, mac: Mac | None = None, max_bytes: int | None = None
) -> dict[str, Any]:
    """Return the fields of a sealed object whose digest is right; ``name`` is for the error.

    More than ``max_bytes`` (64 MiB) are refused before they are looked at. With ``mac`` the object must
    carry a MAC and it must be right. Without it, and with ``plain_only``, a MAC is left unread.
    """
    limit = max_bytes or MAX_SEALED_BYTES
    if len(data) > limit:
        raise too_many_bytes(name, limit)
    body = _check_digest(data, name)
    if mac is not None and mac is not plain_only:
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


def encode_record(fields: dict[str, Any], *, mac: Mac | None = None) -> bytes:
    """Return the bytes of a small record: everything sealed that is neither manifest nor pack index."""
    return encode_sealed({**fields, "version": FORMAT_VERSION}, mac=mac, max_bytes=MAX_RECORD_BYTES)


def decode_record(data: bytes, name: str, *, mac: Mac | None = None) -> dict[str, Any]:
    """Return the fields of a small record of this version; a huge one is refused unread."""
    fields = decode_sealed(data, name, mac=mac, max_bytes=MAX_RECORD_BYTES)
    check_version(fields, name)
    return fields


def too_many_bytes(name: str, max_bytes: int) -> FormatError:
    """The error for an object that is larger than all that we write under its name."""
    return FormatError(
        f"{name} has over {max_bytes} bytes, more than any object of its kind",
        hint="something else has written it; restore the object from a copy of the store",
    )


def check_version(fields: dict[str, Any], name: str) -> None:
    """Refuse an object that a newer format wrote."""
    version = fields.get("version")
    if version != FORMAT_VERSION:
        raise UnknownVersion(f"{name} has format version {version!r}, this package reads {FORMAT_VERSION}")


def _check_digest(data: bytes, name: str) -> bytes:
    size = len(data)
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
