"""The contract of an object store. Backends keep it; everything else relies on nothing more.

A store holds immutable byte strings under keys, below one prefix of one bucket, container or
directory. What follows is what every backend must promise; ``tests/contract`` checks it.

* **Atomic.** A key holds the whole bytes of one finished put, or is absent. No reader ever sees a
  part of a put; a put that failed with anything but ``OutcomeUnknown`` has left nothing.
* **Durable.** When ``put`` returns, the bytes survive the death of this process and machine.
* **Read after write.** A ``get``, ``head`` or ``list`` that starts after a put, copy or delete
  returned sees its effect.
* **Conditional.** ``if_absent`` and ``if_match`` are decided by the store itself, atomically, among
  any number of threads, processes and machines: exactly one creator of a key wins.
* **Honest.** "Lost the race" (``AlreadyExists``, ``Conflict``), "nothing happened" (``Unavailable``)
  and "nobody knows" (``OutcomeUnknown``) are three different answers. A backend makes one attempt
  and never retries a conditional put by itself; ``store.retry`` does that, with the nonce.
* **Translated.** Only errors of ``pyspark_checkpoint.errors`` leave a store.
* **Shared.** A store may be used by many threads at once, and after a fork.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TypeVar

from pyspark_checkpoint.errors import Invalid

T = TypeVar("T")
Body = bytes | bytearray | memoryview | IO[bytes]
"""What ``put`` takes. A file must be seekable; it is read from its current position to its end."""

MAX_KEY_BYTES = 900
CHUNK_BYTES = 8 * 1024 * 1024

# Most keys, at a tenth of what looking at every rule costs, which a read from a disk would feel.
_PLAIN_SEGMENT = r"[A-Za-z0-9_=-](?:[A-Za-z0-9_.=-]{0,253}[A-Za-z0-9_=-])?"
_PLAIN_KEY = re.compile(f"{_PLAIN_SEGMENT}(?:/{_PLAIN_SEGMENT})*")


@dataclass(frozen=True, slots=True)
class Version:
    """What a compare-and-swap compares. Opaque; equal only if the object was not replaced since.

    On S3 a version is the ETag, so replacing an object by the same bytes may give an equal version.
    Objects that are swapped carry a counter for that reason.
    """

    token: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    key: str
    size_bytes: int
    version: Version
    modified_ms: int
    nonce: str | None = None
    """The nonce given to the put that made it. ``list`` and the local disk do not know it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes together with the version they had when they were read."""

    data: bytes
    version: Version


class ObjectStore(abc.ABC):
    """One prefix of one bucket, container or directory. See the module for what it promises."""

    url: str
    """Where this store is, as a user would type it; never with credentials."""

    @property
    def server(self) -> str:
        """The address that requests go to, without credentials; empty for a store without a server.

        Two stores are the same only if both ``url`` and ``server`` are equal: one bucket name may exist
        at several endpoints. Makes the client if there is none yet; sends nothing.
        """
        return ""

    @abc.abstractmethod
    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        """Store ``data`` under ``key`` and return its version.

        With ``if_absent`` only if the key is absent (``AlreadyExists`` otherwise); with ``if_match``
        only if the key still has that version (``Conflict`` otherwise, also when it is absent); with
        neither it replaces whatever is there. Both together are ``Invalid``. ``nonce`` is kept with
        the object where the store can, and given back by ``head``; it proves whose put landed.

        Large bodies go up in parts with bounded memory; a failed one leaves no object and no parts.
        The server checks a digest of the bytes (``ChecksumRefused``, and nothing is stored).
        ``Unavailable`` means that nothing was written by this call; when that is not certain, the
        answer is ``OutcomeUnknown``, for plain puts too.
        """

    @abc.abstractmethod
    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        """Return the whole object and its version, from one request, so that they belong together.

        An object of more than ``max_bytes`` is ``TooLarge``, and its bytes are not gathered in memory.
        """

    @abc.abstractmethod
    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes ``[start, end)`` of an object, the whole of it by default.

        A range is cut at the object's end, as slicing does, except that a ``start`` beyond the end
        is ``Invalid``. A body that arrives short is an error, never a short answer.
        """

    @abc.abstractmethod
    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the whole object in order, with memory bounded by a few chunks.

        All chunks are of one version: an object replaced meanwhile is an error (``Conflict``).
        """

    @abc.abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return what is known of ``key``, or raise ``NotFound``."""

    @abc.abstractmethod
    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with ``prefix``, in the order of the keys' UTF-8 bytes.

        ``prefix`` is plain text, not a directory: ``"a/b"`` finds ``a/bc`` as well. Pages are fetched
        as the iterator advances. ``start_after`` leaves out keys up to and including itself.
        """

    @abc.abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove keys, any number of them. Absent ones are fine. On an error some may be gone."""

    @abc.abstractmethod
    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        """Copy within the store, by the server where it can, without the bytes passing through here."""

    def close(self) -> None:  # noqa: B027 - a store without connections has nothing to release
        """Release connections. A store that was closed may be used again; it reconnects."""


