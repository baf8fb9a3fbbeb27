"""What a day of checkpoints costs at public list prices. Pure.

Requests within a region are what is paid for, and the bytes that stay; traffic within a region is free
at all three. The requests were counted on an S3 server. The connectors of the other two clouds make
others, so their columns say what the same requests would cost there, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SECONDS_A_DAY = 86_400
DAYS_A_MONTH = 30.4
GB = 1_000_000_000
WRITES = frozenset({"PUT", "POST", "COPY", "LIST"})
READS = frozenset({"GET", "HEAD"})
FREE = frozenset({"DELETE", "DELETES"})
MAINTENANCE_LISTS = 2
"""What Spark's maintenance asks for each partition of a state store on S3, once a minute."""
MINUTES_A_DAY = 1440


@dataclass(frozen=True)
class Prices:
    """List prices in US dollars, before any discount and without any free allowance."""

    cloud: str
    region: str
    storage_class: str
    as_of: str
    write_per_million: float
    """PUT, COPY, POST and LIST."""
    read_per_million: float
    """GET and HEAD."""
    stored_gb_month: float


LIST_PRICES = (
    Prices("Amazon S3", "us-east-1", "Standard", "2025", 5.00, 0.40, 0.023),
    Prices("Google Cloud Storage", "us-central1", "Standard", "2025", 5.00, 0.40, 0.020),
    Prices("Azure Blob", "East US", "hot, LRS, flat namespace", "2025", 5.00, 0.40, 0.018),
)


@dataclass(frozen=True)
class DailyCost:
    """What one query costs in a day."""

    cloud: str
    requests: float
    storage: float

    @property
    def total(self) -> float:
        return self.requests + self.storage


def maintenance_cost(prices: Prices, partitions: int) -> float:
    """What a day of Spark's maintenance adds where the state is on the object store."""
    return MAINTENANCE_LISTS * partitions * MINUTES_A_DAY * prices.write_per_million / 1e6


def daily_cost(
    prices: Prices,
    requests_per_batch: Mapping[str, float],
    *,
    batch_seconds: float,
    stored_bytes: float,
) -> DailyCost:
    """The price of a day of batches that begin every ``batch_seconds``.

    Deletes are free at all three clouds. A verb that has no price here is an error, never free.
    """
    unknown = set(requests_per_batch) - WRITES - READS - FREE
    if unknown:
        raise ValueError(f"no price for {', '.join(sorted(unknown))}")
    batches = SECONDS_A_DAY / batch_seconds
    writes = sum(number for verb, number in requests_per_batch.items() if verb in WRITES)
    reads = sum(number for verb, number in requests_per_batch.items() if verb in READS)
    paid = batches * (writes * prices.write_per_million + reads * prices.read_per_million) / 1e6
    return DailyCost(prices.cloud, paid, stored_bytes / GB * prices.stored_gb_month / DAYS_A_MONTH)
