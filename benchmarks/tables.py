"""The sections of the report about queries side by side: times, requests, lag, phases, cost. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.aims import cells_of, noise, time_ratio
from benchmarks.costs import LIST_PRICES, daily_cost
from benchmarks.markdown import dollars, megabytes, table, times
from benchmarks.records import Cell, Run, quantile
from benchmarks.ways import LETTERS

KEPT_BATCHES = {"stock": 100, "tuned": 100, "ours": 100, "listener": 20, "listener-stock": 20, "sink": 20}
"""What each way keeps by default: Spark's minBatchesToRetain, our ``retain``."""
PHASES = ("addBatch", "walCommit", "commitOffsets", "queryPlanning", "latestOffset")


def way_name(way: str) -> str:
    return f"{LETTERS[way]} {way}" if way in LETTERS else way


def verbs(requests: Mapping[str, int], batches: int) -> str:
    """Requests a batch by verb, the most frequent first."""
    ordered = sorted(requests.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{number / max(1, batches):.1f} {verb}" for verb, number in ordered) or "none"


def compared(cells: Sequence[Cell]) -> list[str]:
    """All ways of one run, situation by situation, with their ratio to stock where that was run."""
    stock = {cell.situation: cell for cell in cells if cell.way == "stock"}
    rows = []
    for cell in sorted(cells, key=lambda cell: cell.situation):
        query, partitions, provider, delay_ms = cell.situation
        rows.append(
            [
                f"{query}, {partitions}, {provider}",
                str(delay_ms),
                way_name(cell.way),
                str(len(cell.batch_ms)),
                f"{cell.p50:.0f}",
                f"{cell.p99:.0f}",
                _faster(stock.get(cell.situation), cell),
                f"{cell.per_batch:.1f}",
                verbs(cell.requests, cell.batches),
                f"{megabytes(cell.bytes_out / max(1, cell.batches))} / "
                f"{megabytes(cell.bytes_in / max(1, cell.batches))}",
            ]
        )
    headers = ["query, partitions, state store", "delay ms", "way", "batches", "p50 ms", "p99 ms"]
    headers += ["faster than stock", "requests a batch", "by verb", "sent / received a batch"]
    return table(headers, rows)


def _faster(stock: Cell | None, cell: Cell) -> str:
    if stock is None or cell.way == "stock":
        return "-"
    remark = noise(stock.batch_ms, cell.batch_ms)
    return times(stock.p50 / cell.p50) + (f" ({remark})" if remark else "")


def manager_table(cells: Sequence[Cell]) -> list[str]:
    """What our file manager costs beside local disk, and saves beside the others, in each situation."""
    found = {(cell.situation, cell.way): cell for cell in cells}
    rows = []
    for situation in sorted({cell.situation for cell in cells if cell.way == "ours"}):
        query, partitions, provider, delay_ms = situation
        ours = found[situation, "ours"]
        ratios = [
            _ratio(ours, found.get((situation, "alone"))),
            _ratio(found.get((situation, "stock")), ours),
            _ratio(found.get((situation, "tuned")), ours),
        ]
        rows.append([f"{query}, {partitions}, {provider}", str(delay_ms), *ratios])
    headers = ["query, partitions, state store", "delay ms", "ours over alone"]
    return table([*headers, "stock over ours", "tuned over ours"], rows)


def _ratio(above: Cell | None, below: Cell | None) -> str:
    return "-" if above is None or below is None else times(time_ratio(above, below))


def lag_table(cells: Sequence[Cell]) -> list[str]:
    """How long after Spark's own commit the listener's checkpoint was durable."""
    rows = []
    for cell in sorted(cells, key=lambda cell: cell.situation):
        if cell.lag_seconds:
            query, partitions, provider, delay_ms = cell.situation
            rows.append(
                [
                    f"{query}, {partitions}, {provider}",
                    str(delay_ms),
                    way_name(cell.way),
                    f"{statistics.median(cell.lag_seconds):.2f}",
                    f"{quantile(cell.lag_seconds, 0.99):.2f}",
                    f"{cell.captures} of {cell.watched_batches}",
                ]
            )
    headers = ["query, partitions, state store", "delay ms", "way", "p50 s", "p99 s", "captures of batches"]
    return table(headers, rows) if rows else ["Not run."]


def phase_table(cells: Sequence[Cell]) -> list[str]:
    """Where the time of a batch goes, by Spark's own clock: medians of its phases."""
    rows = [
        [
            f"{cell.query}, {cell.partitions}, {cell.provider}",
            str(cell.delay_ms),
            way_name(cell.way),
            *(f"{cell.phases_ms[phase]:.0f}" if phase in cell.phases_ms else "-" for phase in PHASES),
        ]
        for cell in sorted(cells, key=lambda cell: cell.situation)
    ]
    return table(["query, partitions, state store", "delay ms", "way", *PHASES], rows)


def cost_cells(runs: Sequence[Run], partitions: int) -> list[Cell]:
    """The cells of one situation of one run of the aggregation: the one in which most ways were run."""
    candidates: list[list[Cell]] = [[]]
    for cells in map(cells_of, runs):
        situations = dict.fromkeys(found for found, _ in cells if found[:2] == ("windowed", partitions))
        candidates += [
            [cells[situation, way] for way in LETTERS if (situation, way) in cells]
            for situation in situations
        ]
    return max(
        candidates,
        key=lambda cells: (
            len(cells),
            [cell.provider == "hdfs" for cell in cells],
            sum(cell.batches for cell in cells),
        ),
    )


def requests_if_all_captured(cell: Cell) -> dict[str, float]:
    """Requests a batch; where captures took several batches together, as if each had its own."""
    share = cell.watched_batches / cell.captures if cell.captures else 1.0
    return {verb: share * number / cell.batches for verb, number in cell.requests.items()}


def cost_table(cells: Sequence[Cell], batch_seconds: float) -> list[str]:
    """What a day costs each way."""
    rows = []
    for cell in cells:
        requests = requests_if_all_captured(cell)
        stored = KEPT_BATCHES[cell.way] * cell.bytes_out / cell.batches
        costs = [
            daily_cost(prices, requests, batch_seconds=batch_seconds, stored_bytes=stored)
            for prices in LIST_PRICES
        ]
        rows.append(
            [
                way_name(cell.way),
                f"{sum(requests.values()):.1f}",
                megabytes(stored),
                *(dollars(cost.total) for cost in costs),
            ]
        )
    headers = ["way", "requests a batch", "kept"] + [f"{prices.cloud}, a day" for prices in LIST_PRICES]
    return table(headers, rows)


def price_table() -> list[str]:
    """The list prices that the costs are made of."""
    rows = [
        [
            f"{prices.cloud}, {prices.region}, {prices.storage_class}",
            prices.as_of,
            dollars(prices.write_per_million),
            dollars(prices.read_per_million),
            f"${prices.stored_gb_month:.3f}",
        ]
        for prices in LIST_PRICES
    ]
    headers = ["list prices", "as of", "million PUT, COPY, POST, LIST", "million GET, HEAD", "GB-month"]
    return table(headers, rows)
