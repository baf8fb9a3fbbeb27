"""What encryption must offer, so that staging and reading need not know how it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ArtifactContext:
    """What an encrypted artifact is bound to: moved anywhere else it does not decrypt.

    ``checkpoint_number`` is the number of the checkpoint that made the artifact, not of the one that
    names it now (``ArtifactRef.made_by``). ``operator`` is empty and ``partition`` -1 for an artifact
    that belongs to no partition. ``kind`` is ``snapshot`` or ``delta``, followed by a colon and the
    artifact's name if it has one.
    """

    store_id: str
    checkpoint_number: int
    operator: str
    partition: int
    kind: str


class Cipher(Protocol):
    """Encrypts, decrypts and authenticates for one store. Safe across threads."""

    @property
    def key_id(self) -> str:
        """The id of the master key in use; manifests record it as ``encryption_key_id``."""

    @property
    def data_key_id(self) -> str:
        """The id of the data key that ``encrypt`` uses; artifacts record it. Its record is durable."""

    def encrypt(self, data: bytes, context: ArtifactContext) -> bytes:
        """Return ``data`` encrypted under ``data_key_id`` and bound to ``context``."""

    def decrypt(self, data: bytes, data_key_id: str, context: ArtifactContext) -> bytes:
        """Return what was encrypted; ``MissingKey`` without the key, ``FormatError`` if it was changed."""

    def mac(self, body: bytes) -> str:
        """Return 64 hex digits that authenticate a manifest's bytes; the same for every master key."""
