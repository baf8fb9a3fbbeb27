"""What only Azure has: blocks that writers of a key share, folders that are blobs, kinds of credentials."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from azure.storage.blob import ContainerClient, ContainerSasPermissions, generate_container_sas

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import AlreadyExists, Conflict, Denied, Invalid, NotFound, Unavailable
from pyspark_checkpoint.store.azure.azure_store import AzureStore
from pyspark_checkpoint.store.settings import AzureSettings
from tests.contract.racer import run_threads
from tests.support.servers.azurite import ACCOUNT, ACCOUNT_KEY, CONTAINER
from tests.support.servers.launch import AzureServer

PART_BYTES = 100_000
SIZE_BYTES = 5 * PART_BYTES + 1


def open_store(server: AzureServer, prefix: str, **settings: object) -> AzureStore:
    """A store that puts everything over one part in blocks, and copies it through here."""
    given = {
        "connection_string": server.options["connectionString"],
        "part_size_bytes": PART_BYTES,
        **settings,
    }
    return AzureStore(
        AzureSettings(CONTAINER, prefix, **given),  # type: ignore[arg-type]
        single_put_bytes=PART_BYTES,
        sync_copy_bytes=PART_BYTES,
    )


@pytest.fixture
def prefix() -> str:
    return SYSTEM_CLOCK.uuid7()


@pytest.fixture
def store(az_server: AzureServer, prefix: str) -> Iterator[AzureStore]:
    opened = open_store(az_server, prefix, max_concurrency=1)
    yield opened
    opened.close()


class Interrupted(io.BytesIO):
    """A file that lets somebody else act just before its last part is read."""

    def __init__(self, data: bytes, act: object) -> None:
        super().__init__(data)
        self._act = act

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= SIZE_BYTES - PART_BYTES and callable(self._act):
            act, self._act = self._act, None
            act()
        return super().read(size)


def test_blocks_of_two_writers_never_mix(store: AzureStore) -> None:
    """Another put between our blocks and our commit: its bytes stay whole, and ours are not there."""
    theirs = b"b" * SIZE_BYTES
    with pytest.raises(Unavailable):
        store.put("k", Interrupted(b"a" * SIZE_BYTES, lambda: store.put("k", theirs)))
    assert store.get("k") == theirs
    with pytest.raises((AlreadyExists, Unavailable)):
        store.put("c", Interrupted(b"a" * SIZE_BYTES, lambda: store.put("c", theirs)), if_absent=True)
    assert store.get("c") == theirs


def test_of_many_creates_in_blocks_one_wins(az_server: AzureServer, prefix: str) -> None:
    """The commit of the blocks carries the condition; the object is the winner's from end to end."""
    store = open_store(az_server, prefix)
    won: list[int] = []

    def create(index: int) -> None:
        try:
            store.put("k", bytes([index]) * SIZE_BYTES, if_absent=True)
            won.append(index)
        except (AlreadyExists, Unavailable):
            return

    run_threads(create, 6)
    assert len(won) == 1
    assert store.get("k") == bytes([won[0]]) * SIZE_BYTES
    store.close()


def test_blocks_without_a_commit_are_no_object(store: AzureStore) -> None:
    """A put that fails halfway leaves nothing that any verb can see."""

    def vanish() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(Invalid):
        store.put("k", Interrupted(b"a" * SIZE_BYTES, vanish))
    with pytest.raises(NotFound):
        store.head("k")
    assert list(store.list()) == []
    store.put("k", b"b" * SIZE_BYTES, if_absent=True)
    assert store.get("k") == b"b" * SIZE_BYTES


def test_a_large_copy_goes_through_here(store: AzureStore) -> None:
    """Beyond what the service copies at once the bytes pass through, with the same condition."""
    store.put("s", bytes(range(251)) * 2000, nonce="of the source")
    version = store.copy("s", "t", if_absent=True)
    assert store.read("t").data == bytes(range(251)) * 2000
    assert store.head("t").version == version
    assert store.head("t").nonce is None
    with pytest.raises(AlreadyExists):
        store.copy("s", "t", if_absent=True)


def test_a_stream_of_a_replaced_object_is_a_conflict(store: AzureStore) -> None:
    """Every range after the first one is of the first one's version."""
    store.put("k", b"a" * 1000)
    chunks = store.stream("k", chunk_bytes=300)
    assert next(chunks) == b"a" * 300
    store.put("k", b"b" * 1000)
    with pytest.raises(Conflict):
        next(chunks)


def test_a_folder_is_no_object(az_server: AzureServer, store: AzureStore, prefix: str) -> None:
    """Hierarchical namespaces and Hadoop mark directories by empty blobs; none of them is ours."""
    with ContainerClient.from_connection_string(az_server.options["connectionString"], CONTAINER) as client:
        for name in ("dir", "dir/below"):
            client.upload_blob(f"{prefix}/{name}", b"", metadata={"hdi_isfolder": "true"})
    store.put("dir/below/k", b"x")
    assert [info.key for info in store.list()] == ["dir/below/k"]
    for look in (store.head, store.get, store.read, lambda key: list(store.stream(key))):
        with pytest.raises(NotFound):
            look("dir")


def test_a_key_and_a_sas_open_the_store(az_server: AzureServer, prefix: str) -> None:
    """Account key and shared access signature do all verbs; without permission it is Denied."""
    endpoint = f"{az_server.endpoint}/{ACCOUNT}"
    expiry = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() // 1000 + 600, UTC)

    def signed(permission: ContainerSasPermissions) -> str:
        return generate_container_sas(
            ACCOUNT, CONTAINER, account_key=ACCOUNT_KEY, permission=permission, expiry=expiry
        )

    everything = signed(ContainerSasPermissions(read=True, write=True, delete=True, list=True, create=True))
    for credential in ({"account_key": ACCOUNT_KEY}, {"sas_token": f"?{everything}"}):
        store = open_store(
            az_server,
            f"{prefix}/{next(iter(credential))}",
            connection_string=None,
            account_name=ACCOUNT,
            endpoint=endpoint,
            **credential,
        )
        store.put("k", b"x", if_absent=True)
        store.copy("k", "l", if_absent=True)
        assert [info.key for info in store.list()] == ["k", "l"]
        store.delete(["k", "l", *(f"m{index}" for index in range(10))])
        assert list(store.list()) == []
        assert "sig=" not in store.url
        store.close()
    reading = signed(ContainerSasPermissions(read=True, list=True))
    store = open_store(
        az_server,
        prefix,
        connection_string=None,
        account_name=ACCOUNT,
        endpoint=endpoint,
        sas_token=reading,
    )
    with pytest.raises(Denied) as caught:
        store.put("k", b"x")
    assert "sig=" not in str(caught.value)
    store.close()
