"""Which tables the sink encrypts and which it refuses, with and without the jar, without Spark."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.errors import FormatError, MissingKey, RefusedError
from pyspark_checkpoint.format.keys import data_key_key
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.sink_kit import Query, read_pairs, rows_from

pytestmark = pytest.mark.usefixtures("both_ways")

ROWS = [(1, 10), (2, 20)]
RING = json.dumps({"active": "one", "keys": {"one": base64.b64encode(bytes(range(32))).decode()}})


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key ring in the environment, for everything that this machine runs."""
    monkeypatch.setenv("CKPT_KEYRING", RING)


def staged(path: str) -> list[str]:
    return [info.key for info in open_object_store(path).list("checkpoints/")]


@pytest.mark.parametrize("with_jar", [True, False])
def test_a_plain_table_stays_plain_beside_a_key_ring_in_the_environment(
    path: str, with_jar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``worker_cache`` asks ``choose_cipher``: the ring is for this machine's encrypted tables."""
    Query(path, jar=with_jar, keys="").epoch(0, ROWS)
    CACHE.forget()
    monkeypatch.setenv("CKPT_KEYRING", RING)
    manifest = Query(path, jar=with_jar, keys="").epoch(1, [(3, 30)])
    assert manifest.encryption_key_id is None
    assert read_pairs(path) == [*ROWS, (3, 30)]
    assert [info.key for info in open_object_store(path).list("keys/")] == []


@pytest.mark.usefixtures("ring")
def test_a_new_table_begins_encrypted_with_a_key_ring_in_the_environment(path: str) -> None:
    """As any other history does."""
    manifest = Query(path).epoch(0, ROWS)
    assert manifest.encryption_key_id == "one"
    assert all(ref.data_key_id for ref in manifest.artifacts())
    assert read_pairs(path) == ROWS


def test_a_key_file_that_was_named_for_a_plain_table_is_refused(path: str, tmp_path: Path) -> None:
    """Who names a key expects what is written, and what is read, to be protected by it."""
    Query(path).epoch(0, ROWS)
    CACHE.forget()
    key_file = tmp_path / "ring"
    key_file.write_text(RING)
    key_file.chmod(0o600)
    before = staged(path)
    with pytest.raises(RefusedError, match="is plain, and stays plain"):
        Query(path, options={"encryptionKeyFile": str(key_file)}).epoch(1, ROWS)
    with pytest.raises(RefusedError, match="is plain, and stays plain"):
        read_pairs(path, encryptionKeyFile=str(key_file))
    assert staged(path) == before


@pytest.mark.parametrize("with_jar", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_without_its_keys_nothing_is_staged_in_an_encrypted_table(
    path: str, with_jar: bool, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused when the batch is planned, also without a claim, and before there is any manifest."""
    with monkeypatch.context() as keys:
        keys.setenv("CKPT_KEYRING", RING)
        first = Query(path)
        plan = first.plan()
        messages = first.write(plan, 0, rows_from(ROWS))
        first.commit(messages, 0)
    if not committed:
        store = open_object_store(path)
        store.delete([info.key for info in store.list("manifests/")])
        store.delete(["_latest"])
    CACHE.forget()
    before = staged(path)
    with pytest.raises(MissingKey, match="'one'"):
        Query(path, jar=with_jar).plan()
    assert staged(path) == before


@pytest.mark.usefixtures("ring")
def test_a_table_whose_manifests_key_is_gone_is_damaged_and_not_plain(path: str) -> None:
    """Nobody gets rows to be read unauthenticated by deleting one small record."""
    Query(path).epoch(0, ROWS)
    open_object_store(path).delete([data_key_key(MANIFEST_KEY_ID)])
    before = staged(path)
    for with_jar in (True, False):
        CACHE.forget()
        with pytest.raises(FormatError, match="is gone"):
            read_pairs(path)
        with pytest.raises(FormatError, match="is gone"):
            Query(path, jar=with_jar).plan()
    assert staged(path) == before
