"""The one module that reaches into the JVM (py4j): what Python's streaming API does not say of a query."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    Denied,
    InUse,
    NotFound,
    OutcomeUnknown,
    RefusedError,
    StaleAttempt,
    StoreError,
    Unavailable,
    Unsupported,
)

_STOP_SECONDS = 60.0
_HADOOP = ("fs.", "google.")
_DOOR = "io.github.pysparkcheckpoint.plugin.SideDoor"
_NO_ICEBERG_TABLE = (
    "NoSuchTableException",
    "NoSuchNamespaceException",
    "CatalogNotFoundException",
    "AnalysisException",  # the first part of the name is no catalog of the session
    "IllegalArgumentException",  # the table is of another format
)
_MAIN, _FOR_EVER_MS = "main", (1 << 63) - 1
_CONNECT = "pyspark.sql.connect."
_CLASSIC_HINT = "use Spark 4.1 to 4.3 with a classic session; under Connect, the plugin on the server"


def check_classic(spark: SparkSession) -> None:
    """Refuse a session of Spark Connect: its queries run in a JVM that this process cannot reach."""
    if any(kind.__module__.startswith(_CONNECT) for kind in type(spark).__mro__):
        raise Unsupported(
            "queries of a Spark Connect session cannot be checkpointed from the client",
            hint="use the plugin on the Connect server: start it with spark.plugins and spark.ckpt.url "
            "(docs/plugin.md)",
        )


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """What the JVM knows of a query that is starting or running."""

    checkpoint_location: str
    output_mode: str
    sink: str
    is_micro_batch: bool
    iceberg_location: str = ""


def find_running_query(spark: SparkSession, query_id: str) -> RunningQuery | None:
    """What the JVM says of the query ``query_id``; None if it is not running any more."""
    try:
        execution = _execution(spark, query_id)
        if execution is None:
            return None
        return RunningQuery(
            checkpoint_location=str(execution.resolvedCheckpointRoot()),
            output_mode=str(execution.outputMode().toString()),
            sink=str(execution.sink().toString()),
            is_micro_batch=execution.getClass().getSimpleName() == "MicroBatchExecution",
            iceberg_location=_iceberg_location(execution.sink()),
        )
    except Py4JError as error:
        text = "this Spark does not say where a query's checkpoint location is"
        raise Unsupported(text, hint=_CLASSIC_HINT) from error


def _iceberg_location(sink: Any) -> str:
    """Where the table of a sink lies, if it is one of Iceberg: it describes itself by its name alone."""
    if not str(sink.getClass().getName()).startswith("org.apache.iceberg.spark."):
        return ""
    try:
        return str(sink.table().location())
    except Py4JError:
        return ""


def stop_query(spark: SparkSession, query_id: str) -> None:
    """Stop a query that is running; one that is not is left alone."""
    query = spark.streams.get(query_id)
    if query is not None:
        query.stop()


def stop_starting_query(spark: SparkSession, query_id: str, clock: Clock) -> bool:
    """Stop a query that waits for our callback at its start, and wait until no batch of it can run.

    Spark marks a query as terminated first and waits for its thread afterwards; the thread looks at the
    mark before its first batch, so that the callback may return as soon as the mark is there.
    """
    execution = _execution(spark, query_id)
    if execution is None:
        return True
    threading.Thread(target=_stop, args=(execution,), name="ckpt-stop", daemon=True).start()
    deadline = clock.monotonic_seconds() + _STOP_SECONDS
    while execution.isActive() and clock.monotonic_seconds() < deadline:
        clock.sleep(0.01)
    return not execution.isActive()


def _stop(execution: Any) -> None:
    with contextlib.suppress(Py4JError):
        execution.stop()


class Progressed(Protocol):
    """Who wants to hear of a query's progress, as JSON, and of its idleness."""

    def heard_progress(self, text: str) -> None:
        """``text`` is the progress as Spark writes it."""

    def heard_idle(self, run_id: str) -> None:
        """A run had nothing to do."""


class LightListener(JStreamingQueryListener):
    """PySpark's own bridge for listeners asks the JVM a hundred questions for each batch; this one, two."""

    def __init__(self, listener: Any) -> None:
        """``listener`` is a ``StreamingQueryListener`` that is ``Progressed`` too."""
        super().__init__(listener)
        self._progressed: Progressed = listener

    def onQueryProgress(self, jevent: Any) -> None:
        """Spark's callback."""
        self._progressed.heard_progress(str(jevent.progress().json()))

    def onQueryIdle(self, jevent: Any) -> None:
        """Spark's callback."""
        self._progressed.heard_idle(str(jevent.runId().toString()))


def java_listener(spark: SparkSession, listener: Any) -> Any:
    """What the JVM calls, for ``spark.streams.addListener``."""
    jvm: Any = spark._jvm
    return jvm.PythonStreamingQueryListenerWrapper(LightListener(listener))


