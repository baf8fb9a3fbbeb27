"""Which files give a state store's version: the newest base at or below it, and every change after.

Pure. The traps of format version 1 are handled here: a base that maintenance made from an attempt whose
changes were rewritten later is older than the change of its own version, and is not used; unless Spark
wrote both together, the base first, as it does when column families come or go; and a version that only
a base or only a change gives is enough. Where a store's times are seconds, both may have the same: such a
base is used only if there is no other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.spark_files.names import StateFile, StateFileKind, StoreId


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a listing knows of a file. ``version`` tells files apart that have one size and one time."""

    size_bytes: int
    modified_ms: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class StateChain:
    """The files that give one version of one state store, in the order to apply them."""

    owner: StoreId
    version: int
    base: StateFile | None
    changes: tuple[StateFile, ...]

    def files(self) -> tuple[StateFile, ...]:
        """Base and changes."""
        return (self.base, *self.changes) if self.base else self.changes


class NotListed(RefusedError):
    """A file that is needed is not among those that were found: purged, or not written yet.

    Who looks too early catches this and looks again; what is wrong with a location is another error.
    """


def plan_chain(
    owner: StoreId,
    version: int,
    files: Mapping[StateFile, FileFacts],
    unique_ids: Mapping[int, str],
    together: Set[StateFile] = frozenset(),
) -> StateChain:
    """Choose the files that give ``version`` of ``owner``, or raise if they are not all there.

    ``unique_ids`` maps a version to the unique id that the commit log names for it; with format
    version 1 it is empty and every file counts. A version that no log names any more, as in a location
    that was restored, has the id that all its files have. ``together`` are the bases that were written
    with the change of their version. Version 0 is the empty store and needs no file.
    """
    by_version = _by_version(owner, files, {**_only_ids(owner, files), **unique_ids})
    for same_time in (False, True):
        chain, missing = _walk_back(owner, version, by_version, files, together, same_time=same_time)
        if missing == 0:
            return chain
    raise NotListed(
        f"version {missing} of state {owner.directory} is not in the checkpoint location",
        hint="it was purged or never written; take a newer batch",
    )


def _walk_back(
    owner: StoreId,
    version: int,
    by_version: Mapping[int, Iterable[StateFile]],
    files: Mapping[StateFile, FileFacts],
    together: Set[StateFile],
    *,
    same_time: bool,
) -> tuple[StateChain, int]:
    """The chain, and the version at which it breaks off; 0 if it does not.

    ``same_time`` takes a base also if it is not known to be later than the change of its version.
    """
    changes: list[StateFile] = []
    base: StateFile | None = None
    current = version
    while current > 0 and base is None:
        base, change = _choose(by_version.get(current, ()), files, together, same_time=same_time)
        if base is None:
            if change is None:
                break
            changes.append(change)
            current -= 1
    chain = StateChain(owner, version, base, tuple(reversed(changes)))
    return chain, 0 if base is not None else current


def _only_ids(owner: StoreId, files: Iterable[StateFile]) -> dict[int, str]:
    found: dict[int, set[str]] = {}
    for file in files:
        if file.owner == owner and file.uid is not None:
            found.setdefault(file.version, set()).add(file.uid)
    return {version: ids.pop() for version, ids in found.items() if len(ids) == 1}


def doubtful_bases(version: int, files: Mapping[StateFile, FileFacts]) -> tuple[StateFile, ...]:
    """The RocksDB snapshots up to ``version`` that are not later than the change of their version.

    What they hold decides: see ``written_together``.
    """
    changes = {file.version: fact for file, fact in files.items() if not file.kind.is_base}
    return tuple(
        file
        for file, fact in files.items()
        if file.kind is StateFileKind.ZIP
        and file.uid is None
        and file.version <= version
        and file.version in changes
        and fact.modified_ms <= changes[file.version].modified_ms
    )


def written_together(
    families: Mapping[StateFile, Set[str]], doubtful: Iterable[StateFile]
) -> set[StateFile]:
    """Which of the doubtful snapshots Spark wrote in the very commit that wrote the change after them.

    It does so when the column families of a store differ from those of the version before, and does it
    again if the batch runs again, so such a snapshot is never stale; and no change can be applied
    without it. ``families`` has those of the doubtful snapshots, and of the ones before them, of a store.
    """
    found: set[StateFile] = set()
    for file in doubtful:
        earlier = [other for other in families if other.version < file.version]
        before = families[max(earlier, key=lambda other: other.version)] if earlier else frozenset()
        if families[file] != before:
            found.add(file)
    return found


def _by_version(
    owner: StoreId, files: Iterable[StateFile], unique_ids: Mapping[int, str]
) -> dict[int, list[StateFile]]:
    found: dict[int, list[StateFile]] = {}
    for file in files:
        wanted = unique_ids.get(file.version)
        if file.owner == owner and (file.uid is None or file.uid == wanted):
            found.setdefault(file.version, []).append(file)
    return found


def _choose(
    candidates: Iterable[StateFile],
    files: Mapping[StateFile, FileFacts],
    together: Set[StateFile],
    *,
    same_time: bool,
) -> tuple[StateFile | None, StateFile | None]:
    base = next((file for file in candidates if file.kind.is_base), None)
    change = next((file for file in candidates if not file.kind.is_base), None)
    if base is None or change is None or base.uid is not None or base in together:
        return base, change
    later_ms = files[base].modified_ms - files[change].modified_ms
    is_fresh = later_ms >= 0 if same_time else later_ms > 0
    return (base if is_fresh else None), change
