"""The steps a local store is made of: durable directories, staged files, locks on objects.

Nothing here knows keys. Every function raises plain ``OSError``."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark_checkpoint.clock import Clock

RESERVED = ".ckpt-tmp"
"""The directory for unfinished files, hidden from readers at every depth."""
STALE_SECONDS = 24 * 3600
SWEEP_SECONDS = 3600
LOCK_SECONDS = 30.0
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


def sync(fd: int) -> None:
    """Bring a file or directory to the disk itself."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync stops at the drive's cache
    if full is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, full)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd)
    finally:
        os.close(fd)


class Directories:
    """Makes directories whose names are durable, and removes those that became empty.

    Another process may have made a directory and not have synced it yet, so that each process syncs
    once for itself. What is known is known of an inode, since a directory may be removed and remade.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: dict[Path, tuple[int, int]] = {}

    def ensure(self, directory: Path) -> None:
        """Make ``directory`` and all above it, so that they survive a power cut.

        ``FileNotFoundError`` means that another has just removed one of them as empty: try again.
        """
        known = self._durable.get(directory)
        if known is not None and known == _identity(directory):
            return
        if directory != self._root and self._root in directory.parents:
            self.ensure(directory.parent)
        try:
            directory.mkdir()
        except FileNotFoundError:
            self.ensure(directory.parent)
            self.ensure(directory)
            return
        except FileExistsError:
            # Not is_dir(): one that was removed this very moment is not a file, and the caller tries again.
            if not stat.S_ISDIR(directory.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(directory)) from None
        if directory != directory.parent:
            with suppress(PermissionError):  # a parent that we may not read was not made by us
                sync_directory(directory.parent)
        identity = _identity(directory)
        if identity is not None:
            self._durable[directory] = identity

    def remove_empty(self, directory: Path) -> Path:
        """Remove ``directory`` and those above it while they are empty; return the first that stays."""
        while directory != self._root:
            try:
                directory.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break
            self._durable.pop(directory, None)
            directory = directory.parent
        return directory

    def remove_empty_tree(self, directory: Path) -> bool:
        """Remove a directory that holds nothing but directories; say whether it is gone."""
        for name, _, files in os.walk(directory, topdown=False):
            if files:
                return False
            with suppress(OSError):
                Path(name).rmdir()
                self._durable.pop(Path(name), None)
        return not directory.exists()


class StagedFile:
    """A finished file that nobody sees yet. It is on the disk; its bytes never change again."""

    def __init__(self, path: Path, fd: int, now_ns: Callable[[], int]) -> None:
        self.path = path
        self._fd = fd
        self._now_ns = now_ns

    @property
    def status(self) -> os.stat_result:
        """What the file system says of it."""
        return os.fstat(self._fd)

    def finish(self) -> None:
        """Mark it with a time of full resolution and bring it to the disk."""
        self._mark(self._now_ns())
        sync(self._fd)

    def mark_after(self, older: os.stat_result) -> None:
        """Make its time later than that of the file it replaces, however coarse the times are."""
        for step in (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000):
            if self.status.st_mtime_ns > older.st_mtime_ns:
                break
            self._mark(older.st_mtime_ns + step)
            sync(self._fd)

    def _mark(self, mtime_ns: int) -> None:
        os.utime(self._fd, ns=(mtime_ns, mtime_ns))


class Staging:
    """Where files are written before they become objects; on the file system of the root."""

    def __init__(self, root: Path, clock: Clock, now_ns: Callable[[], int]) -> None:
        self._directory = root / RESERVED
        self._clock = clock
        self._now_ns = now_ns
        self._swept_at: float | None = None

    @contextmanager
    def file(self, write: Callable[[int], None], directories: Directories) -> Iterator[StagedFile]:
        """Give a finished file that ``write`` filled; its name here is gone after the block."""
        path = self._directory / f"{self._clock.nonce()}.tmp"
        fd = self._open(path, directories)
        try:
            write(fd)
            staged = StagedFile(path, fd, self._now_ns)
            staged.finish()
            yield staged
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def _open(self, path: Path, directories: Directories) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o666)
        except FileNotFoundError:
            directories.ensure(self._directory)
            fd = os.open(path, flags, 0o666)
        self._sweep(os.fstat(fd).st_mtime)
        return fd

    def _sweep(self, now: float) -> None:
        """Remove what killed processes left. Ages are by the file system's own clock."""
        if self._swept_at is not None and now - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = now
        with suppress(OSError):  # another process sweeps as well, or we may not: nothing depends on it
            for entry in os.scandir(self._directory):
                with suppress(FileNotFoundError):
                    if entry.name.endswith(".tmp") and now - entry.stat().st_mtime > STALE_SECONDS:
                        Path(entry.path).unlink()


@contextmanager
def locked_object(path: Path, clock: Clock) -> Iterator[os.stat_result | None]:
    """Hold the object at ``path`` still: nobody else replaces or removes it within the block.

    The lock is flock(2) on the object's own inode: there is no lock file to leave behind, stores
    rooted at different depths exclude each other, and death releases it. Gives the status of the file,
    or None when there is none; then nothing is held, and only link(2) may create it.
    """
    fd = _lock(path, clock)
    if fd is None:
        yield None
        return
    try:
        yield os.fstat(fd)
    finally:
        os.close(fd)


def _lock(path: Path, clock: Clock) -> int | None:
    deadline = clock.monotonic_seconds() + LOCK_SECONDS
    while True:
        try:
            fd = _open_for_lock(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        try:
            _flock(fd, deadline, clock)
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass  # removed while we waited: look again
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _open_for_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)  # NFS locks only what is open for writing
    except PermissionError:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
    return fd


def _flock(fd: int, deadline: float, clock: Clock) -> None:
    wait = 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in _BUSY:
                raise
        if clock.monotonic_seconds() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another process holds the object's lock")
        clock.sleep(wait * (0.5 + clock.jitter()))
        wait = min(wait * 2, 0.02)


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        found = directory.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
