"""Real S3 servers: SeaweedFS, which keeps conditions, and rclone, which ignores them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import botocore.exceptions

from tests.support.servers.process import (
    GRPC_OFFSET,
    LOOPBACK,
    ServerError,
    ServerProcess,
    accepts,
    running,
)

ACCESS_KEY = "ckpt-test-key"
SECRET_KEY = "ckpt-test-secret"
READER_ACCESS_KEY = "ckpt-reader-key"
READER_SECRET_KEY = "ckpt-reader-secret"
REGION = "us-east-1"
BUCKET = "ckpt-test"
START_SECONDS = 90.0
REMOTE = "bench"
"""How the server is called in what rclone is told."""


class S3Server:
    """A running S3 server with one bucket."""

    def __init__(self, name: str, port: int, pid: int) -> None:
        self.name = name
        self.port = port
        self.pid = pid
        self.bucket = BUCKET
        self.endpoint = f"http://{LOOPBACK}:{port}"
        self.options = self.options_at(self.endpoint)

    def options_at(self, endpoint: str) -> dict[str, str]:
        """Store options for this server behind another endpoint, such as a proxy's."""
        return {
            "endpoint": endpoint,
            "region": REGION,
            "accessKey": ACCESS_KEY,
            "secretKey": SECRET_KEY,
            "pathStyleAccess": "true",
        }

    @property
    def reader_options(self) -> dict[str, str]:
        """Credentials that may read and list, and nothing else (SeaweedFS only)."""
        return {**self.options, "accessKey": READER_ACCESS_KEY, "secretKey": READER_SECRET_KEY}

    def url(self, prefix: str = "") -> str:
        """The URL of ``prefix`` in the bucket."""
        return f"s3://{self.bucket}/{prefix}".rstrip("/")

    def create_bucket(self, name: str) -> None:
        """Make a bucket."""
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()

    def client(self, endpoint: str | None = None) -> Any:
        """A plain boto3 client, for looking at the server behind the store's back."""
        return boto3.client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=botocore.config.Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                connect_timeout=5,
                read_timeout=30,
            ),
        )


def binary(name: str) -> str:
    """The path of a program that a Python package brought into this environment."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ServerError(f"{name} is not in {path.parent}: run `make setup`")
    return str(path)


def run_rclone(
    endpoint: str, *arguments: str, transfers: int = 4, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run rclone, as people copy directories with it; ``REMOTE:bucket/path`` is on the S3 server there."""
    remote = {"ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY, "REGION": REGION}
    remote |= {"TYPE": "s3", "PROVIDER": "Other", "FORCE_PATH_STYLE": "true", "NO_CHECK_BUCKET": "true"}
    remote["ENDPOINT"] = endpoint
    environment = {f"RCLONE_CONFIG_{REMOTE.upper()}_{name}": value for name, value in remote.items()}
    command = [binary("rclone"), "--config", os.devnull, "--transfers", str(transfers), *arguments]
    environment = {**os.environ, **environment}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    if check and done.returncode != 0:
        raise ServerError(done.stderr[-500:])
    return done


@contextlib.contextmanager
def seaweedfs() -> Iterator[S3Server]:
    """A SeaweedFS with master, volume, filer and S3 in one process."""
    with running("seaweedfs", _seaweedfs_argv, ports=4, with_grpc=True) as (process, ports):
        server = S3Server("seaweedfs", ports[3], process.pid)
        try:
            _wait_for_bucket(process, server)
            yield server
        finally:
            for port in ports:  # sockets that it puts there whatever its options say
                for socket in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + GRPC_OFFSET}.sock"):
                    socket.unlink(missing_ok=True)


def _seaweedfs_argv(home: Path, ports: Sequence[int]) -> list[str]:
    master, volume, filer, s3 = ports
    config = home / "s3.json"
    config.write_text(json.dumps(_identities()))
    data = home / "data"
    data.mkdir()
    return [
        binary("weed"),
        "-logtostderr=true",
        "server",
        f"-dir={data}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
        f"-master.port={master}",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={volume}",
        "-volume.max=100",
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={filer}",
        f"-filer.localSocket={home / 'filer.sock'}",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.config={config}",
        f"-s3.localSocket={home / 's3.sock'}",
        "-s3.autoCreateBucket=false",  # Amazon does not either
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]


def _identities() -> dict[str, Any]:
    def identity(name: str, access_key: str, secret_key: str, actions: list[str]) -> dict[str, Any]:
        credentials = [{"accessKey": access_key, "secretKey": secret_key}]
        return {"name": name, "credentials": credentials, "actions": actions}

    return {
        "identities": [
            identity("admin", ACCESS_KEY, SECRET_KEY, ["Admin", "Read", "List", "Tagging", "Write"]),
            identity("reader", READER_ACCESS_KEY, READER_SECRET_KEY, ["Read", "List"]),
        ]
    }


@contextlib.contextmanager
def rclone_s3() -> Iterator[S3Server]:
    """An S3 server that ignores If-None-Match and If-Match without a word."""

    def argv(home: Path, ports: Sequence[int]) -> list[str]:
        data = home / "data"
        data.mkdir()
        return [
            binary("rclone"),
            "serve",
            "s3",
            str(data),
            f"--addr={LOOPBACK}:{ports[0]}",
            f"--auth-key={ACCESS_KEY},{SECRET_KEY}",
            f"--config={home / 'rclone.conf'}",
            f"--cache-dir={home / 'cache'}",
            "--vfs-cache-mode=off",
        ]

    with running("rclone", argv) as (process, ports):
        server = S3Server("rclone", ports[0], process.pid)
        _wait_for_bucket(process, server)
        yield server


def _wait_for_bucket(process: ServerProcess, server: S3Server) -> None:
    """Wait for the port, then until a bucket can be made and an object written into it."""
    process.wait_ready(lambda: accepts(server.port), START_SECONDS)
    client = server.client()

    def writable() -> bool:
        try:
            client.create_bucket(Bucket=server.bucket)
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
                return False
        except botocore.exceptions.BotoCoreError:
            return False
        try:
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"ready")
            client.delete_object(Bucket=server.bucket, Key="ready")
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
            return False
        return True

    try:
        process.wait_ready(writable, START_SECONDS)
    finally:
        client.close()
