"""What setup.cfg cannot say: an installed checkout has the jar, or the sources to build it from.

``make wheel`` puts the jar into the package first. A plain ``pip install .`` starts no compiler and fetches
nothing for it: it takes along the jar that ``make jar`` has built, if no source is newer, and otherwise the
Java sources, of which ``ckpt jar --build`` makes the jar.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE = "pyspark_checkpoint"


class BuildWithJar(build_py):
    """The package, and beside it what brings the jar."""

    def run(self) -> None:
        """Build as ever, then add it. An editable installation finds both in the checkout."""
        if self.editable_mode:
            super().run()
            return
        target = Path(self.build_lib).resolve() / PACKAGE
        if target != ROOT / PACKAGE:
            for left_over in ("jars", "jvm"):
                shutil.rmtree(target / left_over, ignore_errors=True)
        super().run()
        if target != ROOT / PACKAGE:
            self._drop_useless(target)
        if not any((target / "jars").glob("*.jar")):
            self._add(target)

    def _drop_useless(self, target: Path) -> None:
        """Leave out what a tree had in the package's own ``jars``, of another version or older sources."""
        version = self.distribution.get_version()
        for jar in list((target / "jars").glob("*.jar")):
            if jar.name != jar_name(version) or not is_fresh(jar):
                jar.unlink()

    def _add(self, target: Path) -> None:
        jar = find_fresh_jar(self.distribution.get_version())
        if jar is not None:
            (target / "jars").mkdir(exist_ok=True)
            shutil.copy2(jar, target / "jars")
        elif (ROOT / "jvm-shim" / "src" / "main").is_dir():
            shutil.copytree(ROOT / "jvm-shim" / "src" / "main", target / "jvm")


def jar_name(version: str) -> str:
    """The name that the installed package looks for."""
    return f"ckpt-spark_2.13-{version}.jar"


def find_fresh_jar(version: str) -> Path | None:
    """The jar of the checkout, if it is built and no source is newer."""
    jar = ROOT / "jvm-shim" / "target" / jar_name(version)
    return jar if jar.is_file() and is_fresh(jar) else None


def is_fresh(jar: Path) -> bool:
    """Whether no source is newer."""
    sources = [*(ROOT / "jvm-shim" / "src" / "main").rglob("*"), *(ROOT / PACKAGE).rglob("*.py")]
    return jar.stat().st_mtime >= max(path.stat().st_mtime for path in sources if path.is_file())


setup(cmdclass={"build_py": BuildWithJar})
