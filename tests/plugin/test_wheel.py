"""``pip install`` of the wheel alone is enough for a program in Python: it carries the jar."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.lab import bare_python, epoch, write_input
from tests.plugin.test_configure_session import run_sessions
from tests.servers.hadoop import ROOT, build_jar

pytestmark = pytest.mark.spark


def build_wheel(home: Path) -> Path:
    """Build the wheel as ``make wheel`` does, from a copy of the sources."""
    source = home / "source"
    shutil.copytree(
        ROOT / "pyspark_checkpoint",
        source / "pyspark_checkpoint",
        ignore=shutil.ignore_patterns("__pycache__", "jars"),
    )
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    (source / "pyspark_checkpoint" / "jars").mkdir()
    shutil.copy2(build_jar(), source / "pyspark_checkpoint" / "jars")
    pip(["wheel", "--no-deps", "--wheel-dir", str(home / "dist"), str(source)])
    (wheel,) = (home / "dist").glob("*.whl")
    return wheel


def pip(arguments: list[str]) -> None:
    """Run pip, and fail with its own words."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(600)
def test_a_session_of_the_installed_wheel_is_checkpointed(home: Path) -> None:
    """In an environment that has nothing else of this project; the command prints where the jar is."""
    python = bare_python(home / "python")
    (site,) = (home / "python" / "lib").glob("python3*/site-packages")
    pip(["install", "--no-deps", "--no-index", "--target", str(site), str(build_wheel(home))])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}
    printed = subprocess.run(
        [str(python), "-m", "pyspark_checkpoint", "jar"],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()
    assert Path(printed).parent == site / "pyspark_checkpoint" / "jars" and Path(printed).is_file()
    write_input(home, 2)
    steps = [{"configure": {"url": str(home / "store")}, "queries": ["totals"]}]
    run_sessions(str(python), home, steps, env)
    assert epoch(home) == 1
