"""What a store says may be anybody's: a field that holds something else is damage, and never coerced."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import encode_sealed
from pyspark_checkpoint.format.fields import MAX_NAME_LETTERS
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.manifest_codec import decode_manifest, manifest_fields
from pyspark_checkpoint.format.summary import decode_summary
from pyspark_checkpoint.history.overview import decode_entry
from tests.golden.make_golden import make_store

STRANGE: list[Any] = [
    None,
    True,
    -1,
    1.5,
    2**63,
    "",
    "x",
    "é" * (MAX_NAME_LETTERS + 1),
    [],
    [1],
    {},
    {"a": 1},
]
Path = tuple[str | int, ...]


def golden_fields() -> dict[str, Any]:
    """A manifest that has every part."""
    fields: dict[str, Any] = orjson.loads(make_store(encrypted=False)[manifest_key(3)])
    del fields["self_sha256"]
    return fields


FIELDS = golden_fields()


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a stored value, but the rows of artifacts, which have tests of their own."""
    if path:
        yield path
    if path[:1] in (("operators",), ("files",)):
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from places(inner, (*path, at))


def changed(path: Path, value: Any) -> dict[str, Any]:
    """The fields with something else at a place."""
    fields = copy.deepcopy(FIELDS)
    inner: Any = fields
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return fields


def strange(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Fields and their bytes, once with each strange value at a place that JSON as we write it can hold."""
    for value in STRANGE:
        fields = changed(path, value)
        try:
            data = encode_sealed(fields)
        except TypeError:
            continue
        yield fields, data


@pytest.mark.parametrize("path", list(places(FIELDS)), ids=lambda path: ".".join(map(str, path)))
def test_a_strange_value_is_damage_or_what_was_stored(path: Path) -> None:
    """Nothing is turned into what it should have been, and no other error comes out."""
    for fields, data in strange(path):
        try:
            manifest = decode_manifest(data, "m")
        except FormatError as error:
            assert error.hint, error.message
            continue
        assert manifest_fields(manifest) == fields


@pytest.mark.parametrize("path", list(places(FIELDS)), ids=lambda path: ".".join(map(str, path)))
def test_a_summary_of_strange_values_is_damage_or_a_summary(path: Path) -> None:
    """It reads fewer fields, and is as careful with them."""
    for _, data in strange(path):
        try:
            summary = decode_summary(data, "m")
        except FormatError:
            continue
        assert type(summary.number) is type(summary.epoch) is type(summary.generation) is int
        assert type(summary.run_id) is type(summary.attempt) is str


@pytest.mark.parametrize("path", list(places(FIELDS)), ids=lambda path: ".".join(map(str, path)))
def test_an_entry_of_strange_values_is_damage_or_can_be_shown(path: Path) -> None:
    """One manifest of anybody's must not end a listing or a page of all the others."""
    for _, data in strange(path):
        try:
            entry = decode_entry(data, FIELDS["checkpoint_id"])
        except FormatError:
            continue
        numbers = (entry.requests.puts, entry.requests.gets, entry.requests.bytes, entry.new_bytes)
        assert {type(number) for number in numbers} == {int}
        assert {type(text) for text in (entry.query.id, entry.query.name, entry.run_id)} == {str}


@pytest.mark.parametrize("part", ["", "query", "table", "state", "planned", "requests", "sinks"])
def test_a_field_too_many_or_too_few_is_damage(part: str) -> None:
    """A later version says so in its first field; within one version nothing is added."""
    for name in (*_part(FIELDS, part), "added"):
        fields = copy.deepcopy(FIELDS)
        inner = _part(fields, part)
        if name == "added":
            inner[name] = 1
        else:
            del inner[name]
        with pytest.raises(FormatError):
            decode_manifest(encode_sealed(fields), "m")


def _part(fields: dict[str, Any], part: str) -> dict[str, Any]:
    found = fields[part] if part else fields
    return found[0] if isinstance(found, list) else found


@pytest.mark.parametrize("change", [{"added": 1}, {"total_bytes": 1}, {"total_bytes": "1"}, {"kind": 1}])
def test_an_operator_that_is_not_what_was_written_is_damage(change: dict[str, Any]) -> None:
    fields = copy.deepcopy(FIELDS)
    fields["operators"]["table"] |= change
    with pytest.raises(FormatError):
        decode_manifest(encode_sealed(fields), "m")


def test_a_merged_manifest_is_read() -> None:
    """The kind is reserved for the merged history of a table's shares."""
    merged = decode_manifest(encode_sealed(changed(("kind",), "merge")), "m")
    assert merged.kind is ManifestKind.MERGE
    assert (merged.share, merged.assignment_version) == ("west", 4)
