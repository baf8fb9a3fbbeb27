"""Where bytes are and what proves them: artifacts, and the objects that hold them."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from typing import Any

from pyspark_checkpoint.errors import FormatError, IntegrityError
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import number_of

_HEX_DIGITS = 64
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


MAX_BOUNDED_COLUMNS = 32
_MAX_BOUND_LETTERS = 64


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The values of one column in an artifact: none is below ``low`` or above ``high``; None is open.

    Without both it has nulls only. What a number stands for is said by the column's type.
    """

    name: str
    low: int | float | str | None
    high: int | float | str | None
    nulls: int


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """Immutable bytes: a whole object, a range of a pack, or bytes inline in the manifest.

    ``size_bytes`` and ``sha256`` are over the stored bytes (the ciphertext of an encrypted store),
    so that they are verified without a key. ``name`` says what the artifact is within its partition
    where that matters (the file name of a Spark state file); it is empty for rows of a table.
    ``offset`` is where the artifact begins in its object; for an inline one, which has no object, it is
    the number of the checkpoint that made it, because encryption binds it to that number.
    ``decoded_bytes`` bounds what the rows of a table take in memory once they are decoded; it is 0 for what
    is not decoded, such as a file of Spark. ``bounds`` say what its rows can have, if somebody has looked.
    """

    path: str | None
    size_bytes: int
    sha256: str
    is_delta: bool
    epoch: int
    offset: int = 0
    name: str = ""
    data_key_id: str | None = None
    inline: bytes | None = None
    decoded_bytes: int = 0
    bounds: tuple[ColumnBounds, ...] = ()

    @staticmethod
    def of_inline(
        data: bytes,
        *,
        is_delta: bool,
        epoch: int,
        name: str = "",
        data_key_id: str | None = None,
        made_by: int = 0,
        decoded_bytes: int = 0,
    ) -> ArtifactRef:
        """Refer to bytes that travel inside the manifest; ``made_by`` is the number of their checkpoint."""
        return ArtifactRef(
            path=None,
            size_bytes=len(data),
            sha256=sha256_hex(data),
            is_delta=is_delta,
            epoch=epoch,
            offset=made_by,
            name=name,
            data_key_id=data_key_id,
            inline=data,
            decoded_bytes=decoded_bytes,
        )

    @property
    def made_by(self) -> int:
        """The number of the checkpoint that made the artifact, whichever names it now."""
        return self.offset if self.path is None else number_of(self.path)

    def moved(self, path: str, offset: int) -> ArtifactRef:
        """The same bytes at another place."""
        return replace(self, path=path, offset=offset, inline=None)


def verify_integrity(path: str, data: bytes | bytearray | memoryview, expected_sha256: str) -> None:
    """Raise ``IntegrityError`` unless ``data`` has the digest ``expected_sha256``."""
    actual = sha256_hex(data)
    if actual != expected_sha256:
        raise IntegrityError(path, expected_sha256, actual)


class Tables:
    """The objects and data keys that a manifest's artifacts refer to, each written down once."""

    def __init__(self) -> None:
        self._objects: dict[str, int] = {}
        self._data_keys: dict[str, int] = {}

    def object_row(self, path: str) -> int:
        """The row of an object, made when it is new."""
        return self._objects.setdefault(path, len(self._objects))

    def data_key_row(self, data_key_id: str) -> int:
        """The row of a data key, made when it is new."""
        return self._data_keys.setdefault(data_key_id, len(self._data_keys))

    def objects(self) -> list[str]:
        """The paths in the order of their rows."""
        return list(self._objects)

    def data_keys(self) -> list[str]:
        """The data key ids in the order of their rows."""
        return list(self._data_keys)


def encode_artifact(ref: ArtifactRef, tables: Tables) -> list[Any]:
    """Return the compact row of an artifact; 43 characters of digest are most of it.

    The row is ``[object row or inline base64, offset, size, digest, flags, epoch]`` and perhaps name,
    decoded size and bounds: a text, a number and a list, so that each may be left out. Flags are 1 for a
    delta, plus twice the data key's row plus one for an encrypted artifact.
    """
    if not _is_sound(ref):
        raise FormatError(f"an artifact has no size, digest, epoch or name that can be kept: {ref.name!r}")
    digest = encode_digest(ref.sha256)
    flags = 1 if ref.is_delta else 0
    if ref.data_key_id is not None:
        flags |= (tables.data_key_row(ref.data_key_id) + 1) << 1
    if ref.inline is not None:
        where: Any = base64.b64encode(ref.inline).decode("ascii")
    elif ref.path is not None:
        where = tables.object_row(ref.path)
    else:
        raise FormatError("an artifact is neither inline nor at a path")
    row = [where, ref.offset, ref.size_bytes, digest, flags, ref.epoch]
    if ref.name:
        row.append(ref.name)
    if ref.decoded_bytes:
        row.append(ref.decoded_bytes)
    if ref.bounds:
        row.append([[one.name, one.low, one.high, one.nulls] for one in ref.bounds])
    return row


