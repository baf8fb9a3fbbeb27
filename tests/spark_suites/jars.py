"""Spark's tests and what they need, fetched once into ``.tools``; our classes, compiled for each run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers.hadoop import ROOT, run_maven, s3a_jars
from tests.support.servers.process import ServerError

SPARK_VERSION = "4.1.3"
HADOOP_VERSION = "3.4.2"
HERE = Path(__file__).parent

# Where Spark's sources keep what each test jar carries: some tests look there, from spark.test.home.
_RESOURCES = {"sql": "sql/core", "catalyst": "sql/catalyst", "core": "core"}
# Spark's build has none of these beside these tests. Hive's jar serves file: with a class that never
# renames onto a file that exists.
_HIVE = ("hive-exec", "spark-hive")


@dataclass(frozen=True)
class SparkTests:
    """Where everything is that a JVM needs to run suites."""

    test_jars: Path
    test_home: Path
    spark_home: Path
    python: Path
    s3a: tuple[Path, ...]
    classes: Path

    def class_path(self, conf: Path, jar: Path) -> str:
        """Ours first, then the resources as files, because tests open them as such."""
        resources = [self.test_home / folder / "src/test/resources" for folder in _RESOURCES.values()]
        spark = [path for path in self.spark_home.glob("jars/*.jar") if not path.name.startswith(_HIVE)]
        entries = [self.classes, conf, *resources, *sorted(self.test_jars.glob("*.jar")), jar]
        return os.pathsep.join(str(entry) for entry in [*entries, *self.s3a, *sorted(spark)])


def prepare(classes: Path, jar: Path) -> SparkTests:
    """Fetch what is not there, and compile our classes into ``classes``."""
    subprocess.run([ROOT / "tools" / "setup_spark_oldest.sh"], check=True, timeout=1800)
    environment = ROOT / ".tools" / "spark-4.1"
    (spark_home,) = (environment / "lib").glob("python3*/site-packages/pyspark")
    fetched = ROOT / ".tools" / "jars" / f"spark-suites-{SPARK_VERSION}"
    if not fetched.exists():
        _fetch(fetched)
    tests = SparkTests(
        test_jars=fetched / "jars",
        test_home=fetched / "home",
        spark_home=spark_home,
        python=environment / "bin" / "python",
        s3a=tuple(s3a_jars(HADOOP_VERSION)),
        classes=classes,
    )
    _compile(tests, jar)
    return tests


def _fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=target.name, dir=target.parent))
    try:
        jars = work / "jars"
        run_maven(
            [
                "-f",
                str(HERE / "jars.xml"),
                f"-Dspark.version={SPARK_VERSION}",
                f"-DoutputDirectory={jars}",
                "dependency:copy-dependencies",
            ]
        )
        for module, folder in _RESOURCES.items():
            with zipfile.ZipFile(jars / f"spark-{module}_2.13-{SPARK_VERSION}-tests.jar") as archive:
                names = [name for name in archive.namelist() if not name.endswith(".class")]
                archive.extractall(work / "home" / folder / "src/test/resources", names)
        if not target.exists():
            work.replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(tests: SparkTests, jar: Path) -> None:
    tests.classes.mkdir(parents=True)
    home = os.environ.get("JAVA_HOME")
    javac = str(Path(home) / "bin" / "javac") if home else "javac"
    sources = [str(path) for path in sorted((HERE / "java").rglob("*.java"))]
    lint = "-Xlint:all,-classfile,-processing,-path,-serial"
    command = [
        javac,
        lint,
        "-Werror",
        "-d",
        str(tests.classes),
        "-cp",
        tests.class_path(tests.classes, jar),
    ]
    done = subprocess.run([*command, *sources], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise ServerError(f"javac failed:\n{done.stdout}{done.stderr}")