def remove_listener(spark: SparkSession, bridge: Any) -> None:
    """Let the JVM call a ``java_listener`` no more, if it does, and if there still is a JVM."""
    with contextlib.suppress(Py4JError):
        spark._jsparkSession.streams().removeListener(bridge)


def hadoop_settings(spark: SparkSession) -> dict[str, str]:
    """How Spark itself reaches object stores: what a checkpoint location on one is read with.

    The settings of the session: confs of the application, what a program has set on the session or on the
    context's own Hadoop configuration, and Hadoop's files. Hadoop's and Spark's defaults are left out,
    since the stores have their own, and what Spark read from the environment, since they read that.
    """
    jvm: Any = spark._jvm
    try:
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        text = jvm.java.io.StringWriter()
        jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(conf, text)
        # Secrets are crossed out in what is dumped, and some values are not spelled out.
        names = [entry["key"] for entry in json.loads(text.toString())["properties"] if _is_chosen(entry)]
        values = {name: conf.get(name) for name in names}
    except Py4JError as error:
        text = "this Spark does not say how it reaches its file systems"
        raise Unsupported(text, hint=_CLASSIC_HINT) from error
    return {f"spark.hadoop.{name}": str(value) for name, value in values.items() if value is not None}


def _is_chosen(entry: Mapping[str, Any]) -> bool:
    """Whether somebody has chosen a value of Hadoop's, as opposed to a default."""
    if not str(entry["key"]).startswith(_HADOOP):
        return False
    source = str(entry.get("resource"))
    if source.startswith("Set by Spark"):
        return "'spark.hadoop'" in source
    return not source.endswith("-default.xml")


def find_last_progress(spark: SparkSession, query_id: str) -> str | None:
    """The newest progress of a running query, as JSON; None if it has made none, or is not running."""
    try:
        execution = _execution(spark, query_id)
        progress = None if execution is None else execution.lastProgress()
        return None if progress is None else str(progress.json())
    except Py4JError:
        return None


def is_stopping(spark: SparkSession) -> bool:
    """Whether Spark is on its way down: it runs no job any more."""
    context = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def plugin_watches(spark: SparkSession, run_id: str, url: str) -> bool:
    """Whether the driver plugin, if there is one, checkpoints this run of a query to ``url``."""
    kind = getattr(spark._jvm, _DOOR)
    if not isinstance(kind, JavaClass):
        return False  # the jar is not on the class path
    try:
        door = kind.current()
        return door is not None and bool(door.watches(run_id, url))
    except Py4JError:
        return False  # then the second of them steps aside when it writes


def _execution(spark: SparkSession, query_id: str) -> Any:
    """A query as the JVM has it; None if it does not run."""
    jvm = spark._jvm
    if jvm is None:
        raise RefusedError("the Spark session has ended", hint="start a new session, and the query in it")
    queries = spark._jsparkSession.sharedState().activeStreamingQueries()
    return queries.get(jvm.java.util.UUID.fromString(query_id))


