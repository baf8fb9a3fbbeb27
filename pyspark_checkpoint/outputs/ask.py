"""Asking the outputs of a checkpoint's query before the query goes on from that checkpoint.

A sink drops batches by their numbers. A query that goes on after batch N while its output already has M > N
loses what it writes as N + 1 to M, in silence. So every restore asks first: an output that is ahead is
refused, and one that cannot be asked is said to be unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import CheckpointError, Diverged, SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.outputs.iceberg_table import IcebergOutput
from pyspark_checkpoint.outputs.output import Output, check_position
from pyspark_checkpoint.registry.queries import check_named_table, plain_options
from pyspark_checkpoint.store.open import open_object_store

_LOG = logging.getLogger(__name__)
FAIL, WARN = OUTPUT_CHOICES = ("fail", "warn")
"""What happens if an output has batches that the query would write again."""
_OUTPUTS: Mapping[str, type[FileSinkOutput | DeltaOutput | IcebergOutput]] = {
    "file": FileSinkOutput,
    "delta": DeltaOutput,
    "iceberg": IcebergOutput,
    "table": IcebergOutput,
}
"""By the kind that a manifest records. ``table``: a table of a catalog whose place nobody has said."""


@dataclass(frozen=True, slots=True)
class OutputQuestion:
    """How to reach the outputs that a checkpoint names.

    Attributes:
        typed_url: The URL that led to the checkpoint: what a record names elsewhere is not opened.
        choice: ``fail`` or ``warn``.
        place: Where the output is now, if that is not what the checkpoint says: it was moved, or the
            checkpoint knows only the name of a catalog's table.
        options: Options of the output's store.
    """

    typed_url: str
    choice: str = FAIL
    place: str | None = None
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.choice not in OUTPUT_CHOICES:
            raise SettingsError(f"sink is {self.choice!r}", hint="choose fail or warn")

    def check(self, manifest: CheckpointManifest, query_id: str, batch_id: int) -> None:
        """Ask every output of the query that will go on after ``batch_id``.

        Raises:
            Diverged: An output has later batches of the query, and the choice is to fail.
        """
        for sink in manifest.sinks:
            if sink.kind in _OUTPUTS:
                self._check(sink, query_id, batch_id)

    def _check(self, sink: SinkRecord, query_id: str, batch_id: int) -> None:
        try:
            output = self._open(sink)
            if output is None:
                _LOG.warning("the output %s cannot be asked how far it is: give sink_location", sink.target)
                return
            found = check_position(output, query_id, batch_id)
        except Diverged as error:
            if self.choice == FAIL:
                raise
            _LOG.warning("%s", error)
        except CheckpointError as error:
            _LOG.warning("the output %s cannot be asked how far it is: %s", sink.target, error)
        else:
            if not found.is_known:
                _LOG.warning("the %s no longer says which batches it has of this query", output)

    def _open(self, sink: SinkRecord) -> Output | None:
        place = self.place
        if place is None:
            place = sink.location or sink.target
            if not place or sink.kind == "table":
                return None
            check_named_table(place, self.typed_url, self.options)
        return _OUTPUTS[sink.kind](place, open_object_store(place, plain_options(self.options)))
