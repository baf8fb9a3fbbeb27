"""Idempotent writes from ``foreachBatch``: an application id that follows the lineage of a query.

Delta drops a write whose ``txnVersion`` is not above the newest one of its ``txnAppId``, whatever rows are
in it. With a fixed id that is right for a batch that Spark repeats with the same offsets after a crash, and
loses rows after a restore, which plans other batches under the same numbers. So each restore begins a
lineage, which is part of the id:

1. A restore notes in the checkpoint location from which batch on the numbers are used anew, with a random
   token: the batch after the newest one whose offsets it has written. It does so before it writes
   ``commits``, and each time that it is repeated; what an attempt before it has noted is replaced.
2. The note is a file of the location like Spark's own: captured with each checkpoint, restored with it.
3. The id of a batch is the query's id, and the token of the newest lineage that begins at or before it.

So it is a pure function of what is in the location: the same for each repetition of a batch, and another
one for a batch that was planned anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import FormatError, NotFound
from pyspark_checkpoint.spark_files.names import LINEAGE
from pyspark_checkpoint.store.base import ObjectStore

MAX_LINEAGES = 8
"""So many are kept, the newest: Spark repeats no batch but the newest one that it has planned."""
MAX_LINEAGE_BYTES = 64 << 10
_VERSION = 1
_TOKEN = re.compile(r"[0-9a-f]{32}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class LineageStart:
    """What a restore has begun: from ``first_batch`` on, batches are other ones than before it."""

    first_batch: int
    token: str


def begin_lineage(
    location: ObjectStore, first_batch: int, *, is_restored: bool, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Note in a location that is being restored from which batch on Spark plans anew.

    Args:
        location: The store of the checkpoint location.
        first_batch: The batch after the newest one whose offsets the restore has written.
        is_restored: Whether the restored checkpoint has such a file, which is in the location by now. If it
            has not, one that is there is of another attempt.
        clock: Where the token comes from.
    """
    known = read_lineages(location) if is_restored else ()
    kept = [one for one in known if one.first_batch < first_batch]
    location.put(LINEAGE, encode_lineages([*kept, LineageStart(first_batch, clock.nonce())]))


def read_lineages(location: ObjectStore) -> tuple[LineageStart, ...]:
    """What restores have noted in a location, the oldest first; nothing if it was never restored."""
    try:
        return decode_lineages(location.read(LINEAGE, max_bytes=MAX_LINEAGE_BYTES).data)
    except NotFound:
        return ()


def application_id(query_id: str, batch_id: int, lineages: Sequence[LineageStart]) -> str:
    """Under which id a batch is written: the query's own until it is restored for the first time."""
    tokens = [one.token for one in lineages if one.first_batch <= batch_id]
    return f"{query_id}:{tokens[-1]}" if tokens else query_id


def encode_lineages(lineages: Sequence[LineageStart]) -> bytes:
    """As they are stored."""
    newest = [asdict(one) for one in lineages[-MAX_LINEAGES:]]
    return orjson.dumps({"version": _VERSION, "lineages": newest})


def decode_lineages(data: bytes) -> tuple[LineageStart, ...]:
    """The reverse; refused is what is no such file."""
    try:
        fields = orjson.loads(data)
        found = tuple(LineageStart(one["first_batch"], one["token"]) for one in fields["lineages"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise _damaged() from None
    numbers = [one.first_batch for one in found]
    is_sound = (
        fields.get("version") == _VERSION
        and all(type(number) is int and number >= 0 for number in numbers)
        and all(isinstance(one.token, str) and _TOKEN.match(one.token) for one in found)
    )
    if not is_sound or numbers != sorted(set(numbers)):
        raise _damaged()
    return found


def _damaged() -> FormatError:
    return FormatError(
        f"{LINEAGE} is not what a restore writes",
        hint="restore the checkpoint location again; without the file, batches that Delta has would be "
        "dropped or written twice",
    )
