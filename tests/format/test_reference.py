"""``docs/format.md`` names every field and every constant that the golden stores have."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from pyspark_checkpoint.crypto import aead as crypto
from pyspark_checkpoint.format import keys, pack, records
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.listener.health import HealthRecord, put_health
from pyspark_checkpoint.outputs.idempotent import LineageStart, encode_lineages
from pyspark_checkpoint.registry.queries import QueryRoot, register
from pyspark_checkpoint.restorer.lock import RestoreMark
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.spark_files.names import LINEAGE
from pyspark_checkpoint.store.memory import MemoryStore
from tests.golden.make_golden import make_store

REFERENCE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
NAMED = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", REFERENCE, flags=re.DOTALL)))
GOLDEN = make_store(encrypted=True)


@pytest.mark.parametrize("key", sorted(key for key in GOLDEN if not key.startswith("checkpoints/")))
def test_every_stored_field_is_in_the_reference(key: str) -> None:
    """A field that is added to the format must be added to the page."""
    assert [name for name in orjson.loads(GOLDEN[key]) if name not in NAMED] == []


MANIFEST = orjson.loads(GOLDEN[keys.manifest_key(3)])
SECTION = REFERENCE[REFERENCE.index("## Manifest") : REFERENCE.index("**Artifact row**")]
ROWS = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", SECTION, flags=re.MULTILINE)


def test_every_field_of_a_manifest_has_one_row_of_the_reference() -> None:
    """Each once, and none that is not stored."""
    listed = [name for row in ROWS for name in re.findall(r"`(\w+)`", row)]
    of_table = [name for name in MANIFEST["table"] if name not in MANIFEST]
    stored = {*MANIFEST, *MANIFEST["table"]} - {"mac", "self_sha256"}
    assert set(listed) == stored
    for name in {*stored} - {"vnodes"}:
        assert listed.count(name) == 1, name
    assert listed.count("vnodes") == 2, "of a manifest, and of a table"
    assert of_table


@pytest.mark.parametrize("part", ["query", "sinks", "state", "planned", "requests"])
def test_every_field_of_a_part_is_in_the_reference(part: str) -> None:
    """Parts are records of their own."""
    value = MANIFEST[part]
    assert value, "the golden store has one"
    fields = value[0] if isinstance(value, list) else value
    assert [name for name in fields if f"`{name}`" not in SECTION] == []


def test_every_field_of_what_is_beside_stores_is_in_the_reference() -> None:
    """Below the URL that queries share, and in a checkpoint location."""
    shared = MemoryStore("reference")
    register(shared, QueryRoot("clicks", "q-1", "app", 1))
    put_health(shared, HealthRecord("q-1", "denied", 1))
    found = [orjson.loads(shared.read(info.key).data) for info in shared.list("")]
    lineages = orjson.loads(encode_lineages([LineageStart(1, "token")]))
    found += [lineages, lineages["lineages"][0], orjson.loads(RestoreMark("digest", "q-1", 1).encode())]
    named = {name for fields in found for name in fields}
    assert len(found) == 6
    assert sorted(named - NAMED - {"self_sha256"}) == []
    assert {LINEAGE, RESTORE_MARKER} <= NAMED


def test_every_field_of_a_packs_index_is_in_the_reference() -> None:
    """The index is JSON too."""
    data = next(data for key, data in GOLDEN.items() if key.endswith(pack.PACK_SUFFIX))
    index = data[len(data) - pack.pack_tail_bytes("x", data) : -pack.FOOTER_BYTES]
    assert [name for name in orjson.loads(index) if name not in NAMED] == []


def test_every_kind_status_and_constant_is_in_the_reference() -> None:
    """Words and numbers of the page are those of the code."""
    words = {kind.value for kind in ManifestKind} | {"committed", "failed"}
    words |= {crypto.ARTIFACT_MAGIC.decode(), pack.PACK_MAGIC.decode(), pack.PACK_END_MAGIC.decode()}
    words |= {crypto.MANIFEST_KEY_ID, keys.CONTROL_KEY, keys.LATEST_KEY}
    assert words - NAMED == set()
    assert f"log2 of the segment size, {crypto.SEGMENT_LOG2}" in REFERENCE
    assert f"1 to {keys.MAX_NAME_BYTES} bytes" in REFERENCE
    assert (
        f"at most {pack.MAX_INLINE_BYTES} bytes each and {pack.MAX_INLINE_TOTAL_BYTES >> 10} KiB"
        in REFERENCE
    )
    assert f"up to {pack.PACK_TARGET_BYTES >> 20} MiB" in REFERENCE
    assert f"artifacts of {pack.MIN_ALONE_BYTES >> 20} MiB and more" in REFERENCE
    assert records.SinkCommitStatus.PENDING.value in REFERENCE
