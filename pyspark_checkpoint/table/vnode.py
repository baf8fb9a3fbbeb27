"""Which rows belong where: keys hash to vnodes, and partition p of P owns the vnodes that are p modulo P.

Since P divides the number of vnodes, ``vnode mod P`` equals ``pmod(hash, P)``: the place to which
Spark's own hash partitioning brings a row. Going from 4 to 16 partitions splits each into four, and
going back joins four.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.format.fields import number_in
from pyspark_checkpoint.table.murmur3 import Hashes, spark_hash

MIN_DEFAULT_VNODES = 256
MAX_VNODES = 65_535


def default_vnodes(partitions: int) -> int:
    """Return the smallest multiple of ``partitions`` that is at least 256."""
    return partitions * -(-MIN_DEFAULT_VNODES // partitions)


def check_layout(partitions: int, vnodes: int) -> None:
    """Refuse a number of partitions that does not divide the number of vnodes."""
    if partitions < 1:
        raise SettingsError(
            f"a table has at least one partition, not {partitions}",
            hint="leave the option partitions out, or give a number from 1",
        )
    if not 1 <= vnodes <= MAX_VNODES:
        raise SettingsError(
            f"vnodes is 1 to {MAX_VNODES}, not {vnodes}", hint="leave the option vnodes out for the default"
        )
    if vnodes % partitions:
        divisors = [n for n in range(1, vnodes + 1) if vnodes % n == 0]
        nearest = sorted(divisors, key=lambda n: abs(n - partitions))[:3]
        raise SettingsError(
            f"{partitions} partitions do not divide the table's {vnodes} vnodes",
            hint=f"choose one of {', '.join(map(str, sorted(nearest)))}; a table keeps its vnodes",
        )


def vnodes_of(columns: Sequence[pa.Array | pa.ChunkedArray], vnodes: int) -> npt.NDArray[np.int64]:
    """Return the vnode of each row: ``pmod(hash(keys), vnodes)`` with Spark's hash."""
    return owners_of(spark_hash(columns), vnodes)


def owners_of(hashes: Hashes, partitions: int) -> npt.NDArray[np.int64]:
    """Return the partition that owns each row, by the hash of its keys."""
    return np.mod(hashes.view(np.int32).astype(np.int64), partitions)


def sources_of(partition: int, partitions: int, old_partitions: int) -> tuple[int, ...]:
    """Return the old partitions that hold rows of partition ``partition`` of a repartitioned table."""
    common = int(np.gcd(partitions, old_partitions))
    return tuple(range(partition % common, old_partitions, common))


def parse_vnodes(text: str, vnodes: int) -> tuple[int, ...]:
    """Read a list such as ``0-63,128``; refuses what the table does not have."""
    wanted: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = number_in(first)
        high = number_in(last) if dash else low
        if low is None or high is None:
            raise SettingsError(
                f"not a list of vnodes: {text!r}", hint="write numbers and ranges: 0-63,128"
            )
        if low > high or high >= vnodes:
            raise SettingsError(
                f"vnodes {part.strip()!r} are not within 0 to {vnodes - 1}",
                hint="give numbers or ranges, such as 0-63,128",
            )
        wanted.update(range(low, high + 1))
    return tuple(sorted(wanted))
