"""Objects that were staged and are given up: the only ones that can go before their number is taken.

A run that begins a capture again has staged objects that no manifest can come to name, and their number
may stay free for as long as captures fail. Only the run knows that: it has sent no manifest that names
them, and sends none. It says so in a record beside them; ``orphans`` collects what such records name.
Nobody else may say it: an upload that looks abandoned may belong to a writer that sleeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import decode_record, encode_record
from pyspark_checkpoint.format.keys import (
    CheckpointId,
    CheckpointPaths,
    check_artifact_path,
    parse_attempt_key,
    parse_given_up_key,
)
from pyspark_checkpoint.history.manifest_reader import find_record
from pyspark_checkpoint.history.staging import put_artifact
from pyspark_checkpoint.store.base import ObjectStore

MAX_PATHS = 20_000
"""In one record; more of them go into several."""


def give_up(store: ObjectStore, number: int, paths: Sequence[str], clock: Clock) -> None:
    """Say that no manifest names, or will ever name, these objects, which the caller staged for ``number``.

    Never for objects of a manifest that was sent: an answer that was lost proves nothing.
    """
    for start in range(0, len(paths), MAX_PATHS):
        key = CheckpointPaths.given_up(CheckpointId(number, clock.uuid7()))
        put_artifact(store, key, _encode(number, paths[start : start + MAX_PATHS]), clock)


def read_given_up(store: ObjectStore, keys: Iterable[str], *, above: int) -> Mapping[str, frozenset[str]]:
    """What the records among ``keys`` name, by record, if it was staged for a number above ``above``.

    A record that is damaged names nothing: what it named stays until its number is taken.
    """
    return dict(_read_each(store, keys, above))


def _read_each(store: ObjectStore, keys: Iterable[str], above: int) -> Iterator[tuple[str, frozenset[str]]]:
    for key in keys:
        number = parse_given_up_key(key)
        if number is None or number <= above:
            continue
        data = find_record(store, key)
        if data is not None:
            try:
                yield key, _decode(data, key, number)
            except FormatError:
                continue


def _encode(number: int, paths: Sequence[str]) -> bytes:
    return encode_record({"checkpoint_id": number, "paths": list(paths)})


def _decode(data: bytes, key: str, number: int) -> frozenset[str]:
    fields = decode_record(data, key)
    paths = fields.get("paths")
    if fields.get("checkpoint_id") != number or not isinstance(paths, list):
        raise FormatError(f"{key} lacks a field, or has one of another type")
    found = frozenset(check_artifact_path(path) for path in paths if isinstance(path, str))
    if any(parsed[0].number != number for path in found if (parsed := parse_attempt_key(path)) is not None):
        raise FormatError(f"{key} names objects of another number")
    return found
