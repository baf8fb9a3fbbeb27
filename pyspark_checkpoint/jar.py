"""Where the jar is: this package may lie in it, carry it, or be the checkout that builds it.

A checkout that is installed by pip carries the Java sources in place of a jar. ``build_jar`` compiles them
against the Spark that is installed, with nothing but a JDK, and puts the jar where ``find_jar`` looks.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark_checkpoint.errors import MissingExtra, SettingsError

BUILD_COMMAND = "ckpt jar --build"
_JAVA = 17
_DATE = (2026, 1, 1, 0, 0, 0)
"""Of every file in the jar: the same sources give the same jar."""


def find_jar(version: str, package: Path | None = None) -> Path:
    """The jar of this package's ``version``, or ``SettingsError`` that says how to get it."""
    home = _home(package)
    name = _name(version)
    if home.parent.suffix == ".jar":
        return home.parent
    places = (home / "jars" / name, home.parent / "jvm-shim" / "target" / name)
    found = [place for place in places if place.is_file()]
    if found:
        return max(found, key=lambda place: place.stat().st_mtime)
    if find_sources(home) is not None:
        raise SettingsError(
            f"{name} is not built yet", hint=f"run: {BUILD_COMMAND} (it takes seconds and needs a JDK)"
        )
    raise SettingsError(
        f"{name} is not in this installation",
        hint="install the wheel of pyspark-checkpoint, which carries it, or use --packages",
    )


def find_sources(package: Path | None = None) -> Path | None:
    """The Java sources that came with an installed checkout, or are in one; None if there are none."""
    home = _home(package)
    places = (home / "jvm", home.parent / "jvm-shim" / "src" / "main")
    return next((place for place in places if (place / "java").is_dir()), None)


def build_jar(
    version: str,
    package: Path | None = None,
    *,
    spark_jars: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> Path:
    """Compile the jar of this package's ``version`` against the Spark that is installed; return its path.

    What was built before is replaced, at once or not at all.
    """
    home = _home(package)
    sources = find_sources(home)
    if sources is None:
        raise SettingsError(
            "this installation has no Java sources to build the jar from",
            hint="install the wheel of pyspark-checkpoint, which carries it, or pip install a checkout",
        )
    compiler, spark = _find_compiler(env), spark_jars or _find_spark_jars(env)
    target = home / "jars" / _name(version)
    try:
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            classes, made = Path(scratch, "classes"), Path(scratch, target.name)
            _compile(compiler, sources, spark, classes)
            _pack(made, version, home, sources, classes)
            made.replace(target)
    except OSError as error:
        raise SettingsError(
            f"cannot write {target}: {error.strerror or type(error).__name__}",
            hint="run it as the user who installed the package",
        ) from None
    return target


def _home(package: Path | None) -> Path:
    return (package or Path(__file__).parent).resolve()


def _name(version: str) -> str:
    return f"ckpt-spark_2.13-{version}.jar"


def _find_compiler(env: Mapping[str, str]) -> str:
    home = env.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which("javac", path=env.get("PATH", ""))
    if found is None:
        raise SettingsError(
            "no Java compiler is found",
            hint=f"install a JDK, {_JAVA} or newer (apt-get install openjdk-{_JAVA}-jdk-headless, "
            f"brew install openjdk@{_JAVA}), or set JAVA_HOME to one",
        )
    return found


def _find_spark_jars(env: Mapping[str, str]) -> Path:
    spec = importlib.util.find_spec("pyspark")
    homes = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    if env.get("SPARK_HOME"):
        homes.insert(0, Path(env["SPARK_HOME"]))
    for home in homes:
        if any((home / "jars").glob("spark-sql_*.jar")):
            return home / "jars"
    raise MissingExtra(
        "the jar is compiled against Spark, which is not installed",
        hint="pip install 'pyspark-checkpoint[spark]', or set SPARK_HOME",
    )


def _compile(compiler: str, sources: Path, spark: Path, classes: Path) -> None:
    files = sorted(str(path) for path in (sources / "java").rglob("*.java"))
    options = ["--release", str(_JAVA), "-encoding", "UTF-8", "-proc:none", "-nowarn", "-Xlint:none"]
    done = subprocess.run(  # noqa: S603 - the user's own compiler, of JAVA_HOME or the PATH
        [compiler, *options, "-cp", str(spark / "*"), "-d", str(classes), *files],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error:" in line), "it did not say why")
        raise SettingsError(
            f"the jar does not compile: {said.strip()}",
            hint=f"a JDK of at least {_JAVA} and Spark 4.1 to 4.3 are needed",
        )


def _pack(target: Path, version: str, home: Path, sources: Path, classes: Path) -> None:
    """What Maven packs too: the classes, the services, and the Python package."""
    manifest = f"Manifest-Version: 1.0\r\nImplementation-Version: {version}\r\n\r\n"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "META-INF/MANIFEST.MF", manifest.encode())
        for root in (classes, sources / "resources"):
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                _add(archive, path.relative_to(root).as_posix(), path.read_bytes())
        for path in _python_files(home):
            _add(archive, f"pyspark_checkpoint/{path.relative_to(home).as_posix()}", path.read_bytes())


def _python_files(home: Path) -> Iterator[Path]:
    """The package itself, without the program that came with the Java sources as a resource of theirs."""
    yield from sorted(path for path in home.rglob("*.py") if home / "jvm" not in path.parents)
    yield home / "py.typed"


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
