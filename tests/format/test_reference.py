"""``docs/format.md`` names every field and every constant that the golden stores have."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from pyspark_checkpoint.crypto import aead as crypto
from pyspark_checkpoint.format import keys, pack, records
from pyspark_checkpoint.format.manifest import ManifestKind
from tests.golden.make_golden import make_store

REFERENCE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
NAMED = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", REFERENCE, flags=re.DOTALL)))
GOLDEN = make_store(encrypted=True)


@pytest.mark.parametrize("key", sorted(key for key in GOLDEN if not key.startswith("checkpoints/")))
def test_every_stored_field_is_in_the_reference(key: str) -> None:
    """A field that is added to the format must be added to the page."""
    assert [name for name in orjson.loads(GOLDEN[key]) if name not in NAMED] == []


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
