"""Where a query's rows go, from the one line with which Spark describes its sink. Pure.

It costs nothing and is all that Spark tells of every sink. ``KafkaTable@519aceac`` names an object in a
process: what stands for one enters no name and no hash.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.spark_files.fingerprint import without_paths

CKPT_SINK = "ckpt-sink"
OTHER = "other"
_CKPT_SINK = re.compile(r"ckpt-sink (\S.*)")
_WITH_TARGET = re.compile(r"(?:[\w.$]*[.$])?(\w+)\[(.*)\]", re.DOTALL)
_CLASS = re.compile(r"(?:[\w.$]*[.$])?(\w+)\$?(?:@[0-9a-f]+)?")
_TABLE = re.compile(r"[^\s@()\[\]/]+(?:\.[^\s@()\[\]/]+){1,9}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.$=-]+")
_PATH_SINKS = {"FileSink": "file", "DeltaSink": "delta", "HoodieStreamingSink": "hudi"}
_CLASSES = {
    "ForeachBatchSink": "foreach-batch",
    "ForeachWriterTable": "foreach",
    "KafkaTable": "kafka",
    "KafkaSink": "kafka",
    "ConsoleTable": "console",
    "MemorySink": "memory",
    "NoopTable": "noop",
}
_MAX_TARGET = 2_000


def describe_sink(
    description: str, query_id: str, batch_id: int | None, iceberg_location: str = ""
) -> SinkRecord:
    """The record of a sink. ``table`` is what names itself as a table of a catalog, as Iceberg does.

    ``iceberg_location`` is where the table lies; only a sink that is known to be of Iceberg has one.
    """
    kind, target = _kind_and_target(description.strip())
    location = without_credentials(iceberg_location)[:_MAX_TARGET]
    if location:
        kind, target = "iceberg", target or description.strip()
    return SinkRecord(
        kind, without_credentials(target)[:_MAX_TARGET], query_id, batch_id, location=location
    )


def sink_name(description: str) -> str:
    """How a sink is called in a manifest: its description without paths and addresses."""
    name = _NOT_IN_A_NAME.sub("-", without_paths(description)).strip("-. ")
    return name[-100:] or "sink"


def sink_identity(description: str) -> str:
    """What a pipeline hash takes in of a sink: its kind, or its name where the kind is not known."""
    kind, _ = _kind_and_target(description.strip())
    return sink_name(description) if kind == OTHER else kind


def sink_store_url(description: str) -> str | None:
    """Where the table of a query's ckpt-sink is; None for every other sink."""
    found = _CKPT_SINK.fullmatch(description.strip())
    return None if found is None else absolute_place(found[1])


def absolute_place(path: str) -> str:
    """A table's path in full. A relative one is meant from where the driver is, as the sink takes it.

    The jar says it in full, unless it begins with the home directory.
    """
    return path if ":" in path else str(Path(path).expanduser().absolute())


def without_credentials(target: str) -> str:
    """A place without password, query and fragment, in which keys and signatures travel."""
    if "://" not in target:
        return target
    try:
        parts = urlsplit(target)
    except ValueError:
        return ""
    user, at, host = parts.netloc.rpartition("@")
    if ":" in user:
        user, at = "", ""
    return urlunsplit((parts.scheme, f"{user}{at}{host}", parts.path, "", ""))


def _kind_and_target(description: str) -> tuple[str, str]:
    url = sink_store_url(description)
    if url is not None:
        return CKPT_SINK, url
    if (found := _WITH_TARGET.fullmatch(description)) is not None:
        return _PATH_SINKS.get(found[1], OTHER), found[2] if found[1] in _PATH_SINKS else ""
    found = _CLASS.fullmatch(description.partition("(")[0])
    if found is not None and found[1] in _CLASSES:
        return _CLASSES[found[1]], ""
    if _TABLE.fullmatch(description) is not None and not _is_class(description):
        return "table", description
    return OTHER, ""


def _is_class(description: str) -> bool:
    """Whether a dotted name is one of a Java class: its last part begins with a capital letter."""
    return description.rpartition(".")[2][:1].isupper() or "$" in description
