"""``pip install`` of the wheel is enough for a program in Python; of a checkout, with one step more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyspark_checkpoint import __version__
from tests.integration.plugin.lab import bare_python, epoch, write_input
from tests.integration.plugin.test_configure_session import run_sessions
from tests.support.servers.hadoop import ROOT, build_jar

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


def copy_checkout(home: Path) -> Path:
    """The sources as a user has them who has built nothing."""
    source = home / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "jars", "target", "test")
    for name in ("pyspark_checkpoint", "jvm-shim"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("setup.cfg", "setup.py", "MANIFEST.in", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    return source


def names_in_wheel(source: Path, home: Path) -> list[str]:
    """What ``pip install`` of a checkout would install."""
    pip(["wheel", "--no-deps", "--wheel-dir", str(home), str(source)])
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.timeout(600)
def test_a_checkout_takes_its_jar_along_unless_it_is_stale(tmp_path: Path) -> None:
    """A jar of other sources is none; the Java sources come instead.."""
    source = copy_checkout(tmp_path)
    jar = source / "jvm-shim" / "target" / f"ckpt-spark_2.13-{__version__}.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"jar")
    taken = "pyspark_checkpoint/jars/" + jar.name
    java = "pyspark_checkpoint/jvm/java/io/github/pysparkcheckpoint/CheckpointPlugin.java"
    fresh = names_in_wheel(source, tmp_path / "fresh")
    assert taken in fresh
    assert java not in fresh
    os.utime(jar, (1, 1))
    stale = names_in_wheel(source, tmp_path / "stale")
    assert taken not in stale
    assert java in stale


@pytest.mark.timeout(600)
def test_an_installed_checkout_gets_its_jar_by_one_command(home: Path) -> None:
    """``configure`` names it, and afterwards a session is checkpointed as with the wheel."""
    python = bare_python(home / "python")
    (site,) = (home / "python" / "lib").glob("python3*/site-packages")
    pip(["install", "--no-deps", "--target", str(site), str(copy_checkout(home))])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), *arguments],
            cwd=home,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    code = "from pyspark.sql import SparkSession as S; import pyspark_checkpoint as p; "
    refused = run("-c", code + "p.configure(S.builder, url='/x')")
    assert "is not built yet (run: ckpt jar --build" in refused.stderr
    built = run("-m", "pyspark_checkpoint", "jar", "--build")
    assert built.returncode == 0, built.stderr
    assert Path(built.stdout.strip()).parent == site / "pyspark_checkpoint" / "jars"
    write_input(home, 2)
    steps = [{"configure": {"url": str(home / "store")}, "queries": ["totals"]}]
    run_sessions(str(python), home, steps, env)
    assert epoch(home) == 1
