"""A store as a pure function, for searches that go back: objects and a call give objects and an answer.

Versions are digests of the content, as ETags are, so that nothing is hidden from a test of ABA.
``test_shelf.py`` holds it against ``MemoryStore``.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_checkpoint.store.base import ObjectInfo, Stored, Version
from pyspark_checkpoint.testing.manual_clock import START_MS
from tests.protocol.simulation.port import Answer, Op
from tests.protocol.simulation.truth import digest_of

OK_DELETE = Answer()
NOT_FOUND = Answer(error="NotFound")


def version_of(data: bytes) -> Version:
    """The version of an object with this content."""
    return Version(digest_of(data)[:16])


def apply_op(objects: Mapping[str, bytes], op: Op) -> tuple[Mapping[str, bytes], Answer]:
    """Return what is there afterwards (the same mapping if nothing changed) and the answer."""
    current = objects.get(op.key)
    match op.verb:
        case "put":
            return _put(objects, op.key, current, op.data, op)
        case "copy":
            source = objects.get(op.source)
            return (objects, NOT_FOUND) if source is None else _put(objects, op.key, current, source, op)
        case "delete":
            if current is None:
                return objects, OK_DELETE
            return {key: data for key, data in objects.items() if key != op.key}, OK_DELETE
        case "list":
            return objects, Answer(_list(objects, op))
    if current is None:
        return objects, NOT_FOUND
    if op.verb == "read":
        return objects, Answer(Stored(current, version_of(current)))
    if op.verb == "head":
        return objects, Answer(ObjectInfo(op.key, len(current), version_of(current), START_MS))
    return objects, Answer(current[op.start : op.end])


def _put(
    objects: Mapping[str, bytes], key: str, current: bytes | None, data: bytes, op: Op
) -> tuple[Mapping[str, bytes], Answer]:
    if op.if_absent and current is not None:
        return objects, Answer(error="AlreadyExists")
    if op.if_match is not None and (current is None or version_of(current).token != op.if_match):
        return objects, Answer(error="Conflict")
    answer = Answer(version_of(data))
    return (objects, answer) if current == data else ({**objects, key: data}, answer)


def _list(objects: Mapping[str, bytes], op: Op) -> tuple[ObjectInfo, ...]:
    after = op.after or ""
    names = sorted(key for key in objects if key.startswith(op.key) and key > after)
    return tuple(
        ObjectInfo(key, len(objects[key]), version_of(objects[key]), START_MS) for key in names[: op.limit]
    )
