"""The small records beside the manifests: pointer, control record, seals, sink statuses."""

from __future__ import annotations

import base64
import binascii
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import Mac, decode_record, encode_record, mac_of_kind

_SEAL, _STATUS = "seal 1", "status 1"
"""What the MACs of these records begin with."""


class SinkCommitStatus(enum.Enum):
    """How far a sink is with a checkpoint. No record means pending; committed wins over failed."""

    PENDING = "pending"
    COMMITTED = "committed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pin:
    """A manifest that retention must leave: its number and the digest of its bytes."""

    number: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Control:
    """The one record of a store that changes, and only by compare-and-swap.

    ``floor``: below it only pinned manifests exist; it never falls. ``swept``: below it nothing but
    pinned ones is left to delete; ``swept <= floor``. ``deleted``: numbers at or above the floor whose
    manifest is, or is about to become, a tombstone. ``counter`` rises with every change, so that no two
    states of a store have equal bytes.
    """

    store_id: str
    counter: int = 0
    floor: int = 1
    swept: int = 1
    pins: Mapping[str, Pin] = field(default_factory=dict)
    deleted: frozenset[int] = frozenset()

    def pinned(self, number: int, sha256: str) -> bool:
        """Whether a manifest below the floor is one that a pin still means."""
        return any(pin.number == number and pin.sha256 == sha256 for pin in self.pins.values())

    def pinned_numbers(self) -> frozenset[int]:
        """The numbers that are pinned by any name."""
        return frozenset(pin.number for pin in self.pins.values())

    def changed(self, **fields: Any) -> Control:
        """The next state: ``fields`` replaced and the counter raised."""
        return replace(self, counter=self.counter + 1, **fields)


def encode_control(control: Control) -> bytes:
    """Return the bytes of the control record."""
    pins = {name: {"number": pin.number, "sha256": pin.sha256} for name, pin in control.pins.items()}
    return encode_record(
        {
            "store_id": control.store_id,
            "counter": control.counter,
            "floor": control.floor,
            "swept": control.swept,
            "pins": pins,
            "deleted": sorted(control.deleted),
        }
    )


def decode_control(data: bytes) -> Control:
    """Read the control record back."""
    fields = decode_record(data, "_control")
    try:
        pins = {name: Pin(int(pin["number"]), str(pin["sha256"])) for name, pin in fields["pins"].items()}
        return Control(
            store_id=str(fields["store_id"]),
            counter=int(fields["counter"]),
            floor=int(fields["floor"]),
            swept=int(fields["swept"]),
            pins=pins,
            deleted=frozenset(int(n) for n in fields["deleted"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError("_control lacks a field, or has one of another type") from None


def encode_latest(number: int) -> bytes:
    """Return the bytes of the pointer to manifest ``number``."""
    return encode_record({"checkpoint_id": number})


def decode_latest(data: bytes) -> int:
    """Read the pointer back. A damaged one is an error that readers may ignore: it is a hint."""
    fields = decode_record(data, "_latest")
    number = fields.get("checkpoint_id")
    if type(number) is not int or number < 1:
        raise FormatError("_latest has no checkpoint number")
    return number


@dataclass(frozen=True, slots=True)
class Seal:
    """Spark's ``commits/N`` of a head that stays head, and further small files known only afterwards."""

    checkpoint_id: int
    commit_nonce: str
    timestamp_ms: int
    files: Mapping[str, bytes]


def encode_seal(seal: Seal, *, mac: Mac | None = None) -> bytes:
    """Return the bytes of a seal; of an encrypted store, with ``mac``, which binds number and nonce too."""
    files = {name: base64.b64encode(data).decode("ascii") for name, data in seal.files.items()}
    return encode_record(
        {
            "checkpoint_id": seal.checkpoint_id,
            "commit_nonce": seal.commit_nonce,
            "timestamp_ms": seal.timestamp_ms,
            "files": files,
        },
        mac=mac_of_kind(mac, _SEAL),
    )


def decode_seal(data: bytes, name: str, *, mac: Mac | None = None) -> Seal:
    """Read a seal back. With ``mac`` it must be authenticated."""
    fields = decode_record(data, name, mac=mac_of_kind(mac, _SEAL))
    try:
        files = {k: base64.b64decode(v, validate=True) for k, v in fields["files"].items()}
        return Seal(
            int(fields["checkpoint_id"]), str(fields["commit_nonce"]), int(fields["timestamp_ms"]), files
        )
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        raise FormatError(f"{name} lacks a field, or has one of another type") from None


@dataclass(frozen=True, slots=True)
class SinkStatusRecord:
    """What happened when a sink was told to commit a checkpoint."""

    checkpoint_id: int
    commit_nonce: str
    sink: str
    status: SinkCommitStatus
    timestamp_ms: int
    message: str = ""


def encode_status(record: SinkStatusRecord, *, mac: Mac | None = None) -> bytes:
    """Return the bytes of a sink's status record; of an encrypted store, with ``mac``."""
    return encode_record(
        {
            "checkpoint_id": record.checkpoint_id,
            "commit_nonce": record.commit_nonce,
            "sink": record.sink,
            "status": record.status.value,
            "timestamp_ms": record.timestamp_ms,
            "message": record.message,
        },
        mac=mac_of_kind(mac, _STATUS),
    )


def decode_status(data: bytes, name: str, *, mac: Mac | None = None) -> SinkStatusRecord:
    """Read a sink's status record back. With ``mac`` it must be authenticated."""
    fields = decode_record(data, name, mac=mac_of_kind(mac, _STATUS))
    try:
        return SinkStatusRecord(
            int(fields["checkpoint_id"]),
            str(fields["commit_nonce"]),
            str(fields["sink"]),
            SinkCommitStatus(fields["status"]),
            int(fields["timestamp_ms"]),
            str(fields["message"]),
        )
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{name} lacks a field, or has one of another type") from None
