"""A mini HDFS on loopback: Hadoop's own name node and data node in one JVM, from one file of Java."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers.hadoop import ROOT
from tests.support.servers.process import LOOPBACK, running

JARS = ROOT / ".tools" / "ecosystem" / "hdfs-jars"
START_SECONDS = 120.0
_OPENED = ("java.base/java.lang", "java.base/java.util", "java.base/java.util.concurrent")


@dataclass(frozen=True)
class HdfsServer:
    """An HDFS that runs."""

    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        """The file system's URL."""
        return f"hdfs://{LOOPBACK}:{self.port}"


@contextlib.contextmanager
def mini_hdfs() -> Iterator[HdfsServer]:
    """Run name node and data node; they and their data are gone at the end, however that comes."""
    homes = list[Path]()

    def argv(home: Path, ports: Sequence[int]) -> Sequence[str]:
        homes.append(home)
        source = Path(__file__).with_name("MiniHdfs.java")
        opened = [word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        return ["java", "-Xmx512m", *opened, "-cp", f"{JARS}/*", str(source), str(home), str(ports[0])]

    with running("hdfs", argv) as (process, ports):
        process.wait_ready((homes[0] / "ready").exists, START_SECONDS)
        yield HdfsServer(ports[0], process.pid)