class HadoopFiles:
    """Hadoop's own file systems through the driver's JVM. Paths are given and listed as Hadoop spells them.

    Errors are ours; what Hadoop says in its own words is not passed on.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()

    def qualified_path(self, url: str) -> str:
        """The path of ``url`` within its file system."""
        with _translated(url):
            path = self._path(url)
            return str(path.getFileSystem(self._conf).makeQualified(path).toUri().getPath())

    def walk(self, url: str) -> Iterator[tuple[str, int, int]]:
        """Every file below ``url`` that is not hidden: its path relative to it, its size, when it changed.

        What goes away meanwhile is left out; ``url`` itself must be there.
        """
        root = self.qualified_path(url).rstrip("/") + "/"
        files, pending = self._fs(url), [self._path(url)]
        is_root = True
        while pending:
            try:
                for status in self._statuses(files, pending.pop()):
                    name = str(status.getPath().toUri().getPath())
                    if status.isDirectory():
                        pending.append(status.getPath())
                    elif not name.rpartition("/")[2].startswith("."):
                        changed_ms = int(status.getModificationTime())
                        yield name.removeprefix(root), int(status.getLen()), changed_ms
            except NotFound:
                if is_root:
                    raise
            is_root = False

    def _statuses(self, files: Any, path: Any) -> list[Any]:
        with _translated(str(path.toString())):
            return [*files.listStatus(path)]

    def facts(self, url: str) -> tuple[int, int]:
        """A file's size, and when it was changed."""
        with _translated(url):
            status = self._fs(url).getFileStatus(self._path(url))
            if status.isDirectory():
                raise NotFound(f"{url} is a directory", hint="give the path of a file")
            return int(status.getLen()), int(status.getModificationTime())

    def read(self, url: str, start: int, size_bytes: int) -> bytes:
        """A range of a file, which passes through memory as text: for small ones."""
        with _translated(url):
            stream = self._fs(url).open(self._path(url))
            try:
                stream.seek(start)
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream, size_bytes))
            finally:
                stream.close()

    def fetch(self, url: str, local: str) -> None:
        """Copy a file to the local disk; the bytes stay in the JVM."""
        with _translated(url):
            target = self._path(f"file://{local}")
            self._fs(url).copyToLocalFile(False, self._path(url), target, True)

    def create(self, url: str, data: bytes) -> None:
        """Create a small file that must not be there."""
        with _translated(url):
            stream = self._fs(url).create(self._path(url), False)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()

    def store(self, local: str, temporary_url: str, url: str) -> None:
        """Copy a local file to ``temporary_url``, and rename it to ``url``, replacing what is there."""
        with _translated(url):
            files, temporary, target = self._fs(url), self._path(temporary_url), self._path(url)
            files.copyFromLocalFile(False, True, self._path(f"file://{local}"), temporary)
            files.delete(target, False)
            if not files.rename(temporary, target):
                raise Unavailable(f"{url} could not be written", hint=_HADOOP_HINT)

    def delete(self, url: str) -> None:
        """Remove a file; an absent one is fine."""
        with _translated(url):
            self._fs(url).delete(self._path(url), False)

    def rename(self, source_url: str, target_url: str) -> None:
        """Rename a file or a directory to a name that is free."""
        with _translated(source_url):
            files, target = self._fs(source_url), self._path(target_url)
            if files.exists(target) or not files.rename(self._path(source_url), target):
                raise InUse(
                    f"{source_url} could not be renamed to {target_url}",
                    hint="look whether the target exists, and whether this user may rename there",
                )

    def _path(self, url: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(url)

    def _fs(self, url: str) -> Any:
        return self._path(url).getFileSystem(self._conf)


class JvmIcebergTable:
    """An Iceberg table through the catalogs of a session, whatever they are: an ``IcebergTable``.

    A reference is set by the table's own check-and-set of its metadata, which every catalog has.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        """``name`` is a table's name with its catalog, or its path."""
        check_classic(spark)
        jvm: Any = spark._jvm
        self._name = name
        self._iceberg = jvm.org.apache.iceberg
        if not isinstance(self._iceberg.spark.Spark3Util, JavaClass):
            raise Unsupported(
                f"this Spark session cannot reach the Iceberg table {name}: it has no Iceberg",
                hint="give it iceberg-spark-runtime by spark.jars or spark.jars.packages",
            )
        with _iceberg_errors(name), _active(spark):
            if "/" in name:
                conf = spark._jsparkSession.sessionState().newHadoopConf()
                table = self._iceberg.hadoop.HadoopTables(conf).load(name)
            else:
                table = self._iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
            self._operations = table.operations()

    def read_metadata(self) -> bytes:
        """The current metadata, read anew."""
        with _iceberg_errors(self._name):
            return str(self._iceberg.TableMetadataParser.toJson(self._operations.refresh())).encode()

    def set_reference(self, name: str, snapshot_id: int | None, expected_id: int | None) -> None:
        """Point the branch ``main`` or a tag to a snapshot, if it points to ``expected_id`` now."""
        with _iceberg_errors(self._name):
            base = self._operations.refresh()
            held = base.ref(name)
            if (None if held is None else held.snapshotId()) != expected_id:
                raise StaleAttempt(f"{name} of Iceberg table {self._name} points elsewhere now")
            change = self._iceberg.TableMetadata.buildFrom(base)
            if snapshot_id is None:
                change = change.removeRef(name)
            else:
                kind = self._iceberg.SnapshotRef
                if held is not None:
                    made = kind.builderFrom(held, snapshot_id)
                elif name == _MAIN:
                    made = kind.branchBuilder(snapshot_id)
                else:
                    made = kind.tagBuilder(snapshot_id).maxRefAgeMs(_FOR_EVER_MS)
                change = change.setRef(name, made.build())
            self._operations.commit(base, change.build())


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Let a session be the active one of this thread, by whose confs Spark first finds a catalog.

    A thread that Python has just begun has none: Spark then knows no catalog but its own.
    """
    kind = cast("Any", spark._jvm).org.apache.spark.sql.classic.SparkSession
    before = kind.getActiveSession()
    kind.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            kind.setActiveSession(before.get())
        else:
            kind.clearActiveSession()


@contextlib.contextmanager
def _iceberg_errors(name: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise _iceberg_error(name, str(error.java_exception.getClass().getSimpleName())) from None
    except PySparkException as error:  # PySpark makes such of the JVM's own
        raise _iceberg_error(name, type(error).__name__) from None
    except Py4JError:
        text = f"Iceberg table {name}: the driver's JVM does not answer as Iceberg does"
        raise Unavailable(text, hint="look at the driver's log; use Iceberg 1.4 or newer") from None


def _iceberg_error(name: str, kind: str) -> CheckpointError:
    if kind in _NO_ICEBERG_TABLE:
        return NotFound(
            f"the session's catalogs have no Iceberg table {name}",
            hint="give Spark's confs of its catalog (spark.sql.catalog.NAME...)",
        )
    if kind == "CommitFailedException":
        return StaleAttempt(f"somebody else has just committed to Iceberg table {name}")
    if kind == "CommitStateUnknownException":
        return OutcomeUnknown(f"the catalog did not say whether its commit to {name} was done")
    if kind in ("ForbiddenException", "NotAuthorizedException", "AccessControlException"):
        return Denied(
            f"Iceberg table {name}: not allowed ({kind})", hint="let the user of the driver write"
        )
    return Unavailable(f"Iceberg table {name}: {kind}", hint="look at the driver's log, and at the catalog")


_HADOOP_HINT = "try it with hdfs dfs, or the file system's own command, as the user of the driver"


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise _hadoop_error(url, str(error.java_exception.getClass().getSimpleName())) from None
    except Py4JError:
        text = f"{url}: the driver's JVM does not answer"
        raise Unavailable(text, hint="look at the driver's log; start the application again") from None


def _hadoop_error(url: str, kind: str) -> StoreError:
    if kind in ("FileNotFoundException", "NoSuchFileException"):
        return NotFound(f"{url} does not exist", hint="check the path, and the file system in it")
    if kind in ("FileAlreadyExistsException",):
        return AlreadyExists(f"{url} exists", hint="choose another path")
    if kind in ("AccessControlException", "AccessDeniedException"):
        return Denied(
            f"{url}: Hadoop does not allow it", hint="let the user of the driver read and write it"
        )
    return Unavailable(f"{url}: Hadoop says {kind}", hint=_HADOOP_HINT)


class SideDoor:
    """The side process's end of the driver plugin: Spark's own context, and events of all its queries."""

    def __init__(self, app: str, jar: str) -> None:
        """Attach to the driver that has started this process; the environment says where it is."""
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        door = getattr(gateway.jvm, _DOOR).current()
        if door is None:
            raise RefusedError("the driver has ended", hint="start the application again")
        self._door = door
        java_context = gateway.jvm.JavaSparkContext(door.attach())
        conf = SparkConf(_jconf=java_context.getConf())
        self._context = SparkContext(gateway=gateway, jsc=java_context, conf=conf)
        self._context.appName = app
        # Executors have the jar under its bare name, workers on the driver's machine where it is.
        includes = self._context._python_includes or []
        self._context._python_includes = [*includes, jar, Path(jar).name]

    def next_event(self, timeout_seconds: float) -> Mapping[str, str] | None:
        """The next event of any query; None if there is none within the time."""
        text = self._door.next(int(timeout_seconds * 1000))
        return None if text is None else dict(json.loads(text))

    def session(self, run_id: str) -> SparkSession | None:
        """The session that a run of a query belongs to; None if it has ended."""
        session = self._door.session(run_id)
        if session is None:
            return None
        if SparkSession._instantiatedSession is None:
            # PySpark makes the first session that it sees the default of the whole JVM, where a thread of
            # the application may be asking for it just now: let it believe that there was one before.
            SparkSession._instantiatedSession = cast(Any, SimpleNamespace(_sc=self._context))
        found = SparkSession(self._context, session)
        SparkSession._instantiatedSession = found
        return found

    def looked(self, run_id: str, *, is_watched: bool) -> None:
        """Let the start of a query go on, and say whether it is checkpointed."""
        self._door.looked(run_id, is_watched)

    def restores(self, run_id: str) -> bool:
        """Say that a starting query's location is stale; whether its start waits until it is restored."""
        return bool(self._door.restores(run_id))

    def replaces(self, run_id: str) -> bool:
        """Ask, before the first rename, whether a query still waits; if so, it does until ``looked``."""
        return bool(self._door.replaces(run_id))

    def refuses(self, run_id: str) -> None:
        """Say that a query must not run: the driver stops it, whatever becomes of this process."""
        self._door.refuses(run_id)

    def answer(self, run_id: str, batch: int, outcome: str, problem: str) -> None:
        """Say what became of the checkpoint that a batch of a query waits for."""
        self._door.answer(run_id, batch, outcome, problem)

    def report(
        self,
        query: str,
        *,
        captured_ms: int,
        seconds: float,
        captures: int,
        failures: int,
        size_bytes: int,
        requests: int,
    ) -> None:
        """Tell Spark's metrics system of a query's last capture, and what is new since the last call."""
        self._door.report(query, captured_ms, float(seconds), captures, failures, size_bytes, requests)
