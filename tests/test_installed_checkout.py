"""Which jar an installation of a checkout takes along, whatever was left in the tree. Builds no jar."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
JAR = "ckpt-spark_2.13-0.1.0.jar"
OLD, SOURCES, NEW = 1_000_000_000, 1_100_000_000, 1_200_000_000
"""Seconds since 1970 of a stale jar, of all sources, and of a fresh jar."""


def put(path: Path, seconds: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    os.utime(path, (seconds, seconds))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small one, with the project's own setup.py."""
    home = tmp_path / "checkout"
    put(home / "pyspark_checkpoint" / "__init__.py", SOURCES)
    put(home / "jvm-shim" / "src" / "main" / "java" / "Plugin.java", SOURCES)
    shutil.copy2(ROOT / "setup.py", home)
    (home / "setup.cfg").write_text(
        "[metadata]\nname = small\nversion = 0.1.0\n[options]\npackages = pyspark_checkpoint\n"
        "[options.package_data]\npyspark_checkpoint =\n    jars/*.jar\n"
    )
    return home


def installed(checkout: Path) -> list[str]:
    """The files that an installation would have, but for the package itself."""
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", "out"]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    home = checkout / "out" / "pyspark_checkpoint"
    files = [path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()]
    return sorted(name for name in files if name != "__init__.py")


@pytest.mark.process
def test_a_jar_that_was_put_into_the_package_is_installed(checkout: Path) -> None:
    """As ``make wheel`` does it."""
    put(checkout / "pyspark_checkpoint" / "jars" / JAR, NEW)
    assert installed(checkout) == [f"jars/{JAR}"]


@pytest.mark.process
def test_a_stale_jar_in_the_package_gives_way_to_the_fresh_one_of_the_checkout(checkout: Path) -> None:
    """An interrupted ``make wheel`` leaves one behind."""
    put(checkout / "pyspark_checkpoint" / "jars" / JAR, OLD)
    put(checkout / "jvm-shim" / "target" / JAR, NEW)
    assert installed(checkout) == [f"jars/{JAR}"]
    taken = checkout / "out" / "pyspark_checkpoint" / "jars" / JAR
    assert taken.stat().st_mtime == NEW


@pytest.mark.process
def test_a_stale_jar_in_the_package_gives_way_to_the_sources(checkout: Path) -> None:
    """Nothing fresh is built; the tree itself is left as it is."""
    put(checkout / "pyspark_checkpoint" / "jars" / JAR, OLD)
    assert installed(checkout) == ["jvm/java/Plugin.java"]
    assert (checkout / "pyspark_checkpoint" / "jars" / JAR).is_file()


@pytest.mark.process
def test_a_jar_of_another_version_is_not_installed(checkout: Path) -> None:
    """Nothing would find it, and it would stand in the way of the right one."""
    put(checkout / "pyspark_checkpoint" / "jars" / "ckpt-spark_2.13-0.0.9.jar", NEW)
    assert installed(checkout) == ["jvm/java/Plugin.java"]
    put(checkout / "pyspark_checkpoint" / "jars" / JAR, NEW)
    assert installed(checkout) == [f"jars/{JAR}"]
