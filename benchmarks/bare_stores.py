"""Each service called directly through its SDK, as a careful user would: what our layer is held against.

Careful means with the checks that our stores make too: a digest that the service verifies on uploads,
and one that is compared after downloads. boto3 and google-cloud-storage do both by default.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any, Protocol

import boto3
from azure.storage.blob import ContainerClient
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.support.servers.azurite import AzureServer
from tests.support.servers.gcs import GcsServer
from tests.support.servers.s3 import S3Server

MIB = 1024 * 1024
PART_BYTES = 16 * MIB
LARGE_BYTES = 32 * MIB
"""From here on the SDKs upload in parts, as our stores do by default."""


class Bare(Protocol):
    """Puts and gets without us."""

    def put(self, key: str, data: bytes) -> None:
        """Store ``data`` durably, or as durably as the service does."""

    def get(self, key: str) -> bytes:
        """Return the whole object."""


class BareS3:
    """boto3 with its own defaults; large bodies through its transfer manager."""

    def __init__(self, server: S3Server, concurrency: int) -> None:
        self._bucket = server.bucket
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            region_name=server.options["region"],
            aws_access_key_id=server.options["accessKey"],
            aws_secret_access_key=server.options["secretKey"],
            config=Config(s3={"addressing_style": "path"}, max_pool_connections=32),
        )
        self._transfer = TransferConfig(
            multipart_threshold=LARGE_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=concurrency
        )

    def put(self, key: str, data: bytes) -> None:
        if len(data) > LARGE_BYTES:
            self._client.upload_fileobj(io.BytesIO(data), self._bucket, key, Config=self._transfer)
        else:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return body


class BareGcs:
    """google-cloud-storage with a checksum on uploads; downloads are checked by default."""

    def __init__(self, server: GcsServer) -> None:
        client: Any = storage.Client(  # type: ignore[no-untyped-call]
            project="ckpt-test",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": server.endpoint},
        )
        self._bucket = client.bucket(server.bucket)

    def put(self, key: str, data: bytes) -> None:
        self._bucket.blob(key).upload_from_string(data, checksum="auto")

    def get(self, key: str) -> bytes:
        data: bytes = self._bucket.blob(key).download_as_bytes()
        return data


class BareAzure:
    """azure-storage-blob with content validation on uploads, and the blob's MD5 compared on downloads."""

    def __init__(self, server: AzureServer, concurrency: int) -> None:
        self._concurrency = concurrency
        self._container = ContainerClient.from_connection_string(
            server.options["connectionString"],
            server.container,
            max_block_size=PART_BYTES,
            max_single_put_size=LARGE_BYTES,
        )

    def put(self, key: str, data: bytes) -> None:
        self._container.upload_blob(
            key, data, overwrite=True, validate_content=True, max_concurrency=self._concurrency
        )

    def get(self, key: str) -> bytes:
        download = self._container.download_blob(key)
        data: bytes = download.readall()
        expected = download.properties.content_settings.content_md5
        if expected is not None:  # of blobs that went up by one request
            assert hashlib.md5(data, usedforsecurity=False).digest() == bytes(expected)
        return data


class BareDisk:
    """open, write, fsync, link, fsync of the directory: what a durable create takes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, data: bytes) -> None:
        path = self._root / key
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

    def get(self, key: str) -> bytes:
        return (self._root / key).read_bytes()
