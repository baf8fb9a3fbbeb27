"""What a savepoint keeps of where the query writes. Nothing is recorded but what outputs keep themselves.

A savepoint is made whatever its outputs answer: what could not be kept is said, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_checkpoint.capture.sink_description import CKPT_SINK
from pyspark_checkpoint.errors import CheckpointError
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import MAX_NAME_BYTES
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.outputs.ask import OutputQuestion, can_be_asked
from pyspark_checkpoint.outputs.ckpt_sink import CkptSinkOutput
from pyspark_checkpoint.outputs.output import Output
from pyspark_checkpoint.registry.queries import check_named_table


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """What a savepoint keeps of one output.

    Attributes:
        sink: The output, as the checkpoint records it.
        version: What the output calls the state that is kept; empty if none is.
        is_kept: Whether that state is kept for as long as the savepoint.
        note: Until when it can be had otherwise, or why it cannot.
    """

    sink: SinkRecord
    version: str = ""
    is_kept: bool = False
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.sink.kind} {self.sink.target}".strip()
        if not self.version:
            return f"{where}: not kept: {self.note}"
        note = f": {self.note}" if self.note else ""
        return f"{where}: {'kept' if self.is_kept else 'not kept'} at version {self.version}{note}"


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """An output of a checkpoint; without ``output`` there is a ``problem``."""

    sink: SinkRecord
    output: Output | None = None
    problem: str = ""


def find_outputs(manifest: CheckpointManifest, question: OutputQuestion) -> Iterator[FoundOutput]:
    """Open what a checkpoint says its query writes to; a table's own history is none of its outputs."""
    for sink in manifest.sinks:
        output: Output | None = None
        try:
            if sink.kind == CKPT_SINK:
                if manifest.table is not None:
                    continue
                check_named_table(sink.target, question.typed_url, question.options)
                output = CkptSinkOutput(sink.target, question.options, manifest)
            elif not can_be_asked(sink):
                yield FoundOutput(sink, problem="it does not say what it has, and cannot go back")
                continue
            else:
                output = question.open(sink)
        except CheckpointError as error:
            yield FoundOutput(sink, problem=error.message)
            continue
        yield FoundOutput(sink, output, "" if output is not None else "nobody has said where it is")


def pin_outputs(
    manifest: CheckpointManifest, name: str, question: OutputQuestion
) -> tuple[KeptOutput, ...]:
    """Keep the batch of a checkpoint in each of its outputs, for the savepoint ``name``. Repeatable."""
    outputs = find_outputs(manifest, question)
    return tuple(_pin(found, manifest, name) for found in outputs)


def unpin_outputs(
    manifest: CheckpointManifest, name: str, question: OutputQuestion
) -> tuple[KeptOutput, ...]:
    """Let go of what ``pin_outputs`` kept; the answer has the outputs that did not."""
    failed = []
    for found in find_outputs(manifest, question):
        if found.output is not None:
            try:
                found.output.unpin(pin_name(name, _query_id(found.sink, manifest)))
            except CheckpointError as error:
                failed.append(KeptOutput(found.sink, note=error.message))
    return tuple(failed)


def pin_name(name: str, query_id: str) -> str:
    """The name of a savepoint in an output, which several queries may share."""
    joined = f"{name}-{query_id}"
    return joined if len(joined.encode("utf-8")) <= MAX_NAME_BYTES else sha256_hex(joined.encode("utf-8"))


def _pin(found: FoundOutput, manifest: CheckpointManifest, name: str) -> KeptOutput:
    query_id, batch_id = _query_id(found.sink, manifest), manifest.batch_id
    if found.output is None or batch_id is None:
        return KeptOutput(found.sink, note=found.problem or "the checkpoint is of no batch")
    try:
        pin = found.output.pin(pin_name(name, query_id), query_id, batch_id)
    except CheckpointError as error:
        return KeptOutput(found.sink, note=error.message)
    if pin is None:
        return KeptOutput(found.sink, note=f"it no longer has batch {batch_id}, or cannot keep one")
    return KeptOutput(found.sink, pin.version, pin.is_kept, pin.until)


def _query_id(sink: SinkRecord, manifest: CheckpointManifest) -> str:
    return sink.application_id or manifest.query.id
