"""The mark of a restore that is not finished: which restore it is, and which process does it.

It is written before anything else and removed after everything else. Whoever repeats an interrupted
restore takes the mark over; whether the one before is dead nobody can know, so that each looks at the mark
again before what cannot be taken back. Where a store cannot compare and swap (Hadoop's file systems, which
replace a file by deleting it first) the mark stays as it is: several share it, and the first to finish
takes it away from all.

An automatic restore is of the newest checkpoint, whichever that is. If it was interrupted, and the query
went on elsewhere, the next one begins again with a newer checkpoint, and removes what the older one wrote.
The same if its checkpoint is gone or damaged since, so that nobody can repeat it: then with an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import orjson

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import AlreadyExists, Conflict, FormatError, InUse, Invalid, NotFound
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.restorer.file_writer import is_left_over
from pyspark_checkpoint.restorer.plan import IN_USE, RESTORE_MARKER, RestorePlan, check_fresh
from pyspark_checkpoint.spark_files.location import CheckpointLocation
from pyspark_checkpoint.spark_files.names import STATE, parse_log
from pyspark_checkpoint.store.base import Version

_OF_A_REWIND = "rewind "
IsLost = Callable[[int], bool]
"""Whether the checkpoint of this number is gone or damaged: a restore of it can never be repeated."""


@dataclass(frozen=True, slots=True)
class RestoreMark:
    """What an unfinished restore says of itself. Its number is for people: content decides."""

    content_sha256: str
    query_id: str
    checkpoint_id: int
    nonce: str = ""
    """The process that does it; empty if nobody says."""
    automatic: bool = False
    """Whether nobody chose the checkpoint: it was the newest when an application began."""
    newest_step: int = -1
    """The newest step of a query that it writes, or that one before it wrote and may have left.

    A location with a later one was used since. See ``newest_step``.
    """

    @staticmethod
    def of(plan: RestorePlan, *, automatic: bool = False) -> RestoreMark:
        """The mark of this process, for what it is going to write."""
        content = orjson.dumps([[file.path, file.ref.sha256] for file in plan.files])
        return RestoreMark(
            sha256_hex(content),
            plan.query_id,
            plan.checkpoint_id,
            SYSTEM_CLOCK.nonce(),
            automatic,
            newest_step(file.path for file in plan.files),
        )

    def is_same_restore(self, other: RestoreMark) -> bool:
        """Whether both write the same, whichever process does it."""
        return (self.content_sha256, self.query_id) == (other.content_sha256, other.query_id)

    def may_replace(self, other: RestoreMark, is_lost: IsLost) -> bool:
        """Whether this restore may begin where ``other`` was interrupted, and throw away what that wrote.

        Nobody chose the checkpoint of either; the query went on elsewhere, and has a newer one since, or
        the other's checkpoint is lost.
        """
        if not (self.automatic and other.automatic and self.query_id == other.query_id):
            return False
        return self.checkpoint_id > other.checkpoint_id or is_lost(other.checkpoint_id)

    def encode(self) -> bytes:
        """As it is stored."""
        return orjson.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class InspectedLocation:
    """A location that a restore may begin or go on in, as it was found."""

    found: tuple[RestoreMark, Version] | None = None
    """The mark that is there; None if the location is fresh."""
    left_over: tuple[str, ...] = ()
    """What the one that was interrupted had half written."""
    older: tuple[str, ...] | None = None
    """What an interrupted restore of another checkpoint has written, if it is that: to be removed."""

    @property
    def resumes(self) -> bool:
        """Whether an interrupted restore goes on."""
        return self.found is not None and self.older is None


@dataclass(frozen=True, slots=True)
class RestoreLock:
    """A location that this process has marked."""

    location: CheckpointLocation
    mark: RestoreMark
    inspected: InspectedLocation

    def check(self) -> None:
        """Refused if the mark no longer is this process's. Changes nothing; one GET."""
        try:
            found = self.location.store.get(RESTORE_MARKER)
        except NotFound:
            raise InUse(
                "the mark of this restore is gone: another process finished it, or removed the location",
                hint="if the location is there, it is whole, and a query may run from it",
            ) from None
        if _decode_or_refuse(found).nonce != self.mark.nonce:
            raise InUse(
                "another process goes on with this restore",
                hint="wait for it; if it was interrupted, repeat the restore",
            )

    def forget_older(self, newest_step: int) -> None:
        """Say in the mark that nothing after ``newest_step`` is left of a restore that was replaced."""
        if self.mark.newest_step <= newest_step:
            return
        self.check()
        store, mark = self.location.store, replace(self.mark, newest_step=newest_step)
        try:
            stored = store.read(RESTORE_MARKER)
            if _decode_or_refuse(stored.data).nonce == mark.nonce:
                store.put(RESTORE_MARKER, mark.encode(), if_match=stored.version)
        except (NotFound, Conflict):
            self.check()
        except Invalid:
            pass  # it cannot be swapped here, and goes on to name the later batch

    def release(self) -> None:
        """Take the mark away, and before it what was left over when this process began."""
        self.check()
        if self.inspected.left_over:
            self.location.store.delete(self.inspected.left_over)
        self.location.store.delete([RESTORE_MARKER])


def find_interrupted(location: CheckpointLocation) -> str | None:
    """The query id of a restore into this location that was not finished; None if there is none.

    A mark that cannot be read is a ``FormatError``.
    """
    try:
        return _decode(location.store.get(RESTORE_MARKER)).query_id
    except NotFound:
        return None


