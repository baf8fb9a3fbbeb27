"""What a JVM needs to reach the S3 test servers through Hadoop's S3A connector: jars and confs."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.servers.process import ServerError
from tests.support.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY

ROOT = Path(__file__).resolve().parents[3]
JAR = ROOT / "jvm-shim" / "target" / "ckpt-spark_2.13-0.1.0.jar"
TEST_JAR = ROOT / "jvm-shim" / "target" / "ckpt-spark_2.13-0.1.0-tests.jar"
FILE_MANAGER = "io.github.pysparkcheckpoint.ObjectStoreCheckpointFileManager"
FETCH_SECONDS = 900

# The versions that each Hadoop release was built with.
_HADOOP = {
    "3.5.0": {"awssdk.version": "2.35.4", "accelerator.version": "1.3.1"},
    "3.4.2": {"awssdk.version": "2.29.52", "accelerator.version": "1.2.1"},
}


CLOUD_HADOOP = "3.5.0"


def s3a_jars(hadoop_version: str = "3.5.0") -> list[Path]:
    """The connector and what it needs beside Spark's jars; fetched once, then kept in ``.tools``."""
    return _jars(f"s3a-{hadoop_version}", hadoop_version, profiles=())


def hadoop_cloud_jars() -> list[Path]:
    """The same with Spark's own manager for object stores, for comparisons."""
    return _jars(f"s3a-{CLOUD_HADOOP}-cloud", CLOUD_HADOOP, profiles=("cloud",))


def connector_version() -> str:
    """The connector of ``hadoop_cloud_jars``, and the SDK that it was built with."""
    return f"{CLOUD_HADOOP}, AWS SDK {_HADOOP[CLOUD_HADOOP]['awssdk.version']}"


def build_jar(copies: Path | None = None) -> Path:
    """Build the jar of ``jvm-shim`` if a source is newer than it, and return its path.

    With ``copies`` it is the path of a copy in that directory, with the jar of the test helpers beside
    it: a JVM that runs from it does not see the next build.
    """
    tools = ROOT / ".tools"
    tools.mkdir(exist_ok=True)
    with (tools / "jar.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [ROOT / "jvm-shim" / "pom.xml", *(ROOT / "jvm-shim" / "src").rglob("*")]
        sources += (ROOT / "pyspark_checkpoint").rglob("*.py")  # the jar carries them
        newest = max(path.stat().st_mtime for path in sources if path.is_file())
        if not JAR.exists() or not TEST_JAR.exists() or JAR.stat().st_mtime < newest:
            run_maven(["-f", str(ROOT / "jvm-shim" / "pom.xml"), "clean", "package"])
        if copies is None:
            return JAR
        copies.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TEST_JAR, copies)
        return Path(shutil.copy2(JAR, copies))


def run_maven(arguments: list[str]) -> None:
    """Run Maven and fail with its own words."""
    done = subprocess.run(
        [str(ROOT / "tools" / "mvn.sh"), "-q", "-B", *arguments],
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise ServerError(f"mvn {' '.join(arguments)} failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")


def s3a_conf(endpoint: str, *, bucket: str | None = None) -> dict[str, str]:
    """Hadoop confs for a test server: for all buckets, or for one that has an endpoint of its own."""
    prefix = "fs.s3a." if bucket is None else f"fs.s3a.bucket.{bucket}."
    values: Mapping[str, str] = {
        "endpoint": endpoint,
        "endpoint.region": REGION,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": ACCESS_KEY,
        "secret.key": SECRET_KEY,
    }
    return {prefix + name: value for name, value in values.items()}


def spark_conf(endpoint: str, *, file_manager: str | None = FILE_MANAGER) -> dict[str, str]:
    """Spark confs for checkpoint locations on a test server; ``None`` is Spark's own manager."""
    conf = {f"spark.hadoop.{name}": value for name, value in s3a_conf(endpoint).items()}
    if file_manager is not None:
        conf["spark.sql.streaming.checkpointFileManagerClass"] = file_manager
    return conf


def _jars(name: str, hadoop_version: str, profiles: tuple[str, ...]) -> list[Path]:
    target = ROOT / ".tools" / "jars" / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=name, dir=target.parent))
        try:
            properties = {"hadoop.version": hadoop_version, **_HADOOP[hadoop_version]}
            run_maven(
                [
                    "-f",
                    str(Path(__file__).with_name("s3a-jars.xml")),
                    *(f"-P{profile}" for profile in profiles),
                    *(f"-D{key}={value}" for key, value in properties.items()),
                    f"-DoutputDirectory={work}",
                    "dependency:copy-dependencies",
                ]
            )
            if not target.exists():
                work.replace(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return sorted(target.glob("*.jar"))
