"""``ckpt report``: a history as one page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from pyspark_checkpoint.cli.arguments import (
    ALL,
    HISTORY,
    LAST,
    WINDOW,
    Address,
    address_of,
    argument,
    last_of,
)
from pyspark_checkpoint.cli.console import Console, error_line
from pyspark_checkpoint.cli.histories import (
    Query,
    checkpoint_record,
    find_queries,
    iter_queries,
    open_history,
)
from pyspark_checkpoint.cli.report_page import Chapter, page
from pyspark_checkpoint.cli.windows import find_recovery_window, window_record
from pyspark_checkpoint.errors import CheckpointError, SettingsError
from pyspark_checkpoint.format.manifest import ConnectorCheckpoint
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import Overview
from pyspark_checkpoint.registry.queries import QueryNames

ABOUT = """Write a history, or those of all queries below URL, as one HTML page: a timeline with sizes,
durations, requests, gaps, savepoints and generations, and where the sources stand. The page loads
nothing and runs no script; it can be mailed, archived, and read on a phone."""
EXAMPLES = """
ckpt report s3://bucket/checkpoints -o report.html
ckpt report s3://bucket/tables/wc -o wc.html --last 200
"""
ARGUMENTS = (
    *HISTORY,
    ALL,
    argument("-o", "--out", required=True, metavar="FILE", help="where the page goes"),
    LAST,
    *WINDOW,
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Write it."""
    last = last_of(args)
    address = address_of(args)
    names = find_queries(address)
    failed: list[tuple[Query, CheckpointError]] = []
    if names is None:
        chapters = [_only_chapter(address, last, args)]
    else:
        chapters = list(_chapters(address, names, last, failed, args))
    out = Path(args.out)
    try:
        out.write_text(page(chapters, console.clock.now_ms()), encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"cannot write {out}: {error.strerror or type(error).__name__}", hint="give another path to -o"
        ) from None
    if console.as_json:
        records = [
            {
                "url": chapter.url,
                "sources": {name: asdict(source) for name, source in chapter.sources.items()},
                "recovery_window": window_record(chapter.window),
                "checkpoints": [checkpoint_record(one) for one in chapter.overview.entries],
            }
            for chapter in chapters
        ]
        console.json({"path": str(out), "histories": records})
    else:
        count = sum(len(chapter.overview.entries) for chapter in chapters)
        console.line(f"{out}: {count} checkpoints, {out.stat().st_size:,} bytes; open it in a browser")
    for query, problem in failed:
        console.note(f"query {query.label} is not on the page: {error_line(problem)}")
    console.hints(problem.hint for _, problem in failed)
    return bool(failed)


def _only_chapter(address: Address, last: int | None, args: argparse.Namespace) -> Chapter:
    history = open_history(address)
    chapter = _chapter("", history, last, args)
    newest = chapter.overview.newest
    name = (newest.query.name if newest is not None else "") or address.query or ""
    return replace(chapter, title=name or chapter.url.rstrip("/").rpartition("/")[2])


def _chapters(
    address: Address,
    names: QueryNames,
    last: int | None,
    failed: list[tuple[Query, CheckpointError]],
    args: argparse.Namespace,
) -> Iterator[Chapter]:
    """A chapter for each query; those that cannot have one go to ``failed``, with the reason."""
    for query in iter_queries(address, names):
        try:
            yield _chapter(query.label, query.open(address), last, args)
        except CheckpointError as error:
            failed.append((query, error))


def _chapter(title: str, history: CheckpointStore, last: int | None, args: argparse.Namespace) -> Chapter:
    overview = history.overview(last)
    window = find_recovery_window(history, overview.entries, args)
    return Chapter(title, history.store.url, overview, _sources(history, overview), window)


def _sources(history: CheckpointStore, overview: Overview) -> Mapping[str, ConnectorCheckpoint]:
    """Where the sources stand; nothing where the newest checkpoint cannot be read, which the page tells."""
    if overview.newest is None or overview.newest.problem is not None:
        return {}
    manifest = history.load_by_id(overview.newest.number)
    return {} if manifest is None else manifest.source_offsets