def inspect_location(location: CheckpointLocation, mark: RestoreMark, is_lost: IsLost) -> InspectedLocation:
    """Find out whether ``mark``'s restore may begin or go on in a location; refused if not."""
    found = None
    try:
        stored = location.store.read(RESTORE_MARKER)
        found = _decode_or_refuse(stored.data), stored.version
    except NotFound:
        pass
    is_other = found is not None and not found[0].is_same_restore(mark)
    if found is not None and is_other and not mark.may_replace(found[0], is_lost):
        raise _interrupted(found[0])
    keys = [info.key for info in location.store.list()]
    check_fresh(keys, is_ours=found is not None)
    if found is None:
        return InspectedLocation()
    left_over = tuple(key for key in keys if is_left_over(key))
    if not is_other:
        return InspectedLocation(found, left_over)
    return InspectedLocation(
        found, left_over, _written_by(found[0], [key for key in keys if key not in left_over])
    )


def _written_by(mark: RestoreMark, keys: Sequence[str]) -> tuple[str, ...]:
    """What an interrupted restore has written, logs first: the location was fresh when it began."""
    if newest_step(keys) > mark.newest_step:
        raise used_since()
    return tuple(sorted((key for key in keys if key.startswith(IN_USE)), key=is_state))


def used_since() -> InUse:
    """The refusal of a location that somebody ran a query in although its restore was never finished."""
    return InUse(
        "the restore into this location was never finished, and a query has run there since",
        hint="restore into a fresh location",
    )


def is_state(path: str) -> bool:
    """Whether a file of a location is state, and no log."""
    return path.startswith(STATE)


def newest_step(paths: Iterable[str]) -> int:
    """How far a query is whose logs are among these paths: two steps a batch, its offsets and its commit.

    -1 if there is none.
    """
    logs = (log for path in paths if (log := parse_log(path)) is not None)
    return max((2 * batch + (name != "offsets") for name, batch in logs), default=-1)


def acquire_lock(location: CheckpointLocation, mark: RestoreMark, is_lost: IsLost) -> RestoreLock:
    """Mark a location, or take the mark of the same restore over; refused if neither is possible."""
    inspected = inspect_location(location, mark, is_lost)
    try:
        if inspected.found is not None:
            newest = max(mark.newest_step, inspected.found[0].newest_step)
            taken = _take_over(location, replace(mark, newest_step=newest), *inspected.found)
            return RestoreLock(location, taken, inspected)
        location.store.put(RESTORE_MARKER, mark.encode(), if_absent=True)
    except (AlreadyExists, Conflict):
        raise InUse(
            "another restore into this location has just begun",
            hint="wait for it, or restore into another location",
        ) from None
    return RestoreLock(location, mark, inspected)


def mark_in_use(location: CheckpointLocation, mark: RestoreMark) -> bool:
    """Mark a location that a query has used, which is to go back: until then no query starts there.

    No restore goes on with such a mark, because what lies there is the query's.

    Returns:
        Whether it was marked now; False if it was already, by the same.
    """
    ours = replace(mark, content_sha256=f"{_OF_A_REWIND}{mark.content_sha256}")
    try:
        location.store.put(RESTORE_MARKER, ours.encode(), if_absent=True)
    except AlreadyExists:
        found = _decode_or_refuse(location.store.get(RESTORE_MARKER))
        if not mark.is_same_restore(found) and not ours.is_same_restore(found):
            raise _interrupted(found) from None
        return False
    return True


def is_marked(location: CheckpointLocation, mark: RestoreMark) -> bool:
    """Whether what lies in a location was written by this restore, which is not finished."""
    try:
        return mark.is_same_restore(_decode_or_refuse(location.store.get(RESTORE_MARKER)))
    except NotFound:
        return False


def unmark(location: CheckpointLocation) -> None:
    """Take a mark away that nobody needs any more."""
    location.store.delete([RESTORE_MARKER])


def _take_over(
    location: CheckpointLocation, mark: RestoreMark, found: RestoreMark, version: Version
) -> RestoreMark:
    """Replace the mark that was found, and return the one that is there: without a gap, or not at all."""
    try:
        location.store.put(RESTORE_MARKER, mark.encode(), if_match=version)
    except Invalid:
        if not found.is_same_restore(mark):
            raise _interrupted(found) from None
        return found
    return mark


def _interrupted(found: RestoreMark) -> InUse:
    number = found.checkpoint_id
    return InUse(
        f"another restore into this location, of checkpoint {number}, was interrupted",
        hint=f"finish that one by repeating it (--at {number}), or restore into a fresh location",
    )


def _decode(data: bytes) -> RestoreMark:
    try:
        fields = orjson.loads(data)
        return RestoreMark(
            str(fields["content_sha256"]),
            str(fields["query_id"]),
            int(fields.get("checkpoint_id", 0)),
            str(fields.get("nonce", "")),
            fields.get("automatic") is True,
            int(fields.get("newest_step", -1)),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(
            f"{RESTORE_MARKER} is not what a restore writes",
            hint="a restore into this location was not finished: restore into a fresh one",
        ) from None


def _decode_or_refuse(data: bytes) -> RestoreMark:
    """A damaged mark is a problem of the location and not of the checkpoint: no other one would help."""
    try:
        return _decode(data)
    except FormatError as error:
        raise InUse(error.message, hint=error.hint) from None
