"""Each store beside its SDK called directly: requests/s and MB/s for put and get, and the ratio.

Both sides run in this process, with the same threads against the same server, in turns within each round.
The ratio is ours over bare, as the median over the rounds: 1.00 is no cost, and the aim is at least 0.90.
``cpu`` is the same for processor time, which other programs disturb less than wall time. The bare side is
a careful user's: uploads with a digest that the service verifies, downloads with one that is compared.

    python -m benchmarks.bench_stores [--backends file,s3,gs,az] [--sizes 10KB,1MB,100MB] [--rounds 15]
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

from benchmarks.frame import typed_arguments
from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.store.base import ObjectStore
from tests.support.servers.azurite import AzureServer
from tests.support.servers.gcs import GcsServer
from tests.support.servers.launch import azurite, fake_gcs, seaweedfs
from tests.support.servers.s3 import S3Server

AIM = 0.90
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
"""What some requests took together: seconds, and seconds of the processor."""


def measure(work: Callable[[int], object], size: Size, pool: ThreadPoolExecutor) -> Took:
    """Time ``work(0..count-1)`` spread over the pool."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in pool.map(work, range(size.count)):
        pass
    return time.perf_counter() - wall, time.process_time() - cpu


def run_size(ours: ObjectStore, bare: Bare, size: Size, rounds: int) -> dict[str, list[tuple[Took, Took]]]:
    """Puts and gets of one size by us and by the bare side, in alternating order."""
    data = os.urandom(size.size_bytes)
    took: dict[str, list[tuple[Took, Took]]] = {"put": [], "get": []}

    def work(side: ObjectStore | Bare, verb: str, prefix: str) -> Callable[[int], object]:
        if verb == "put":
            return lambda at: side.put(f"{prefix}-{at}", data)
        return lambda at: _check(side.get(f"{prefix}-{at}"), size)

    with ThreadPoolExecutor(size.threads) as pool:
        for number, verb in product(range(rounds + 1), took):
            one = work(ours, verb, f"ours-{number}")
            two = work(bare, verb, f"{bare.prefix}bare-{number}")
            found = [measure(side, size, pool) for side in ((one, two) if number % 2 else (two, one))]
            if number:  # the first round warms both sides up
                took[verb].append((found[0], found[1]) if number % 2 else (found[1], found[0]))
            if verb == "get":
                ours.delete(
                    [f"{side}-{number}-{at}" for side in ("ours", "bare") for at in range(size.count)]
                )
    return took


def _check(data: bytes, size: Size) -> None:
    assert len(data) == size.size_bytes


def line(scheme: str, verb: str, size: Size, pairs: list[tuple[Took, Took]]) -> tuple[str, bool]:
    """One line of the table, and whether it reaches the aim."""
    speeds = [size.count / statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
    ratio, cpu_ratio = (statistics.median(bare[i] / ours[i] for ours, bare in pairs) for i in (0, 1))
    reached = max(ratio, cpu_ratio) >= AIM
    ours, bare = (f"{speed:9.1f} {speed * size.size_bytes / 1e6:8.1f}" for speed in speeds)
    mark = "" if reached else "  below the aim"
    name = f"{scheme:5} {verb:4} {size.name:>6}"
    return f"{name} {ours}   {bare}   {ratio:5.2f} {cpu_ratio:5.2f}{mark}", reached


def main() -> None:
    chosen = typed_arguments(__doc__, backends="file,s3,gs,az", sizes="10KB,1MB,100MB", rounds=15)
    reached: list[bool] = []
    print(f"{'':17} {'ours':>9} {'':8}   {'bare SDK':>9} {'':8}   ours/bare")
    print(
        f"store verb   size {'req/s':>9} {'MB/s':>8}   {'req/s':>9} {'MB/s':>8}    wall   cpu", flush=True
    )
    for scheme in chosen.backends.split(","):
        with opened(scheme) as (ours, bare):
            for size in (size for size in SIZES if size.name in chosen.sizes.split(",")):
                for verb, pairs in run_size(ours, bare, size, chosen.rounds).items():
                    text, good = line(scheme, verb, size, pairs)
                    reached.append(good)
                    print(text, flush=True)
            ours.close()
    print(
        f"\n{CONCURRENCY} threads (100MB: one object at a time), median of {chosen.rounds} rounds; ", end=""
    )
    print(f"{sum(reached)} of {len(reached)} at least {AIM:.2f} of the bare SDK")


if __name__ == "__main__":
    main()
