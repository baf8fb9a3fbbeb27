"""What a capture has staged and not published yet: what the next try uses again, and what it gives up.

A large first capture may take longer than Spark keeps the files that it began with. It then begins again
with a newer batch; files whose names are never used twice (RocksDB's tables, files of state format 2) are
the same there, and are not uploaded again as long as the number that they were staged for is the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import parse_attempt_key


class StagedFiles:
    """Files that one run has staged for its next number. Not for two threads at once."""

    def __init__(self) -> None:
        self._number = 0
        self._refs: dict[str, ArtifactRef] = {}
        self._objects: set[str] = set()

    def begin(self, number: int, once: Set[str]) -> Mapping[str, ArtifactRef]:
        """What can be used again for ``number``, by path; ``once`` are the files that it now needs.

        What was staged for another number is that number's.
        """
        if number != self._number:
            self._number, self._refs, self._objects = number, {}, set()
        self._refs = {path: ref for path, ref in self._refs.items() if path in once}
        return self._refs

    def add(self, uploaded: Iterable[tuple[str, ArtifactRef]], once: Set[str]) -> None:
        """These files are in the store now; of ``once`` the names are never used twice.

        What an earlier checkpoint has, or the manifest itself will have, was not staged.
        """
        for path, ref in uploaded:
            parsed = None if ref.path is None else parse_attempt_key(ref.path)
            if ref.path is not None and parsed is not None and parsed[0].number == self._number:
                self._objects.add(ref.path)
                if path in once:
                    self._refs[path] = ref

    def sent(self) -> None:
        """A manifest is on its way that names some of them: it may land, so that nothing is given up."""
        self._objects = set()

    def take_unused(self) -> tuple[int, list[str]]:
        """The number, and the objects that will not be used again. Each is told once."""
        used = {ref.path for ref in self._refs.values()}
        unused = sorted(self._objects - used)
        self._objects &= used
        return self._number, unused
