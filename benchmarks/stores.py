"""Each store beside its SDK called directly, for put and get.

Both sides run in this process, with four threads against the same server, in turns within each round. The
aim counts wall time or processor time, whichever is nearer: other programs disturb that less. The bare side
is a careful user's: uploads with a digest that the service verifies, downloads with one that is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from azure.storage.blob import ContainerClient
from boto3.s3.transfer import TransferConfig
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from benchmarks.frame import Settings, Side
from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.memory import MemoryStore
from tests.support.servers.launch import AzureServer, GcsServer, S3Server, launch

CONCURRENCY = 4
MIB = 1024 * 1024
PART_BYTES, LARGE_BYTES = 16 * MIB, 32 * MIB
"""From the second on the SDKs upload in parts, as our stores do by default."""

SIZES = {"10KB": (10_000, 80), "1MB": (1_000_000, 16), "100MB": (100_000_000, 1)}
"""How many bytes the objects have, and how many make a measurement."""


@dataclass(frozen=True)
class Bare:
    """Puts and gets without us; what is below ``bench/`` our store sees, and can delete."""

    put: Callable[[str, bytes], object]
    get: Callable[[str], bytes]


def bare_s3(server: S3Server) -> Bare:
    """boto3, which tries once; large bodies through its transfer manager."""
    client = server.client()
    transfer = TransferConfig(
        multipart_threshold=LARGE_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=CONCURRENCY
    )

    def put(key: str, data: bytes) -> None:
        if len(data) > LARGE_BYTES:
            client.upload_fileobj(io.BytesIO(data), server.bucket, key, Config=transfer)
        else:
            client.put_object(Bucket=server.bucket, Key=key, Body=data)

    return Bare(put, lambda key: client.get_object(Bucket=server.bucket, Key=key)["Body"].read())


def bare_gcs(server: GcsServer) -> Bare:
    """google-cloud-storage with a checksum on uploads; downloads are checked by default."""
    client: Any = storage.Client(  # type: ignore[no-untyped-call]
        project="ckpt-test",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": server.endpoint},
    )
    bucket = client.bucket(server.bucket)
    return Bare(
        lambda key, data: bucket.blob(key).upload_from_string(data, checksum="auto"),
        lambda key: bucket.blob(key).download_as_bytes(),
    )


def bare_azure(server: AzureServer) -> Bare:
    """azure-storage-blob with content validation on uploads, and the blob's MD5 compared on downloads."""
    sizes: dict[str, Any] = {"max_block_size": PART_BYTES, "max_single_put_size": LARGE_BYTES}
    address = server.options["connectionString"]
    container = ContainerClient.from_connection_string(address, server.container, **sizes)
    how: dict[str, Any] = {"overwrite": True, "validate_content": True, "max_concurrency": CONCURRENCY}

    def get(key: str) -> bytes:
        download = container.download_blob(key)
        data: bytes = download.readall()
        expected = download.properties.content_settings.content_md5
        if expected is not None:  # of blobs that went up by one request
            assert hashlib.md5(data, usedforsecurity=False).digest() == bytes(expected)
        return data

    return Bare(lambda key, data: container.upload_blob(key, data, **how), get)


def bare_disk(root: Path) -> Bare:
    """open, write, fsync, link, fsync of the directory: what a durable create takes."""
    (root / "bench").mkdir()

    def put(key: str, data: bytes) -> None:
        path = root / key
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(temporary)
        temporary.unlink()
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    return Bare(put, lambda key: (root / key).read_bytes())


BARE: dict[str, Callable[[Any], Bare]]
BARE = {"file": bare_disk, "s3": bare_s3, "gs": bare_gcs, "az": bare_azure}
Opener = Callable[[str], ObjectStore]


@contextlib.contextmanager
def open_stores(kind: str) -> Iterator[tuple[Opener, Any]]:
    """Start what a kind of store needs; what opens one at a prefix, and the server or the directory."""
    if kind == "memory":
        yield lambda prefix: MemoryStore(prefix=prefix), None
    elif kind == "file":
        with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as root:
            yield lambda prefix: open_object_store(f"{root}/{prefix}"), Path(root)
    else:
        with launch(kind) as server:
            yield lambda prefix: open_object_store(server.url(prefix), server.options, env={}), server


def measure_size(scheme: str, sides: tuple[Bare, ObjectStore], size: str, rounds: int) -> Iterator[Side]:
    """Puts and gets of one size by the bare side and by us, in alternating order."""
    size_bytes, count = SIZES[size]
    (bare, ours), data = sides, os.urandom(size_bytes)
    names: dict[str, Bare | ObjectStore] = {"bare SDK": bare, "ours": ours}
    took = {pair: list[tuple[float, float]]() for pair in product(("put", "get"), names)}

    def work(side: ObjectStore | Bare, verb: str, prefix: str) -> Callable[[int], object]:
        if verb == "put":
            return lambda at: side.put(f"{prefix}-{at}", data)
        return lambda at: check(side.get(f"{prefix}-{at}"))

    def check(found: bytes) -> None:
        assert len(found) == size_bytes

    def time_all(one: Callable[[int], object]) -> tuple[float, float]:
        """Milliseconds, and those of the processor, of each request, spread over the pool."""
        wall, cpu = time.perf_counter(), time.process_time()
        list(pool.map(one, range(count)))
        each = 1000 / count
        return (time.perf_counter() - wall) * each, (time.process_time() - cpu) * each

    with ThreadPoolExecutor(min(CONCURRENCY, count)) as pool:
        for number, verb in product(range(rounds + 1), ("put", "get")):
            for name in names if number % 2 else reversed(names):
                prefix = f"bench/bare-{number}" if names[name] is bare else f"ours-{number}"
                measured = time_all(work(names[name], verb, prefix))
                took[verb, name] += [measured] if number else []  # the first round warms both sides up
            if verb == "get":
                keys = product(("ours", "bare"), range(count))
                ours.delete([f"{side}-{number}-{at}" for side, at in keys])
    for (verb, name), found in took.items():
        wall, cpu = zip(*found, strict=True)
        values, spent = tuple(round(one, 4) for one in wall), {"cpu ms": statistics.median(cpu)}
        yield Side(f"{scheme} {verb} {size}", name, values, counts=spent)


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every store and size."""
    for scheme in settings.names("stores"):
        with open_stores(scheme) as (open_store, server):
            bare, ours = BARE[scheme](server), open_store("bench")
            for size in settings.names("sizes"):
                yield from measure_size(scheme, (bare, ours), size, settings.number("rounds"))
            ours.close()
