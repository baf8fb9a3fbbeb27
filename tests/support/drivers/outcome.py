"""What a query left behind, and whether two runs left the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from tests.support.drivers.queries import QuerySpec


def batches(spec: QuerySpec) -> dict[int, list[str]]:
    """The rows of every batch of a query, by batch."""
    found = {}
    for path in sorted(Path(spec.results).glob("*.json")):
        found[int(path.stem)] = path.read_text().splitlines()
    return found


def runs(spec: QuerySpec) -> dict[int, Counter[int]]:
    """How often each driver, by process id, ran the sink for each batch."""
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    log = Path(spec.results) / "runs.log"
    if log.exists():
        for line in log.read_text().splitlines():
            batch_id, pid = map(int, line.split())
            seen[batch_id][pid] += 1
    return seen


def differences(expected: QuerySpec, found: QuerySpec) -> list[str]:
    """Every batch in which two runs of a query differ, in words; an empty list if none does."""
    left, right = batches(expected), batches(found)
    if not left:
        return [f"{expected.name}: the undisturbed run has no batches"]
    report = []
    for batch_id in range(expected.batches):
        if left.get(batch_id) != right.get(batch_id):
            rows = [len(side[batch_id]) if batch_id in side else "no" for side in (left, right)]
            report.append(f"{found.name} batch {batch_id}: {rows[0]} rows expected, {rows[1]} rows found")
    return report
