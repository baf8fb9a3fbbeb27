"""A listing of a checkpoint directory, sorted by what its files are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.spark_files.names import (
    METADATA,
    StateFile,
    StoreId,
    is_checksum,
    is_operator_setup,
    is_source_schema,
    parse_log,
    parse_source_file,
    parse_state_file,
    setup_batch,
)
from pyspark_checkpoint.spark_files.requirements import FORMAT
from pyspark_checkpoint.spark_files.versions import FileFacts


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """What is in a checkpoint directory. Files that no rule knows are left out; nobody needs them."""

    facts: Mapping[str, FileFacts]
    state: Mapping[StoreId, Mapping[StateFile, FileFacts]] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    offsets: frozenset[int] = frozenset()
    commits: frozenset[int] = frozenset()
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source_schemas: tuple[str, ...] = ()
    """Schema logs that sources keep beside what is Spark's own."""

    @property
    def newest_committed(self) -> int | None:
        """The newest batch that is done; None before the first one."""
        return max(self.commits & self.offsets, default=None)

    def setup_of(self, batch_id: int) -> tuple[str, ...]:
        """What describes the operators at batch ``batch_id``; what a later run has written is left out."""
        return tuple(path for path in self.setup if setup_batch(path) <= batch_id)

    def operators(self) -> tuple[int, ...]:
        """The stateful operators that have state files."""
        return tuple(sorted({owner.operator for owner in self.state}))


def has_format_2(paths: Iterable[str]) -> bool:
    """Whether state is kept in format version 2, which puts the id of an attempt into names of files."""
    return any((file := parse_state_file(path)) is not None and file.uid is not None for path in paths)


def pinned_conf(conf: Mapping[str, str], paths: Iterable[str]) -> dict[str, str]:
    """What a query is pinned to: the settings of its offset log, and the format of its state files."""
    return {**conf, FORMAT: "2"} if has_format_2(paths) else dict(conf)


def sort_listing(facts: Mapping[str, FileFacts]) -> CheckpointListing:
    """Sort the files of a checkpoint directory, given by their paths relative to it."""
    state: dict[StoreId, dict[StateFile, FileFacts]] = {}
    logs: dict[str, set[int]] = {"offsets": set(), "commits": set()}
    sources: dict[str, list[str]] = {}
    setup: list[str] = []
    schemas: list[str] = []
    for path, fact in facts.items():
        if is_checksum(path):
            continue
        if (file := parse_state_file(path)) is not None:
            state.setdefault(file.owner, {})[file] = fact
        elif (log := parse_log(path)) is not None:
            logs[log[0]].add(log[1])
        elif (source := parse_source_file(path)) is not None:
            sources.setdefault(source[0], []).append(path)
        elif is_operator_setup(path):
            setup.append(path)
        elif is_source_schema(path):
            schemas.append(path)
    return CheckpointListing(
        facts=facts,
        source_schemas=tuple(sorted(schemas)),
        state=state,
        setup=tuple(sorted(setup)),
        offsets=frozenset(logs["offsets"]),
        commits=frozenset(logs["commits"]),
        sources={source: tuple(sorted(paths)) for source, paths in sorted(sources.items())},
    )


def check_capturable(listing: CheckpointListing, batch_id: int) -> None:
    """Refuse a batch that Spark has not finished, or whose logs are gone."""
    if METADATA not in listing.facts:
        raise RefusedError(
            "the checkpoint location has no metadata file: no query has started there",
            hint="give the checkpointLocation of the query, after its first start",
        )
    if batch_id not in listing.commits:
        raise RefusedError(
            f"batch {batch_id} is not committed",
            hint="only committed batches are captured; with real-time mode or asynchronous progress "
            "tracking Spark does not log every batch, and no checkpoint can be taken",
        )
    needed = {batch_id} | ({batch_id - 1} if batch_id > 0 else set())
    missing = sorted(needed - listing.offsets)
    if missing:
        raise RefusedError(
            f"the offset log of batch {missing[0]} is gone",
            hint="Spark purges logs after minBatchesToRetain batches; take a newer batch",
        )
