"""From what a manifest records of a sink to the adapter that can be asked. Nothing is read yet."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.outputs.iceberg_table import IcebergOutput
from pyspark_checkpoint.outputs.output import Output
from pyspark_checkpoint.registry.queries import check_named_table, plain_options
from pyspark_checkpoint.store.open import open_object_store

_OUTPUTS: Mapping[str, type[FileSinkOutput | DeltaOutput | IcebergOutput]] = {
    "file": FileSinkOutput,
    "delta": DeltaOutput,
    "table": IcebergOutput,
}
"""By the kind that a manifest records. ``table``: a table of a catalog, as Iceberg describes itself."""


def can_be_asked(sink: SinkRecord) -> bool:
    """Whether there is an adapter for outputs of this kind."""
    return sink.kind in _OUTPUTS


def open_output(
    sink: SinkRecord, typed_url: str, place: str | None, options: Mapping[str, str] | None
) -> Output | None:
    """The output of a sink, for which there is an adapter; None if nobody has said where it is.

    ``typed_url`` led to the record: what it names elsewhere is not opened. ``place`` is where the output is
    now, if that is not what the record says.
    """
    if place is None:
        if not sink.target or sink.kind == "table":
            return None
        place = sink.target
        check_named_table(place, typed_url, options)
    return _OUTPUTS[sink.kind](place, open_object_store(place, plain_options(options)))
