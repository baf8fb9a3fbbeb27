"""Encryption: AES-256-GCM under data keys, which a master key wraps. Pure; the caller brings chance.

* An artifact is encrypted under a key made for it alone, by HKDF-SHA256 from the data key and a random
  salt, so that one data key serves any number of artifacts. Its associated data bind the store, the
  checkpoint, the operator, the partition and the kind: bytes that were moved elsewhere do not open.
* It is cut in segments, so that a large one can be read with bounded memory; a segment that is missing,
  duplicated, moved or cut off at the end is found, because its number and "last" are part of the nonce.
* A data key is wrapped by AES-256-GCM under a master key, bound to store and data key id, and kept as
  ``keys/{data_key_id}.json``. Manifests are authenticated by HMAC-SHA256 under a key derived from one
  data key of the store, ``MANIFEST_KEY_ID``, which tasks never get: a change of the master key touches
  no manifest, and an executor cannot forge one.

Layout of an encrypted artifact::

    offset  bytes  content
    0       4      "CKPE"
    4       1      version, 1
    5       1      log2 of the segment size
    6       16     salt
    22      ...    segments of 2**log2 bytes (the last shorter, or empty only if it is the only one),
                   each followed by its 16-byte tag
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pyspark_checkpoint.errors import FormatError, UnknownVersion
from pyspark_checkpoint.format.cipher import ArtifactContext
from pyspark_checkpoint.format.envelope import Mac

ARTIFACT_MAGIC = b"CKPE"
ARTIFACT_VERSION = 1
SALT_BYTES = 16
SEGMENT_LOG2 = 16
HEADER_BYTES = 6 + SALT_BYTES
TAG_BYTES = 16
_MAX_SEGMENT_LOG2 = 26
_ARTIFACT_LABEL = b"pyspark-checkpoint artifact 1"
_MANIFEST_LABEL = b"pyspark-checkpoint manifest 1"

MANIFEST_KEY_ID = "00000000-0000-7000-8000-000000000001"
"""The data key that authenticates a store's manifests and encrypts nothing."""

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key for the artifacts of one run. The only secret that tasks receive; in no repr."""

    data_key_id: str
    secret: bytes = field(repr=False)


def encrypt_artifact(
    key: DataKey, context: ArtifactContext, data: Bytes, salt: bytes, *, segment_log2: int = SEGMENT_LOG2
) -> bytes:
    """Return the stored bytes of ``data``. ``salt`` must never be used twice with one data key."""
    if len(salt) != SALT_BYTES:
        raise FormatError(
            f"a salt has {SALT_BYTES} bytes, not {len(salt)}",
            hint="nothing was written; please report this",
        )
    header = ARTIFACT_MAGIC + bytes([ARTIFACT_VERSION, segment_log2]) + salt
    cipher, bound = _artifact_cipher(key, salt), header + _associated(context)
    stored = io.BytesIO()
    stored.write(header)
    for number, last, segment in _segments(memoryview(data), 1 << segment_log2):
        stored.write(cipher.encrypt(_segment_nonce(number, last), segment, bound))
    return stored.getvalue()


def decrypt_artifact(key: DataKey, context: ArtifactContext, data: Bytes) -> bytes:
    """Return what was encrypted, or raise ``FormatError`` when it was changed or moved."""
    header = _read_header(context, bytes(data[:HEADER_BYTES]))
    cipher, bound = _artifact_cipher(key, header[6:]), header + _associated(context)
    stored_segment = (1 << header[5]) + TAG_BYTES
    plain = io.BytesIO()
    for number, last, segment in _segments(memoryview(data)[HEADER_BYTES:], stored_segment):
        try:
            plain.write(cipher.decrypt(_segment_nonce(number, last), segment, bound))
        except InvalidTag:
            raise FormatError(
                f"data key {key.data_key_id} does not open {_described(context)}",
                hint="the bytes were changed, or belong to another place or store",
            ) from None
    return plain.getvalue()


def wrap_data_key(master_secret: bytes, store_id: str, key: DataKey, nonce: bytes) -> bytes:
    """Return the data key as it is stored, readable only with the master key, store and key id."""
    return AESGCM(master_secret).encrypt(nonce, key.secret, _wrap_bound(store_id, key.data_key_id))


def unwrap_data_key(
    master_secret: bytes, store_id: str, data_key_id: str, nonce: bytes, wrapped: bytes
) -> DataKey | None:
    """Return the data key, or None when this master key is not the one that wrapped it."""
    try:
        bound = _wrap_bound(store_id, data_key_id)
        return DataKey(data_key_id, AESGCM(master_secret).decrypt(nonce, wrapped, bound))
    except InvalidTag:
        return None


def manifest_mac(key: DataKey) -> Mac:
    """Return the function that authenticates manifests under a data key."""
    mac_key = HKDF(SHA256(), 32, salt=None, info=_MANIFEST_LABEL).derive(key.secret)

    def mac(body: bytes) -> str:
        return hmac.new(mac_key, body, hashlib.sha256).hexdigest()

    return mac


def _described(context: ArtifactContext) -> str:
    where = f"partition {context.partition} of {context.operator!r}" if context.operator else "a file"
    return f"{context.kind!r} of {where} of checkpoint {context.checkpoint_number}"


def _artifact_cipher(key: DataKey, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt=salt, info=_ARTIFACT_LABEL).derive(key.secret))


@functools.lru_cache(maxsize=1024)
def _associated(context: ArtifactContext) -> bytes:
    fields = (
        context.store_id,
        str(context.checkpoint_number),
        context.operator,
        str(context.partition),
        context.kind,
    )
    return _framed(fields)


def _wrap_bound(store_id: str, data_key_id: str) -> bytes:
    return _framed(("pyspark-checkpoint data key 1", store_id, data_key_id))


def _framed(fields: Iterable[str]) -> bytes:
    """Join texts so that no two lists of texts give the same bytes."""
    encoded = (text.encode("utf-8") for text in fields)
    return b"".join(struct.pack(">I", len(text)) + text for text in encoded)


def _segment_nonce(number: int, last: bool) -> bytes:
    return struct.pack(">7xIB", number, last)


def _segments(data: memoryview, size_bytes: int) -> Iterator[tuple[int, bool, memoryview]]:
    """Cut data into segments of one length; the last, perhaps shorter or empty, is marked."""
    last = max(0, len(data) - 1) // size_bytes
    for number in range(last + 1):
        yield number, number == last, data[number * size_bytes : (number + 1) * size_bytes]


def _read_header(context: ArtifactContext, head: bytes) -> bytes:
    if len(head) < HEADER_BYTES:
        raise FormatError(
            f"{_described(context)} is torn: it is shorter than an encrypted artifact's header"
        )
    if head[:4] != ARTIFACT_MAGIC:
        raise FormatError(f"{_described(context)} is not an encrypted artifact")
    if head[4] != ARTIFACT_VERSION:
        raise UnknownVersion(
            f"{_described(context)} has encryption version {head[4]}, not {ARTIFACT_VERSION}"
        )
    if head[5] > _MAX_SEGMENT_LOG2:
        raise FormatError(f"{_described(context)} has a damaged header")
    return head
