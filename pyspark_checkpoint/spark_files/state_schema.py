"""The file that describes what a state store holds: read as far as a capture needs it. Pure.

``state/op/0/_metadata/schema`` is written by Java's DataOutputStream: a version, then the key's and the
value's schema as JSON, whole in version 1 and in counted pieces in version 2.
"""

from __future__ import annotations

import struct

import orjson

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.spark_files.logs import TORN_LOG

_SHORT = struct.Struct(">H")
_INT = struct.Struct(">i")


def is_keyless(data: bytes, name: str) -> bool:
    """Whether a store's key has no column: a global aggregation, which fills its first partition only."""
    version, rest = _text(data, name)
    if version == "v1":
        key, _ = _text(rest, name)
    elif version == "v2":
        key = _pieces(rest, name)
    else:
        return False
    try:
        return bool(orjson.loads(key)["fields"] == [])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise FormatError(f"{name} is not a schema that Spark 4 writes", hint=TORN_LOG) from None


def _pieces(data: bytes, name: str) -> str:
    if len(data) < _INT.size:
        raise FormatError(f"{name} is cut short", hint=TORN_LOG)
    count, rest = _INT.unpack_from(data)[0], data[_INT.size :]
    pieces = []
    for _ in range(count):
        piece, rest = _text(rest, name)
        pieces.append(piece)
    return "".join(pieces)


def _text(data: bytes, name: str) -> tuple[str, bytes]:
    if len(data) < _SHORT.size:
        raise FormatError(f"{name} is cut short", hint=TORN_LOG)
    end = _SHORT.size + _SHORT.unpack_from(data)[0]
    if len(data) < end:
        raise FormatError(f"{name} is cut short", hint=TORN_LOG)
    return data[_SHORT.size : end].decode("utf-8", "replace"), data[end:]
