"""The small records beside the manifests: pointer, control record, seals, sink statuses."""

from __future__ import annotations

import base64
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import Mac, decode_record, encode_record, mac_of_kind
from pyspark_checkpoint.format.fields import items, mapping, short_text, text, text_map, whole

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
        return Control(
            store_id=short_text(fields["store_id"], "store_id"),
            counter=whole(fields["counter"], "counter"),
            floor=whole(fields["floor"], "floor", 1),
            swept=whole(fields["swept"], "swept", 1),
            pins={
                name: Pin(whole(pin["number"], "pins", 1), short_text(pin["sha256"], "pins"))
                for name, pin in mapping(fields["pins"], "pins").items()
            },
            deleted=frozenset(
                whole(number, "deleted", 1) for number in items(fields["deleted"], "deleted")
            ),
        )
    except (FormatError, KeyError, TypeError) as error:
        raise _damaged("_control", error) from None


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
        return Seal(
            whole(fields["checkpoint_id"], "checkpoint_id", 1),
            short_text(fields["commit_nonce"], "commit_nonce"),
            whole(fields["timestamp_ms"], "timestamp_ms"),
            {
                path: base64.b64decode(data, validate=True)
                for path, data in text_map(fields["files"], "files").items()
            },
        )
    except (FormatError, KeyError, ValueError) as error:
        raise _damaged(name, error) from None


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
            whole(fields["checkpoint_id"], "checkpoint_id", 1),
            short_text(fields["commit_nonce"], "commit_nonce"),
            short_text(fields["sink"], "sink"),
            SinkCommitStatus(short_text(fields["status"], "status")),
            whole(fields["timestamp_ms"], "timestamp_ms"),
            text(fields["message"], "message"),
        )
    except (FormatError, KeyError, ValueError) as error:
        raise _damaged(name, error) from None


def _damaged(name: str, error: Exception) -> FormatError:
    """The error of a record that is not what it must be, with what is wrong as far as that is known."""
    told = error.message if isinstance(error, FormatError) else "lacks a field, or has one of another type"
    return FormatError(f"{name}: {told}")
