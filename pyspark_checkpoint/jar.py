"""Where the jar is: this package may lie in it, carry it, or be the checkout that builds it."""

from __future__ import annotations

from pathlib import Path

from pyspark_checkpoint.errors import SettingsError


def find_jar(version: str, package: Path | None = None) -> Path:
    """The jar of this package's ``version``, or ``SettingsError`` that says how to get it."""
    home = (package or Path(__file__).parent).resolve()
    name = f"ckpt-spark_2.13-{version}.jar"
    if home.parent.suffix == ".jar":
        return home.parent
    for candidate in (home / "jars" / name, home.parent / "jvm-shim" / "target" / name):
        if candidate.is_file():
            return candidate
    if (home.parent / "jvm-shim" / "pom.xml").is_file():
        raise SettingsError(f"{name} is not built yet", hint="run make jar in the checkout")
    raise SettingsError(
        f"{name} is not in this installation",
        hint="install the wheel of pyspark-checkpoint, which carries it, or use --packages",
    )
