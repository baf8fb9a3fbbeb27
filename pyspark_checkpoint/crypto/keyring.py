"""Master keys: what a user keeps, several at once, one of them active. They never leave the driver.

A key ring is text, in either of two forms. Lines, the active key being the last unless said::

    # comment
    2025-01 = pZlm...base64 of 32 bytes...=
    2026-01 = 3kAq...=
    active = 2026-01

or JSON: ``{"active": "2026-01", "keys": {"2025-01": "...", "2026-01": "..."}}``.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import orjson

from pyspark_checkpoint.errors import MissingKey, RefusedError, SettingsError

KEY_BYTES = 32
KEY_FILE_OPTION = "encryptionKeyFile"
KEY_FILE_VARIABLE = "CKPT_KEY_FILE"
KEY_RING_VARIABLE = "CKPT_KEYRING"
KEY_RING_HINT = f"give {KEY_FILE_OPTION}, or set {KEY_FILE_VARIABLE} or {KEY_RING_VARIABLE}"
_LOG = logging.getLogger(__name__)
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HINT = "write `key_id = <base64 of 32 random bytes>`, one key a line"


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A key that wraps data keys. Its secret is in no repr."""

    key_id: str
    secret: bytes = field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise RefusedError(
            f"master key {self.key_id!r} does not leave this process",
            hint="tasks get data keys: StoreCipher.task_cipher",
        )


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Master keys by id; the active one wraps new data keys, all of them unwrap old ones."""

    active_id: str
    keys: Mapping[str, MasterKey] = field(repr=False)

    @property
    def active(self) -> MasterKey:
        """The key that wraps what is written from now on."""
        return self.keys[self.active_id]

    def find(self, key_id: str) -> MasterKey:
        """The key of this id, or ``MissingKey`` that names it."""
        key = self.keys.get(key_id)
        if key is None:
            raise MissingKey(
                key_id,
                f"master key {key_id!r} is not in the key ring, which has {', '.join(sorted(self.keys))}",
                hint="keep old keys in the ring until `ckpt rekey` has rewrapped every data key",
            )
        return key

    def __repr__(self) -> str:
        return f"KeyRing(active_id={self.active_id!r}, key_ids={sorted(self.keys)!r})"


def make_key_ring(keys: Mapping[str, bytes], active_id: str) -> KeyRing:
    """Return a key ring of raw keys after checking each of them."""
    ring = {
        key_id: MasterKey(_check_id(key_id), _check_secret(key_id, raw)) for key_id, raw in keys.items()
    }
    if not ring:
        raise SettingsError("the key ring has no key", hint=_HINT)
    if active_id not in ring:
        raise SettingsError(f"the active key {active_id!r} is not in the key ring", hint=_HINT)
    return KeyRing(active_id, ring)


def parse_key_ring(text: str) -> KeyRing:
    """Read a key ring in either form. An error says which line or key id is wrong, never its content."""
    return _parse_json(text) if text.lstrip().startswith("{") else _parse_lines(text)


def load_key_ring(path: str | os.PathLike[str]) -> KeyRing:
    """Read a key ring file. Warns when others on the machine can read it; never shows its content."""
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot read the key file {file}: {type(error).__name__}", hint="check the path and its owner"
        ) from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        _LOG.warning("key file %s can be read by others on this machine; run: chmod 600 %s", file, file)
    return parse_key_ring(text)


def find_key_ring(
    key_file: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> KeyRing | None:
    """Return the key ring of the named file, else of CKPT_KEY_FILE, else of CKPT_KEYRING, else None."""
    variables = os.environ if environ is None else environ
    path = key_file or variables.get(KEY_FILE_VARIABLE)
    if path:
        return load_key_ring(path)
    text = variables.get(KEY_RING_VARIABLE)
    return parse_key_ring(text) if text else None


def _parse_json(text: str) -> KeyRing:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise SettingsError("the key ring is not JSON", hint=_HINT) from None
    keys = fields.get("keys")
    if set(fields) - {"keys", "active"} or not isinstance(keys, dict):
        raise SettingsError("a key ring in JSON has the members keys and active", hint=_HINT)
    active = fields.get("active") or (next(iter(keys)) if len(keys) == 1 else None)
    if not isinstance(active, str):
        raise SettingsError("the key ring does not say which key is active", hint=_HINT)
    return make_key_ring({key_id: _decode(key_id, value) for key_id, value in keys.items()}, active)


def _parse_lines(text: str) -> KeyRing:
    keys: dict[str, bytes] = {}
    active, last = "", ""
    for name, value in _assignments(re.split(r"[\n,]", text)):
        if name == "active":
            active = value
        elif name in keys:
            raise SettingsError(f"key {name!r} is in the key ring twice", hint=_HINT)
        else:
            keys[name] = _decode(name, value)
            last = name
    return make_key_ring(keys, active or last)


def _assignments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            raise SettingsError(f"line {number} of the key ring is not `key_id = base64`", hint=_HINT)
        yield name.strip(), value.strip()


def _decode(key_id: str, value: object) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise SettingsError(f"key {_shown(key_id)} of the key ring is not base64", hint=_HINT) from None


def _check_id(key_id: str) -> str:
    if _KEY_ID.fullmatch(key_id) is None or key_id == "active":
        raise SettingsError(
            f"{_shown(key_id)} is not a key id",
            hint="1 to 64 of letters, digits, dot, dash, underscore",
        )
    return key_id


def _shown(key_id: str) -> str:
    """A key id for an error, unless it may be a key that stands in the wrong place."""
    return repr(key_id) if _KEY_ID.fullmatch(key_id) and len(key_id) <= 40 else "(not shown)"


def _check_secret(key_id: str, secret: bytes) -> bytes:
    if len(secret) != KEY_BYTES:
        raise SettingsError(f"key {key_id!r} has {len(secret)} bytes, not {KEY_BYTES}", hint=_HINT)
    return secret