class WrappedStore(ObjectStore):
    """A store that holds a store: verbs pass through ``_call``, iterators through ``_items``."""

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self.inner = store

    @abc.abstractmethod
    def _call(self, verb: str, key: str, effect: Callable[[], T]) -> T:
        """Carry out ``effect``, which asks the store within; ``key`` is empty where there are several."""

    @abc.abstractmethod
    def _items(self, verb: str, key: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield what the iterator of the store within yields, which ``begin`` makes."""

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        return self._call(
            "put",
            key,
            lambda: self.inner.put(key, data, if_absent=if_absent, if_match=if_match, nonce=nonce),
        )

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        return self._call("read", key, lambda: self.inner.read(key, max_bytes=max_bytes))

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        return self._call("get", key, lambda: self.inner.get(key, start=start, end=end))

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        return self._items("stream", key, lambda: self.inner.stream(key, chunk_bytes=chunk_bytes))

    def head(self, key: str) -> ObjectInfo:
        return self._call("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self._items("list", prefix, lambda: self.inner.list(prefix, start_after=start_after))

    def delete(self, keys: Iterable[str]) -> None:
        batch = tuple(keys)
        self._call("delete", "", lambda: self.inner.delete(batch))

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        return self._call(
            "copy", target_key, lambda: self.inner.copy(source_key, target_key, if_absent=if_absent)
        )

    @property
    def server(self) -> str:
        return self.inner.server

    def close(self) -> None:
        self.inner.close()


def check_key(key: str) -> str:
    """Return ``key`` if every backend can hold it, else raise ``Invalid``.

    The rule is the strictest of all services, so that a store can be copied anywhere: non-empty
    segments between slashes, none of them ``.`` or ``..``, no control characters, no backslash,
    no lone surrogates, no trailing dot (Azure), a segment of at most 255 bytes (disks), at most 900 in all.
    """
    if len(key) <= MAX_KEY_BYTES and _PLAIN_KEY.fullmatch(key):
        return key
    try:
        encoded = key.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid("a key must be valid unicode", key=repr(key)) from None
    if not encoded or len(encoded) > MAX_KEY_BYTES:
        raise Invalid(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(encoded)}", key=key[:80])
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise Invalid(f"key {key!r} has a segment {segment!r}", key=key)
        if len(segment.encode("utf-8")) > 255:
            raise Invalid(f"key {key[:80]!r}... has a segment of over 255 bytes", key=key)
        if segment.endswith("."):
            raise Invalid(f"key {key!r} has a segment that ends with a dot", key=key)
    if "\\" in key or any(ord(c) < 32 or ord(c) == 127 for c in key):
        raise Invalid(f"key {key!r} has a backslash or a control character", key=key)
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if some key can begin with it, else raise ``Invalid``."""
    if prefix:
        try:
            check_key(prefix)
        except Invalid:
            check_key(f"{prefix}x")  # it may end with a slash or a dot, as long as a key can go on
    return prefix


def check_conditions(if_absent: bool, if_match: Version | None) -> None:
    """Refuse a put that asks for both conditions."""
    if if_absent and if_match is not None:
        raise Invalid("put takes if_absent or if_match, not both")


def check_range(start: int | None, end: int | None) -> tuple[int, int | None]:
    """Return the range with its default start; refuse negative and backward ones."""
    begin = 0 if start is None else start
    if begin < 0 or (end is not None and end < begin):
        raise Invalid(f"not a range: {start} to {end}")
    return begin, end
