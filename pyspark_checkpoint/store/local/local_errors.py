"""What the operating system's answers mean for a local store: the only translator of ``OSError``."""

from __future__ import annotations

import errno
import os
from types import TracebackType

from pyspark_checkpoint.errors import Denied, Invalid, NotFound, StoreError, Unavailable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_UNABLE = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EXDEV, errno.EMLINK}
_WRONG = {errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ}


class Translated:
    """A block whose every ``OSError`` leaves as one of our errors."""

    __slots__ = ("_key", "_root", "_verb")

    def __init__(self, verb: str, key: str, root: str) -> None:
        self._verb = verb
        self._key = key
        self._root = root

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise store_error(error, self._verb, self._key, self._root) from error


def store_error(error: OSError, verb: str, key: str, root: str) -> StoreError:
    """Say what an ``OSError`` means. A root that is a file, or below one, is never read as absence."""
    code = error.errno or 0
    says = f"{verb} {key!r} in {root}: {os.strerror(code) if code else type(error).__name__}"
    if code == errno.ENOTDIR and not os.path.isdir(root):  # noqa: PTH112
        return Invalid(says, key=key, hint="the store's root must be a directory")
    if code in _ABSENT and verb in _READS:
        return NotFound(f"no object {key!r} in {root}", key=key)
    if code in _FULL:
        return Unavailable(
            says, key=key, hint="the disk or the quota is full: free some space; nothing was left"
        )
    if code in _DENIED:
        return Denied(
            says,
            key=key,
            hint=f"the user {os.geteuid()} needs the permission, on a file system with hard links",
        )
    if code in _UNABLE:
        return Invalid(
            says,
            key=key,
            hint="the file system needs hard links and flock, with no other mounted inside the root",
        )
    if code in _WRONG:
        return Invalid(says, key=key)
    if code in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return beside(key)
    return Unavailable(says, key=key)


def beside(key: str) -> Invalid:
    """The answer to a key that is a directory of other keys, or that lies below another key."""
    return Invalid(
        f"key {key!r} and a key below it cannot exist at once",
        key=key,
        hint="a directory cannot hold both a and a/b",
    )


_READS = ("get", "read", "stream", "head", "list", "copy")
