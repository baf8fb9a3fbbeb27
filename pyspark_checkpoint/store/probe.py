"""Does this store keep its word? A few requests that find out whether conditions are honoured.

Some servers accept ``If-None-Match`` and ``If-Match`` and ignore them. On those two drivers would
overwrite each other in silence, so that they are refused unless the user accepts that knowingly.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import AlreadyExists, Conflict, Denied, StoreError, UnsafeStore
from pyspark_checkpoint.store.base import ObjectStore, Version
from pyspark_checkpoint.store.parallel import run_bounded

PROBE_PREFIX = "_probe/"
PROBED_VARIABLE = "PYSPARK_CHECKPOINT_PROBED_"
RACERS = 8
_NO_NETWORK = ("memory://", "file://", "/")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a store did when it was asked to break its promises."""

    create_exclusive: bool
    """A second create of a key was refused, and left the first bytes."""
    create_races_exclusive: bool
    """Of several creates at once exactly one won."""
    swap_honoured: bool
    """A swap from the present version worked, one from an older version was refused."""
    swap_of_absent_refused: bool
    """A swap of a key that does not exist was refused."""
    nonce_kept: bool
    """The store says whose put made an object, so that a lost answer can be settled."""

    @property
    def conditional(self) -> bool:
        """Whether two drivers are kept apart."""
        return (
            self.create_exclusive
            and self.create_races_exclusive
            and self.swap_honoured
            and self.swap_of_absent_refused
        )


def probe_conditions(store: ObjectStore, clock: Clock = SYSTEM_CLOCK) -> ProbeResult:
    """Try every condition on fresh objects below ``_probe/``, and remove them.

    Each condition has an object of its own, so that all are tried at once.
    """
    base = f"{PROBE_PREFIX}{clock.uuid7()}"
    keys = [f"{base}-{what}" for what in ("create", "race", "swap", "absent")]
    nonce = clock.nonce()
    trials: tuple[Callable[[], tuple[bool, ...]], ...] = (
        lambda: _second_create_refused(store, keys[0], nonce),
        lambda: (_one_winner(store, keys[1]),),
        lambda: _swaps_refused(store, keys[2], keys[3]),
    )
    try:
        (create, kept), (race,), (swap, absent) = run_bounded(lambda trial: trial(), trials, len(trials))
        return ProbeResult(
            create_exclusive=create,
            create_races_exclusive=create and race,
            swap_honoured=swap,
            swap_of_absent_refused=absent,
            nonce_kept=kept,
        )
    finally:
        with suppress(Denied):  # whoever may not delete may still write safely; a few tiny objects stay
            store.delete(keys)


def require_conditional_writes(
    store: ObjectStore,
    accept_unsafe: bool = False,
    *,
    clock: Clock = SYSTEM_CLOCK,
    env: MutableMapping[str, str] | None = None,
) -> None:
    """Raise ``UnsafeStore`` unless the store honours conditions, or the user accepts that it does not.

    A bucket of a server is asked once per process tree: what was found is remembered here and, for
    processes that are started later, in the environment. A refusal is never remembered. Stores that need
    no network decide conditions by themselves and are not asked.
    """
    environment = os.environ if env is None else env
    if accept_unsafe or store.url.startswith(_NO_NETWORK):
        return
    mark = PROBED_VARIABLE + _identity(store)
    if environment.get(mark):
        return
    with _PROBE_LOCK:
        if environment.get(mark):
            return
        result = probe_conditions(store, clock)
        if not result.conditional:
            raise UnsafeStore(
                f"{store.url} does not honour conditional writes ({_broken(result)}): "
                "nothing would keep two drivers from overwriting each other",
                hint="use a store that does, or accept the risk with the option allowUnsafeStore=true",
            )
        environment[mark] = "1"


_PROBE_LOCK = threading.Lock()


def _renew_lock() -> None:
    global _PROBE_LOCK  # noqa: PLW0603
    _PROBE_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _identity(store: ObjectStore) -> str:
    """A digest of who decides conditions: a bucket. The same name at another server is another one."""
    place = urlsplit(store.url)
    bucket = f"{place.scheme}://{place.netloc}"
    return hashlib.sha256(f"{bucket}\n{store.server}".encode()).hexdigest()[:32].upper()


def _broken(result: ProbeResult) -> str:
    broken = {
        "a second create of a key succeeds": not result.create_exclusive,
        "two creates at once both succeed": not result.create_races_exclusive,
        "a swap from an outdated version succeeds": not result.swap_honoured,
        "a swap of an absent key succeeds": not result.swap_of_absent_refused,
    }
    return ", ".join(text for text, is_broken in broken.items() if is_broken)


def _second_create_refused(store: ObjectStore, key: str, nonce: str) -> tuple[bool, bool]:
    """Whether a second create is refused, and whether the store says whose put made the object."""
    store.put(key, b"first", if_absent=True, nonce=nonce)
    kept = store.head(key).nonce == nonce
    try:
        store.put(key, b"second", if_absent=True)
    except AlreadyExists:
        return store.get(key) == b"first", kept
    return False, kept


def _swaps_refused(store: ObjectStore, key: str, absent_key: str) -> tuple[bool, bool]:
    """Whether swaps from the present version alone work, and whether one of an absent key is refused."""
    first = store.put(key, b"first", if_absent=True)
    return _swap_honoured(store, key, first), _swap_of_absent_refused(store, absent_key, first)


def _swap_honoured(store: ObjectStore, key: str, first: Version) -> bool:
    present = store.head(key).version
    try:
        store.put(key, b"swapped", if_match=present)
    except Conflict:
        return False
    try:
        store.put(key, b"outdated", if_match=first)
    except Conflict:
        return store.get(key) == b"swapped"
    return False


def _swap_of_absent_refused(store: ObjectStore, key: str, version: Version) -> bool:
    try:
        store.put(key, b"absent", if_match=version)
    except Conflict:
        return True
    return False


def _one_winner(store: ObjectStore, key: str) -> bool:
    """Let several threads create one key at once: a store that looks first and then writes is found."""
    barrier = threading.Barrier(RACERS)
    winners: list[bytes] = []
    failures: list[StoreError] = []

    def create(mark: bytes) -> None:
        barrier.wait()
        try:
            store.put(key, mark, if_absent=True)
            winners.append(mark)
        except AlreadyExists:
            pass
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=create, args=(b"%d" % index,)) for index in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(winners) > 1:
        return False
    if failures:
        raise failures[0]
    return [store.get(key)] == winners
