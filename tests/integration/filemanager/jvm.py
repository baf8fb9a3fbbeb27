"""A small JVM with Spark's classes and our jar, but without a Spark application, driven by py4j."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from tests.support.servers.hadoop import TEST_JAR

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_PACKAGE = "io.github.pysparkcheckpoint"


def class_path(jar: Path, connector_jars: Sequence[Path]) -> str:
    """The class path of a JVM that has what a Spark driver has, and the test helpers."""
    own = [jar, jar.with_name(TEST_JAR.name), Path(__file__).parent]
    return os.pathsep.join([f"{SPARK_JARS}/*", *map(str, own), *map(str, connector_jars)])


class Jvm:
    """The JVM's file managers, in Python's terms."""

    def __init__(self, gateway: JavaGateway, conf: Mapping[str, str]) -> None:
        self._view = gateway.jvm
        self.confs = dict(conf)
        self.access = getattr(gateway.jvm, f"{_PACKAGE}.filemanager.TestAccess")

    def python_problem(self, executable: str) -> str:
        """What keeps the data source from running with a Python; empty if nothing does."""
        environment = getattr(self._view, f"{_PACKAGE}.python.PythonEnvironment")
        try:
            environment.of(executable, "")
        except Py4JJavaError as error:
            return str(error.java_exception.getMessage())
        return ""

    def conf(self, extra: Mapping[str, str] | None = None) -> Any:
        """A Hadoop configuration with the confs of this JVM and ``extra``."""
        conf = self._view.org.apache.hadoop.conf.Configuration()
        for name, value in {**self.confs, **(extra or {})}.items():
            conf.set(name, value)
        return conf

    def path(self, text: str) -> Any:
        """A Hadoop path."""
        return self._view.org.apache.hadoop.fs.Path(text)

    def manager(self, root: str, extra: Mapping[str, str] | None = None) -> Manager:
        """Our manager for ``root``."""
        java = getattr(self._view, f"{_PACKAGE}.ObjectStoreCheckpointFileManager")
        return Manager(self, root, java(self.path(root), self.conf(extra)))

    def write_with_checksums(self, path: str, content: bytes) -> None:
        """Write a file as Hadoop's local file system does, with its checksums beside it."""
        stream = self._view.org.apache.hadoop.fs.FileSystem.getLocal(self.conf()).create(self.path(path))
        stream.write(bytearray(content))
        stream.close()

    def spark_manager(self, root: str, extra: Mapping[str, str] | None = None) -> Manager:
        """The manager that Spark takes without our conf."""
        names = self._view.org.apache.spark.sql.execution.streaming.checkpointing
        return Manager(self, root, names.CheckpointFileManager.create(self.path(root), self.conf(extra)))


class Manager:
    """A checkpoint file manager whose paths are texts below its root."""

    def __init__(self, jvm: Jvm, root: str, java: Any) -> None:
        self.root = root
        self.java = java
        self._jvm = jvm

    def path(self, name: str) -> Any:
        """The path of ``name`` below the root; the root itself for an empty name."""
        return self._jvm.path(f"{self.root}/{name}" if name else self.root)

    def create(self, name: str, *, overwrite: bool = False) -> Any:
        """The stream of a new file."""
        return self.java.createAtomic(self.path(name), overwrite)

    def write(self, name: str, content: bytes, *, overwrite: bool = False) -> None:
        """Write a file as Spark does: close, or cancel if that fails."""
        stream = self.create(name, overwrite=overwrite)
        try:
            stream.write(bytearray(content))
            stream.close()
        except Py4JJavaError:
            stream.cancel()
            raise

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        stream = self.java.open(self.path(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def names(self, name: str = "") -> list[str]:
        """The names of what is listed in a directory, in the order of the answer."""
        return [status.getPath().getName() for status in self.java.list(self.path(name))]

    def exists(self, name: str) -> bool:
        """Whether there is a file or a directory."""
        return bool(self.java.exists(self.path(name)))

    def mkdirs(self, name: str) -> None:
        """Make a directory."""
        self.java.mkdirs(self.path(name))

    def delete(self, name: str) -> None:
        """Delete a file or a directory."""
        self.java.delete(self.path(name))


def java_error(error: Py4JJavaError) -> str:
    """The class name of the Java exception."""
    return str(error.java_exception.getClass().getName())


@contextlib.contextmanager
def running_jvm(
    jar: Path, connector_jars: Sequence[Path], conf: Mapping[str, str], log: Path
) -> Iterator[Jvm]:
    """Start a JVM, and end it with the block."""
    with log.open("wb") as output:
        (py4j_jar,) = SPARK_JARS.glob("py4j-*.jar")
        port, process = launch_gateway(
            jarpath=str(py4j_jar),
            classpath=class_path(jar, connector_jars),
            javaopts=["-Xmx512m"],
            die_on_exit=True,
            redirect_stdout=subprocess.DEVNULL,
            redirect_stderr=output,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        try:
            yield Jvm(gateway, conf)
        finally:
            gateway.shutdown()
            process.stdin.close()
            process.kill()
            process.wait(timeout=10)
