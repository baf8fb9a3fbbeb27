"""The class path that all modules have: one process has one JVM, whichever of them begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.hadoop import s3a_jars


@pytest.fixture(scope="session")
def class_path(jar: Path) -> tuple[Path, ...]:
    """Our file manager and Hadoop's connector for S3, which a module's confs may choose."""
    return (jar, *s3a_jars())
