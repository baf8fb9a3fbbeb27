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
        if not any((target / "jars").glob("*.jar")):
            self._add(target)

    def _add(self, target: Path) -> None:
        jar = find_fresh_jar(self.distribution.get_version())
        if jar is not None:
            (target / "jars").mkdir(exist_ok=True)
            shutil.copy2(jar, target / "jars")
        elif (ROOT / "jvm-shim" / "src" / "main").is_dir():
            shutil.copytree(ROOT / "jvm-shim" / "src" / "main", target / "jvm")


def find_fresh_jar(version: str) -> Path | None:
    """The jar of the checkout, if it is built and no source is newer."""
    jar = ROOT / "jvm-shim" / "target" / f"ckpt-spark_2.13-{version}.jar"
    if not jar.is_file():
        return None
    sources = [*(ROOT / "jvm-shim" / "src" / "main").rglob("*"), *(ROOT / PACKAGE).rglob("*.py")]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    return jar if jar.stat().st_mtime >= newest else None


setup(cmdclass={"build_py": BuildWithJar})
