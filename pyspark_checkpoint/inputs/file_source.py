"""Files: a query that goes back reads again what its later batches have read, if that still lies there.

Which files those were, only the source's own log says: in later checkpoints of the history, and with the
batch that is planned. A file that nobody has read yet is found by Spark when it lists the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import orjson

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.fields import number_in
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.spark_files.names import parse_source_file

MAX_PATH_LETTERS = 4_000


def later_entries(manifest: CheckpointManifest, source: str, last: int) -> tuple[ArtifactRef, ...]:
    """The parts of a source's own log in ``manifest`` that may name files read after its entry ``last``."""
    found: dict[int, ArtifactRef] = {}
    for ref in manifest.files:
        place = parse_source_file(ref.name)
        if place is None or place[0] != source:
            continue
        number = number_in(place[1].removesuffix(".compact"))
        if number is not None and number > last:
            found[number] = ref
    return tuple(found[number] for number in sorted(found))


def files_read(entry: bytes, last: int) -> tuple[str, ...]:
    """The files that an entry of a file source's log says were read after its entry ``last``."""
    lines = entry.decode("utf-8", "replace").split("\n")
    try:
        records = [orjson.loads(line) for line in lines[1:] if line]
        found = [str(record["path"]) for record in records if int(record.get("batchId", last + 1)) > last]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        raise FormatError(
            "the log of a file source is not Spark's", hint="ckpt verify names everything that is damaged"
        ) from None
    return tuple(found)


def by_directory(paths: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """The names of files by the URL of their directory. Spark writes paths as URLs."""
    found: dict[str, tuple[str, ...]] = {}
    for path in paths:
        directory, _, name = unquote(path[:MAX_PATH_LETTERS]).rpartition("/")
        if directory and name:
            found[directory] = (*found.get(directory, ()), name)
    return found
