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

import boto3
from azure.storage.blob import ContainerClient
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from benchmarks.frame import Argument, Part, Settings, Side
from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.store.base import ObjectStore
from tests.support.servers.azurite import AzureServer
from tests.support.servers.gcs import GcsServer
from tests.support.servers.launch import azurite, fake_gcs, seaweedfs
from tests.support.servers.s3 import S3Server

CONCURRENCY = 4
MIB = 1024 * 1024
PART_BYTES, LARGE_BYTES = 16 * MIB, 32 * MIB
"""From the second on the SDKs upload in parts, as our stores do by default."""


@dataclass(frozen=True)
class Size:
    """How large the objects are, how many make a measurement, and by how many threads."""

    name: str
    size_bytes: int
    count: int
    threads: int


SIZES = (
    Size("10KB", 10_000, 80, CONCURRENCY),
    Size("1MB", 1_000_000, 16, CONCURRENCY),
    Size("100MB", 100_000_000, 1, 1),
)


@dataclass(frozen=True)
class Bare:
    """Puts and gets without us; with ``prefix`` before a key our store sees, and can delete, the object."""

    put: Callable[[str, bytes], object]
    get: Callable[[str], bytes]
    prefix: str = "bench/"


def bare_s3(server: S3Server) -> Bare:
    """boto3 with its own defaults; large bodies through its transfer manager."""
    client: Any = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=server.options["region"],
        aws_access_key_id=server.options["accessKey"],
        aws_secret_access_key=server.options["secretKey"],
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=32),
    )
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
    container = ContainerClient.from_connection_string(
        server.options["connectionString"],
        server.container,
        max_block_size=PART_BYTES,
        max_single_put_size=LARGE_BYTES,
    )
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
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    return Bare(put, lambda key: (root / key).read_bytes(), "")


@contextlib.contextmanager
def opened(scheme: str) -> Iterator[tuple[ObjectStore, Bare]]:
    """Start what the scheme needs, and open it both ways."""
    if scheme == "file":
        with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as root:
            yield open_object_store(root), bare_disk(Path(root))
    elif scheme == "s3":
        with seaweedfs() as s3:
            yield open_object_store(s3.url("bench"), s3.options, env={}), bare_s3(s3)
    elif scheme == "gs":
        with fake_gcs() as gs:
            yield open_object_store(gs.url("bench"), gs.options, env={}), bare_gcs(gs)
    else:
        with azurite() as az:
            yield open_object_store(az.url("bench"), az.options, env={}), bare_azure(az)


Took = tuple[float, float]
"""What a request took: milliseconds, and milliseconds of the processor."""


def measure(work: Callable[[int], object], size: Size, pool: ThreadPoolExecutor) -> Took:
    """Time ``work(0..count-1)`` spread over the pool."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in pool.map(work, range(size.count)):
        pass
    each = 1000 / size.count
    return (time.perf_counter() - wall) * each, (time.process_time() - cpu) * each


def measure_size(scheme: str, sides: tuple[Bare, ObjectStore], size: Size, rounds: int) -> Iterator[Side]:
    """Puts and gets of one size by the bare side and by us, in alternating order."""
    (bare, ours), data = sides, os.urandom(size.size_bytes)
    names: dict[str, Bare | ObjectStore] = {"bare SDK": bare, "ours": ours}
    took: dict[tuple[str, str], list[Took]] = {pair: [] for pair in product(("put", "get"), names)}

    def work(side: ObjectStore | Bare, verb: str, prefix: str) -> Callable[[int], object]:
        if verb == "put":
            return lambda at: side.put(f"{prefix}-{at}", data)
        return lambda at: _check(side.get(f"{prefix}-{at}"), size)

    with ThreadPoolExecutor(size.threads) as pool:
        for number, verb in product(range(rounds + 1), ("put", "get")):
            for name in names if number % 2 else reversed(names):
                prefix = f"{bare.prefix}bare-{number}" if names[name] is bare else f"ours-{number}"
                measured = measure(work(names[name], verb, prefix), size, pool)
                took[verb, name] += [measured] if number else []  # the first round warms both sides up
            if verb == "get":
                keys = product(("ours", "bare"), range(size.count))
                ours.delete([f"{side}-{number}-{at}" for side, at in keys])
    for (verb, name), found in took.items():
        wall, cpu = zip(*found, strict=True)
        values, spent = tuple(round(one, 4) for one in wall), {"cpu ms": statistics.median(cpu)}
        yield Side(f"{scheme} {verb} {size.name}", name, values, counts=spent)


def _check(data: bytes, size: Size) -> None:
    assert len(data) == size.size_bytes


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every store and size."""
    for scheme in settings.names("stores"):
        with opened(scheme) as (ours, bare):
            for size in (size for size in SIZES if size.name in settings.names("sizes")):
                yield from measure_size(scheme, (bare, ours), size, settings.number("rounds"))
            ours.close()


PART = Part(
    "stores",
    __doc__,
    measure_all,
    (
        Argument("stores", "file,s3,gs,az", "file,s3", "file, s3, gs, az"),
        Argument("sizes", "10KB,1MB,100MB", "10KB,1MB", "10KB, 1MB, 100MB"),
        Argument("rounds", "5", "2", "rounds"),
    ),
)
