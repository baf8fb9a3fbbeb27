"""A store in a directory, on a local disk or one that many machines mount.

* A put writes a file of its own in a reserved directory, brings it to the disk, and only then gives it
  its name: by link(2), which one alone can win, or by rename(2) over the object it replaces. The
  directory is brought to the disk before success. A process that is killed leaves either the whole
  object or none, and a file in the reserved directory that is swept after a day.
* Replacing and deleting hold flock(2) on the object they replace or delete.
* A version is the file's time in nanoseconds, its inode and its size. The time is set by us and rises
  with every replacement.
* Reading needs no permission to write."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.clock import now_ns as system_now_ns
from pyspark_checkpoint.errors import AlreadyExists, Conflict, Invalid, OutcomeUnknown, Unavailable
from pyspark_checkpoint.store.base import (
    CHUNK_BYTES,
    Body,
    ObjectInfo,
    ObjectStore,
    Stored,
    Version,
    check_conditions,
    check_key,
    check_prefix,
    check_range,
)
from pyspark_checkpoint.store.body import body_chunks
from pyspark_checkpoint.store.local.local_errors import Translated, beside
from pyspark_checkpoint.store.local.local_files import (
    RESERVED,
    Directories,
    StagedFile,
    Staging,
    locked_object,
    sync_directory,
)
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.url import local_url

_LOST_AND_FOUND = "lost+found"
"""What the root of a file system has, as a rule for root alone. No object is there."""


def walk_keys(root: str, prefix: str, start_after: str | None) -> Iterator[tuple[str, os.stat_result]]:
    """Yield key and status of every object below ``root`` that begins with ``prefix``, in order.

    A directory sorts as its name with a slash, so that ``a-b`` comes before ``a/b`` and that before
    ``a0``: with that, the order within each directory is the order of the whole keys. Directories
    outside the prefix, or wholly at or before ``start_after``, are not entered.
    """
    after = (start_after or "").encode()
    below = prefix.rpartition("/")[0]
    if RESERVED in below.split("/"):
        return
    yield from _walk(os.path.join(root, below), f"{below}/" if below else "", prefix, after)  # noqa: PTH118


def _walk(directory: str, below: str, prefix: str, after: bytes) -> Iterator[tuple[str, os.stat_result]]:
    for is_directory, entry in _entries(directory):
        key = below + entry.name
        if is_directory:
            inside = f"{key}/"
            if _may_hold(inside, prefix) and not _wholly_before(inside.encode(), after):
                yield from _walk(entry.path, inside, prefix, after)
        elif key.startswith(prefix) and key.encode() > after:
            try:
                yield key, entry.stat()
            except FileNotFoundError:
                continue  # deleted since


def _entries(directory: str) -> list[tuple[bool, os.DirEntry[str]]]:
    try:
        with os.scandir(directory) as scan:
            found = [(entry.is_dir(), entry) for entry in scan if _is_ours(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        if os.path.basename(directory) != _LOST_AND_FOUND:  # noqa: PTH119 - as fast as a listing can be
            raise
        return []
    return sorted(found, key=lambda item: item[1].name.encode() + (b"/" if item[0] else b""))


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Leave out unfinished files, devices, and names that no key can have."""
    try:
        check_key(entry.name)
    except Invalid:
        return False
    return entry.name != RESERVED and (entry.is_dir() or entry.is_file())


def _may_hold(inside: str, prefix: str) -> bool:
    return inside.startswith(prefix) or prefix.startswith(inside)


def _wholly_before(inside: bytes, after: bytes) -> bool:
    return inside < after and not after.startswith(inside)


_COPY_FALLBACK = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM)
_ATTEMPTS = 1000


