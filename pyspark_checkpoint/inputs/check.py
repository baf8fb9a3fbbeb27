"""``check_inputs``: whether the sources of a query still have what comes after a checkpoint.

Asked by rewinds, before anything goes back, and for the recovery window. It changes nothing and writes
nothing. What cannot be asked is unknown and said; it is never taken for kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import CheckpointError, RefusedError, SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.inputs.file_source import by_directory, files_read, later_entries
from pyspark_checkpoint.inputs.kafka_source import ask_kafka
from pyspark_checkpoint.inputs.offset_reader import (
    InputFinding,
    InputKind,
    InputOffset,
    InputState,
    read_offset,
)
from pyspark_checkpoint.inputs.table_sources import (
    MAX_FILES,
    ask_changes,
    ask_delta,
    ask_iceberg,
    missing_files,
)
from pyspark_checkpoint.outputs.delta_log import DeltaLog
from pyspark_checkpoint.outputs.iceberg_table import IcebergOutput
from pyspark_checkpoint.registry.queries import check_named_table, plain_options
from pyspark_checkpoint.spark_files.positions import OFFSET
from pyspark_checkpoint.store.open import open_object_store

LOCATION = "location"
"""The source option that says where a table or directory is now."""
_WITHOUT_ASKING = {
    InputKind.RATE: (InputState.KEPT, "it makes its rows from the offset"),
    InputKind.MEMORY: (InputState.NOT_KEPT, "it keeps its rows in the driver's memory only"),
    InputKind.SOCKET: (InputState.NOT_KEPT, "it keeps no row"),
    InputKind.OTHER: (InputState.UNKNOWN, "this kind of source cannot be asked"),
}


@dataclass(frozen=True, slots=True)
class InputQuestion:
    """How to reach the sources of a checkpoint's query.

    Attributes:
        typed_url: The URL that led to the checkpoint: a place that a record names elsewhere is not opened.
        source_options: What Spark's sources read with and a checkpoint does not know, such as
            ``kafka.bootstrap.servers``, and ``location``: where a table is. A name that begins with the
            source's and a colon, such as ``source-1:location``, is for that source alone.
        options: Options of the stores of tables and files.
        history: The query's own history, by which it is known which files later batches read.
    """

    typed_url: str
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] | None = field(default=None, repr=False)
    history: CheckpointStore | None = None

    def options_of(self, source: str) -> dict[str, str]:
        """The source options for one source: its own before those for all."""
        shared = {name: text for name, text in self.source_options.items() if ":" not in name}
        own = {
            name.removeprefix(f"{source}:"): text
            for name, text in self.source_options.items()
            if name.startswith(f"{source}:")
        }
        return {**shared, **own}


def check_inputs(manifest: CheckpointManifest, question: InputQuestion) -> tuple[InputFinding, ...]:
    """Ask every source of a checkpoint's query, in the order of its plan. Changes nothing.

    A source that cannot be reached, or whose records cannot be read, is ``UNKNOWN`` with the reason. So is
    one that has not begun to read: it starts wherever its options say.

    Raises:
        SettingsError: A source option is not valid, or a client is not installed.
    """
    found = []
    for source in manifest.source_names:
        told = manifest.source_offsets.get(source)
        text = None if told is None else told.offsets.get(OFFSET)
        if told is None or text is None:
            kind, place = InputKind.OTHER, ""
            answer = InputState.UNKNOWN, "it had read nothing yet, and begins where its options say"
        else:
            offset = read_offset(text, told.metadata.get("description", ""))
            kind, place = offset.kind, offset.place
            answer = _answer(source, offset, manifest, question)
        found.append(InputFinding(source, kind, *answer, place))
    return tuple(found)


def refuse_lost(findings: Iterable[InputFinding]) -> None:
    """Raise ``RefusedError`` that names every source that no longer has what comes after the checkpoint."""
    lost = [str(finding) for finding in findings if finding.state is InputState.LOST]
    if lost:
        raise RefusedError(
            f"the input after this checkpoint is gone: {'; '.join(lost)}",
            hint="take a newer checkpoint, or bring the input back; ckpt list shows the checkpoints",
        )


def _answer(
    source: str, offset: InputOffset, manifest: CheckpointManifest, question: InputQuestion
) -> tuple[InputState, str]:
    if offset.kind in _WITHOUT_ASKING:
        return _WITHOUT_ASKING[offset.kind]
    options = question.options_of(source)
    try:
        if offset.kind is InputKind.KAFKA:
            return ask_kafka(offset.fields, options)
        if offset.kind is InputKind.FILE:
            return _ask_files(source, offset.fields["logOffset"], manifest, question)
        place = options.get(LOCATION)
        if place is None:
            place = offset.place if offset.kind is InputKind.DELTA else ""
            if not place:
                return (
                    InputState.UNKNOWN,
                    f"the checkpoint does not know where it is: give {source}:{LOCATION}",
                )
            check_named_table(place, question.typed_url, question.options)
        if offset.kind is InputKind.CKPT_SINK:
            return ask_changes(offset.fields, CheckpointStore.open(place, question.options))
        store = open_object_store(place, plain_options(question.options))
        if offset.kind is InputKind.DELTA:
            return ask_delta(offset.fields, DeltaLog.of(store, place))
        return ask_iceberg(offset.fields, IcebergOutput(place, store))
    except SettingsError:
        raise
    except CheckpointError as error:
        return InputState.UNKNOWN, f"it cannot be asked: {error.message}"


def _ask_files(
    source: str, last: int, manifest: CheckpointManifest, question: InputQuestion
) -> tuple[InputState, str]:
    """Look for the files that later batches have read, as far as later checkpoints say which those are."""
    if question.history is None:
        return (
            InputState.UNKNOWN,
            "which files later batches have read is in the history, which nobody gave",
        )
    newest = question.history.load_latest() or manifest
    directory = source.removeprefix("source-")
    entries = later_entries(newest, directory, last) or later_entries(manifest, directory, last)
    reader, paths = question.history.reader(), dict[str, None]()
    for entry in entries:
        paths.update(dict.fromkeys(files_read(reader.read(entry), last)))
    asked = tuple(paths)[:MAX_FILES]
    for directory, names in by_directory(asked).items():
        check_named_table(directory, question.typed_url, question.options)
        gone = missing_files(open_object_store(directory, plain_options(question.options)), names)
        if gone is not None:
            return InputState.LOST, f"the file {directory}/{gone} was read by a later batch and is gone"
    if not asked:
        return InputState.KEPT, "no later checkpoint has read a file after it"
    return InputState.KEPT, f"the {len(asked)} files that later batches read next are there"