def _is_sound(ref: ArtifactRef) -> bool:
    """Whether ``decode_artifact`` would take it. Costs little: a large manifest has thousands of them."""
    numbers = type(ref.size_bytes) is type(ref.offset) is type(ref.epoch) is type(ref.decoded_bytes) is int
    texts = type(ref.sha256) is type(ref.name) is str
    if not (numbers and texts) or ref.size_bytes < 0 or ref.offset < 0 or ref.epoch < 0:
        return False
    if ref.decoded_bytes < 0:
        return False
    return len(ref.sha256) == _HEX_DIGITS and (ref.inline is None or len(ref.inline) == ref.size_bytes)


def encode_digest(sha256: str) -> str:
    """43 characters. The slow part of writing a large manifest, so without a detour."""
    return (
        binascii.b2a_base64(bytes.fromhex(sha256), newline=False)[:43].translate(_URL_SAFE).decode("ascii")
    )


def decode_artifact(row: Any, objects: list[str], data_keys: list[str]) -> ArtifactRef:
    """Read a compact row back; refuses what ``encode_artifact`` cannot have written.

    The paths of ``objects`` must have been checked by the caller, once each.
    """
    if type(row) is not list or not 6 <= len(row) <= 9:
        raise FormatError("an artifact's row is damaged")
    where, offset, size_bytes, digest, flags, epoch = row[:6]
    name, decoded_bytes, bounds = _decode_rest(row[6:]) if len(row) > 6 else ("", 0, ())
    if not type(offset) is type(size_bytes) is type(flags) is type(epoch) is int:
        raise FormatError("an artifact's row is damaged")
    if offset < 0 or size_bytes < 0 or flags < 0 or epoch < 0:
        raise FormatError("an artifact's row is damaged")
    key_row = (flags >> 1) - 1
    if key_row >= len(data_keys):
        raise FormatError("an artifact refers to a data key that the manifest does not name")
    path, inline = _decode_place(where, objects, size_bytes)
    return ArtifactRef(
        path,
        size_bytes,
        decode_digest(digest),
        flags & 1 == 1,
        epoch,
        offset,
        name,
        data_keys[key_row] if key_row >= 0 else None,
        inline,
        decoded_bytes,
        bounds,
    )


def _decode_rest(rest: list[Any]) -> tuple[str, int, tuple[ColumnBounds, ...]]:
    """The name, the decoded size and the bounds at the end of a row, each of which may not be there."""
    listed = rest[-1] if type(rest[-1]) is list else []
    plain = rest[:-1] if listed else rest
    name = plain[0] if plain and type(plain[0]) is str else ""
    decoded_bytes = plain[-1] if plain and type(plain[-1]) is int else 0
    if [value for value in (name, decoded_bytes) if value] != plain or decoded_bytes < 0:
        raise FormatError("an artifact's row is damaged")
    return name, decoded_bytes, _decode_bounds(listed)


def _decode_bounds(rows: list[Any]) -> tuple[ColumnBounds, ...]:
    found = []
    for row in rows[: MAX_BOUNDED_COLUMNS + 1]:
        if type(row) is not list or len(row) != 4:
            raise FormatError("an artifact's bounds are damaged")
        name, low, high, nulls = row
        is_sound = type(name) is str and type(nulls) is int and nulls >= 0
        if not is_sound or not (_is_bound(low) and _is_bound(high)) or (low is None and high is not None):
            raise FormatError("an artifact's bounds are damaged")
        found.append(ColumnBounds(name, low, high, nulls))
    if len(found) > MAX_BOUNDED_COLUMNS:
        raise FormatError("an artifact has bounds of too many columns")
    return tuple(found)


def _is_bound(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _MAX_BOUND_LETTERS
    return value is None or type(value) in (int, float, bool)


def _decode_place(where: Any, objects: list[str], size_bytes: int) -> tuple[str | None, bytes | None]:
    if type(where) is int and 0 <= where < len(objects):
        return objects[where], None
    if type(where) is str:
        try:
            inline = base64.b64decode(where, validate=True)
        except binascii.Error:
            raise FormatError("an inline artifact is damaged") from None
        if len(inline) != size_bytes:
            raise FormatError("an inline artifact has another size than recorded")
        return None, inline
    raise FormatError("an artifact refers to an object that the manifest does not name")


def decode_digest(digest: Any) -> str:
    """The 64 hex digits that ``encode_digest`` has shortened."""
    try:
        raw = binascii.a2b_base64(digest.replace("-", "+").replace("_", "/") + "=", strict_mode=True)
    except (AttributeError, TypeError, ValueError):
        raise FormatError("an artifact's digest is damaged") from None
    if len(raw) != 32:
        raise FormatError("an artifact's digest is damaged")
    return raw.hex()