class LocalStore(ObjectStore):
    """Objects as files below ``root``, which the first put makes."""

    def __init__(
        self, root: Path, *, clock: Clock = SYSTEM_CLOCK, now_ns: Callable[[], int] = system_now_ns
    ) -> None:
        self._root = root.absolute()
        self._root_text = str(self._root)
        self.url = local_url(self._root)
        self._clock = clock
        self._directories = Directories(self._root)
        self._staging = Staging(self._root, clock, now_ns)

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,  # noqa: ARG002
    ) -> Version:
        path = self._path(key)
        check_conditions(if_absent, if_match)

        def write(fd: int) -> None:
            for chunk in body_chunks(data):
                _write_all(fd, chunk)

        return self._put(key, path, write, if_absent, if_match)

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        with self._translated("read", key), _OpenObject(self._file(key)) as (fd, found):
            if max_bytes is not None and found.st_size > max_bytes:
                raise Call(self.url, "read", key).too_large(found.st_size, max_bytes)
            return Stored(_read_range(fd, 0, found.st_size, key), _version(found))

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        begin, stop = check_range(start, end)
        with self._translated("get", key), _OpenObject(self._file(key)) as (fd, found):
            if begin > found.st_size:
                raise Invalid(f"range from {begin} of {found.st_size} bytes", key=key)
            return _read_range(fd, begin, found.st_size if stop is None else min(stop, found.st_size), key)

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        with self._translated("stream", key), _OpenObject(self._file(key)) as (fd, found):
            for start in range(0, found.st_size, chunk_bytes):
                yield _read_range(fd, start, min(start + chunk_bytes, found.st_size), key)

    def head(self, key: str) -> ObjectInfo:
        with self._translated("head", key):
            found = self._path(key).stat()
            if not stat.S_ISREG(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "not an object")
            return _info(key, found)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._translated("list", prefix):
            for key, found in walk_keys(str(self._root), prefix, start_after):
                yield _info(key, found)

    def delete(self, keys: Iterable[str]) -> None:
        parents: dict[Path, str] = {}
        for key in keys:
            path = self._path(key)
            with self._translated("delete", key), locked_object(path, self._clock) as current:
                if current is not None:
                    path.unlink()
                    parents[path.parent] = key
        for parent, key in parents.items():
            with self._translated("delete", key):
                self._sync(self._directories.remove_empty(parent))

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        path = self._path(target_key)
        with self._translated("copy", source_key), _OpenObject(self._file(source_key)) as (source, found):
            return self._put(
                target_key, path, lambda fd: _copy_all(source, fd, found.st_size), if_absent, None
            )

    def _put(
        self,
        key: str,
        path: Path,
        write: Callable[[int], None],
        if_absent: bool,
        if_match: Version | None,
    ) -> Version:
        with self._translated("put", key):
            with self._staging.file(write, self._directories) as staged:
                if if_absent:
                    if not self._create(key, path, staged):
                        raise AlreadyExists(f"key {key!r} exists", key=key)
                else:
                    self._replace(key, path, staged, if_match)
                version = _version(staged.status)
            try:
                self._sync(path.parent)
            except OSError as error:
                raise OutcomeUnknown(
                    f"put {key!r}: the object is there but its directory cannot be synced", key=key
                ) from error
        return version

    def _create(self, key: str, path: Path, staged: StagedFile) -> bool:
        """Give a staged file its name if nobody has it; say whether we won."""
        for _ in range(_ATTEMPTS):
            try:
                self._directories.ensure(path.parent)
                rival = _link(staged, path)
                if rival is None:
                    return True
                if not stat.S_ISDIR(rival.st_mode):
                    return False
                if not self._directories.remove_empty_tree(path):
                    raise beside(key)
            except FileNotFoundError:
                if not staged.path.exists():
                    break
                # Whoever deleted the last object of the directory has removed it: make it again.
            except OSError:
                self._directories.remove_empty(path.parent)
                raise
        raise Unavailable(
            f"put {key!r}: gave up after {_ATTEMPTS} tries, others remove its directory or the staged file",
            key=key,
        )

    def _replace(self, key: str, path: Path, staged: StagedFile, if_match: Version | None) -> None:
        """Give a staged file its name whatever is there, or only if ``if_match`` is."""
        while True:
            if if_match is None and self._create(key, path, staged):
                return  # most keys are new, and then there is nothing to lock
            with locked_object(path, self._clock) as current:
                if if_match is not None and (current is None or _version(current) != if_match):
                    raise Conflict(f"key {key!r} has another version than the expected one", key=key)
                if current is not None:
                    staged.mark_after(current)
                    _rename(staged, path)
                    return

    def _sync(self, directory: Path) -> None:
        """Bring names to the disk; a directory that was removed since, with all its objects, has none."""
        with suppress(FileNotFoundError):
            sync_directory(directory)

    def _path(self, key: str) -> Path:
        check_key(key)
        if RESERVED in key.split("/"):
            raise Invalid(f"key {key!r} has the reserved segment {RESERVED}", key=key)
        return self._root / key

    def _file(self, key: str) -> str:
        """The same as text, which costs a small read much less than a ``Path`` does."""
        check_key(key)
        if RESERVED in key:
            self._path(key)
        return f"{self._root_text}/{key}"

    def _translated(self, verb: str, key: str) -> Translated:
        return Translated(verb, key, self._root_text)


class _OpenObject:
    """An object open for reading. Its file never changes, so that everything read is of one version."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> tuple[int, os.stat_result]:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._fd)
            raise IsADirectoryError(errno.EISDIR, "not an object")
        return self._fd, found

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _read_range(fd: int, start: int, end: int, key: str) -> bytes:
    parts: list[bytes] = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            raise Unavailable(f"object {key!r} is shorter than its size", key=key)
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write_all(fd: int, chunk: memoryview | bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]


def _copy_all(source: int, target: int, size_bytes: int) -> None:
    """Copy by the kernel, or by the file server, where it can."""
    done = 0
    while done < size_bytes:
        try:
            copied = os.copy_file_range(source, target, size_bytes - done, done)
        except (OSError, AttributeError) as error:
            if isinstance(error, OSError) and error.errno not in _COPY_FALLBACK:
                raise
            copied = 0
        if not copied:
            _write_all(target, _read_range(source, done, min(done + CHUNK_BYTES, size_bytes), "source"))
            copied = min(CHUNK_BYTES, size_bytes - done)
        done += copied


def _link(staged: StagedFile, path: Path) -> os.stat_result | None:
    """Give a staged file a second name; return the status of what has that name instead, if so."""
    try:
        os.link(staged.path, path)
        return None
    except FileExistsError:
        found = path.stat()
    # Ours: on NFS the first answer can be lost, and then the client asks again.
    return None if os.path.samestat(found, staged.status) else found


def _rename(staged: StagedFile, path: Path) -> None:
    try:
        staged.path.rename(path)
    except OSError:
        if not _is_same(path, staged):  # as with link: on NFS a lost answer looks like a failure
            raise


def _is_same(path: Path, staged: StagedFile) -> bool:
    try:
        return os.path.samestat(path.stat(), staged.status)
    except FileNotFoundError:
        return False


def _version(found: os.stat_result) -> Version:
    return Version(f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}")


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, _version(found), found.st_mtime_ns // 1_000_000)
