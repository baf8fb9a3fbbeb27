"""rclone, as people copy checkpoint directories with it today."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass

from tests.support.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, binary

REMOTE = "bench"
"""What comes before the bucket: ``bench:bucket/path``."""


@dataclass(frozen=True)
class Done:
    """What a call did."""

    seconds: float
    exit_code: int
    message: str


def rclone(endpoint: str, *arguments: str, transfers: int = 4) -> Done:
    """Run rclone with a remote that reaches the S3 server at ``endpoint``."""
    prefix = f"RCLONE_CONFIG_{REMOTE.upper()}_"
    remote = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": endpoint,
        "ACCESS_KEY_ID": ACCESS_KEY,
        "SECRET_ACCESS_KEY": SECRET_KEY,
        "REGION": REGION,
        "FORCE_PATH_STYLE": "true",
        "NO_CHECK_BUCKET": "true",
    }
    environment = {**os.environ, **{prefix + name: value for name, value in remote.items()}}
    began = time.monotonic()
    done = subprocess.run(
        [binary("rclone"), "--config", os.devnull, "--transfers", str(transfers), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    return Done(time.monotonic() - began, done.returncode, done.stderr[-500:])
