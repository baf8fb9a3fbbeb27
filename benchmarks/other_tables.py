"""The sections of the report about copies, restores, cold starts, growth and two drivers. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from benchmarks.markdown import megabytes, table
from benchmarks.records import CommitSize, Contest, Copied, Restored, Started, Stretch
from benchmarks.tables import way_name

RAW = "raw download"


def copied_table(rows: Sequence[Copied]) -> list[str]:
    """Copies of running queries, by how they were made, and what became of queries started on them."""
    groups: dict[str, list[Copied]] = defaultdict(list)
    for row in rows:
        groups[row.how].append(row)
    lines = []
    for how, copies in groups.items():
        outcomes = Counter(copy.outcome for copy in copies)
        causes = {copy.detail for copy in copies if copy.detail}
        lines.append(
            [
                how,
                f"{statistics.median(copy.seconds for copy in copies):.1f}",
                f"{statistics.median(copy.requests for copy in copies):.0f}",
                f"{statistics.median(copy.objects for copy in copies):.0f}, "
                + megabytes(statistics.median(copy.size_bytes for copy in copies)),
                ", ".join(f"{number} of {len(copies)} {what}" for what, number in outcomes.most_common()),
                "; ".join(sorted(causes)) or "-",
            ]
        )
    headers = ["how", "seconds", "requests", "files", "a query started on the copy", "why not"]
    return table(headers, lines)


def restored_table(rows: Sequence[Restored]) -> list[str]:
    """Speeds, and each as a share of the raw download of the same bytes."""
    raw = {row.size_bytes: row for row in rows if row.how == RAW}
    lines = []
    for row in sorted(rows, key=lambda row: row.size_bytes):
        share = f"{raw[row.size_bytes].p50 / row.p50:.2f}" if row.size_bytes in raw else "-"
        speed = f"{row.size_bytes / 1e6 / row.p50:.0f}"
        size = f"{row.size_bytes / 1e6:.0f} MB"
        lines.append([size, row.how, f"{row.p50:.2f}", speed, share, str(len(row.seconds))])
    return table(["state", "how", "p50 s", "MB/s", "share of raw", "rounds"], lines)


def started_table(rows: Sequence[Started]) -> list[str]:
    """Seconds to the first finished batch."""
    disk = {
        (row.provider, row.delay_ms): statistics.median(row.seconds) for row in rows if row.way == "alone"
    }
    lines = []
    for row in rows:
        seconds = row.restore_seconds + statistics.median(row.seconds)
        base = disk.get((row.provider, row.delay_ms))
        lines.append(
            [
                row.provider,
                str(row.delay_ms),
                way_name(row.way),
                f"{seconds:.2f}" + (f" ({row.restore_seconds:.2f} restore)" if row.restore_seconds else ""),
                f"{seconds / base:.2f}x" if base else "-",
                str(row.requests),
            ]
        )
    return table(["state store", "delay ms", "way", "seconds", "of local disk", "requests"], lines)


def stretch_table(rows: Sequence[Stretch]) -> list[str]:
    """Batch time and requests by epoch."""
    disk = [row.batch_ms for row in rows if row.way == "disk"]
    lines = [
        [
            way_name(row.way),
            f"{row.first_epoch} to {row.last_epoch}",
            f"{row.batch_ms:.0f}",
            f"{row.batch_ms / statistics.median(disk):.2f}x" if disk else "-",
            f"{row.requests_per_epoch:.1f}",
        ]
        for row in rows
    ]
    return table(["way", "epochs", "batch p50 ms", "over disk", "requests an epoch"], lines)


def commit_table(rows: Sequence[CommitSize]) -> list[str]:
    """Manifest and commit by partitions."""
    lines = [
        [
            f"{row.partitions:,}",
            f"{row.manifest_bytes:,}",
            f"{row.commit_ms:.1f}",
            f"{row.bare_ms:.1f}",
            str(row.puts),
        ]
        for row in rows
    ]
    headers = ["partitions", "manifest bytes", "commit p50 ms", "the same requests, bare, ms", "PUTs"]
    return table(headers, lines)


def contest_table(rows: Sequence[Contest]) -> list[str]:
    """Two drivers, each contest a line."""
    lines = [
        [
            way_name(row.way),
            str(len(row.run_by_both)),
            str(len(row.committed_by_both)),
            str(row.stopped),
            "; ".join(row.other_errors) or "-",
            str(row.wrong_batches),
        ]
        for row in rows
    ]
    headers = ["way", "batches run by both", "committed by both", "drivers stopped", "other ends"]
    return table([*headers, "wrong batches"], lines)
