"""Retrying: what is repeated, how long, and what is never guessed about a conditional put."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_checkpoint.errors import (
    AlreadyExists,
    ChecksumRefused,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.store.base import Version
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.retry import RetryingStore
from pyspark_checkpoint.store.settings import RetrySettings
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.scripted_store import BUSY, NOT_SENT, Scripted, Step, before, fails, lost, lost_then, ok

FIRST_NONCE = ManualClock().nonce()


def retrying(store: Scripted, **settings: float) -> tuple[RetryingStore, ManualClock]:
    clock = ManualClock(jitter=1.0)
    return RetryingStore(store, RetrySettings(**settings), clock), clock


# --- waits ---------------------------------------------------------------------------------------


def test_waits_grow_and_end_at_the_limit() -> None:
    """Each wait doubles up to the largest; none begins that would end after the limit."""
    store, clock = retrying(Scripted(puts=[BUSY] * 100))
    with pytest.raises(Unavailable):
        store.put("k", b"x")
    assert clock.slept[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert max(clock.slept) == 5.0
    assert 25 < sum(clock.slept) <= 30


def test_the_server_says_how_long_to_wait() -> None:
    """retry_after_seconds is honoured, and beyond the limit the error comes at once."""
    asks = fails(Unavailable("slow down", retry_after_seconds=7.0))
    store, clock = retrying(Scripted(puts=[asks]))
    store.put("k", b"x")
    assert clock.slept == [7.0]
    store, clock = retrying(Scripted(puts=[fails(Unavailable("later", retry_after_seconds=60.0))]))
    with pytest.raises(Unavailable):
        store.put("k", b"x")
    assert clock.slept == []


def test_no_time_means_one_attempt() -> None:
    """retrySeconds = 0 turns retrying off."""
    inner = Scripted(puts=[BUSY])
    store, _ = retrying(inner, limit_seconds=0)
    with pytest.raises(Unavailable):
        store.put("k", b"x")
    assert inner.calls == ["put"]


@pytest.mark.parametrize("kind", [Denied, Invalid, NotFound, AlreadyExists, Conflict])
def test_what_the_store_has_decided_is_not_repeated(kind: type[StoreError]) -> None:
    """Permission errors, bad requests, absence and lost races are answers."""
    for condition in ({}, {"if_absent": True}, {"if_match": Version("1")}):
        inner = Scripted(puts=[fails(kind("decided"))])
        store, clock = retrying(inner)
        with pytest.raises(kind):
            store.put("k", b"x", **condition)
        assert (inner.calls, clock.slept) == (["put"], [])


def test_damaged_bytes_are_sent_again_but_not_for_ever() -> None:
    """A bit flipped once is repaired by a repetition; always flipped is an error after three."""
    store, _ = retrying(Scripted(puts=[fails(ChecksumRefused("flipped"))]))
    store.put("k", b"x", if_absent=True)
    inner = Scripted(puts=[fails(ChecksumRefused("flipped"))] * 10)
    store, _ = retrying(inner)
    with pytest.raises(ChecksumRefused):
        store.put("k", b"x")
    assert len(inner.calls) == 3


def test_a_file_is_sent_whole_each_time() -> None:
    """Every attempt begins where the file stood."""
    body = io.BytesIO(b"skipped-body")
    body.seek(8)
    inner = Scripted(puts=[BUSY, NOT_SENT])
    store, _ = retrying(inner)
    store.put("k", body, if_absent=True)
    assert inner.bodies == [b"body"] * 3
    assert inner.get("k") == b"body"


# --- nonces --------------------------------------------------------------------------------------


def test_a_conditional_put_gets_a_nonce_and_keeps_it() -> None:
    """Ours if the caller gave none; the same for every attempt; none for a plain put."""
    inner = Scripted(puts=[NOT_SENT, BUSY])
    store, _ = retrying(inner)
    store.put("k", b"x", if_absent=True)
    assert inner.nonces == [FIRST_NONCE] * 3
    store.put("k", b"y", if_match=inner.head("k").version, nonce="mine")
    store.put("k", b"z")
    assert inner.nonces[3:] == ["mine", None]


# --- create --------------------------------------------------------------------------------------


def test_a_lost_answer_to_our_create_is_success() -> None:
    """The object has our nonce: it is ours, with its version."""
    inner = Scripted(puts=[lost])
    store, _ = retrying(inner)
    assert store.put("k", b"x", if_absent=True) == inner.head("k").version
    assert inner.calls[:2] == ["put", "head"]


def test_a_lost_create_is_repeated_while_the_key_is_absent() -> None:
    """Absence proves nothing, but repeating with the same nonce is safe."""
    inner = Scripted(puts=[NOT_SENT, NOT_SENT])
    store, _ = retrying(inner)
    store.put("k", b"x", if_absent=True)
    assert inner.calls == ["put", "head", "put", "head", "put"]
    assert inner.head("k").nonce == FIRST_NONCE


def test_a_lost_create_that_lost_the_race_says_so() -> None:
    """Another nonce is there: the key was taken by another put, whatever its bytes are."""
    store, _ = retrying(Scripted(puts=[before(lambda s: s.other_puts(b"x"))]))
    with pytest.raises(AlreadyExists):
        store.put("k", b"x", if_absent=True)


def test_our_own_first_attempt_is_not_taken_for_a_rival() -> None:
    """It lands after the look-up, the repetition finds it: that is success, not a lost race."""

    def lands_late(store: Scripted, effect: Callable[[], Any]) -> Any:
        MemoryStore.put(store, "k", b"x", if_absent=True, nonce=FIRST_NONCE)
        return effect()

    inner = Scripted(puts=[NOT_SENT, lands_late])
    store, _ = retrying(inner)
    assert store.put("k", b"x", if_absent=True) == inner.head("k").version
    assert inner.calls[:4] == ["put", "head", "put", "head"]


def test_a_store_without_nonces_leaves_it_unknown() -> None:
    """Equal bytes prove nothing."""
    inner = Scripted(puts=[lost])
    inner.forgets_nonces = True
    store, _ = retrying(inner)
    with pytest.raises(OutcomeUnknown):
        store.put("k", b"x", if_absent=True)


def test_a_failed_look_up_is_not_taken_for_absence() -> None:
    """Unavailable on the look-up: repeat the put and look again. Denied: nobody knows."""
    inner = Scripted(puts=[lost], heads=[BUSY])
    store, _ = retrying(inner)
    store.put("k", b"x", if_absent=True)
    assert inner.calls == ["put", "head", "put", "head"]
    store, _ = retrying(Scripted(puts=[lost], heads=[fails(Denied("no"))]))
    with pytest.raises(OutcomeUnknown):
        store.put("k", b"x", if_absent=True)


@pytest.mark.parametrize("later", [[BUSY] * 99, [NOT_SENT] * 99, [fails(Denied("expired"))]])
def test_unknown_outweighs_every_later_failure(later: list[Step]) -> None:
    """Once one attempt may have landed, the end is OutcomeUnknown, not the last error."""
    for condition in ({"if_absent": True}, {}):
        store, _ = retrying(Scripted(puts=[NOT_SENT, *later]))
        with pytest.raises(OutcomeUnknown):
            store.put("k", b"x", **condition)  # type: ignore[arg-type]


def test_unavailable_before_a_lost_race_does_not_blur_it() -> None:
    """Unavailable means that nothing was written: a later AlreadyExists is definite."""
    inner = Scripted(puts=[BUSY, ok])
    inner.other_puts(b"theirs")
    store, _ = retrying(inner)
    with pytest.raises(AlreadyExists):
        store.put("k", b"x", if_absent=True)
    assert inner.calls == ["put", "put"]


# --- swap ----------------------------------------------------------------------------------------


def test_a_lost_answer_to_our_swap_is_success() -> None:
    """Our nonce is there."""
    inner = Scripted(puts=[lost])
    version = inner.other_puts(b"0")
    store, _ = retrying(inner)
    assert store.put("k", b"1", if_match=version) == inner.head("k").version
    assert inner.get("k") == b"1"


def test_a_lost_swap_is_repeated_while_the_version_is_the_expected_one() -> None:
    """Nothing has happened yet: the same put again."""
    inner = Scripted(puts=[NOT_SENT])
    version = inner.other_puts(b"0")
    store, _ = retrying(inner)
    store.put("k", b"1", if_match=version)
    assert inner.get("k") == b"1"


def test_a_lost_swap_is_never_a_conflict() -> None:
    """Ours may have landed and have been replaced: another version, or none, is OutcomeUnknown."""
    for action in (lambda s: s.other_puts(b"2"), lambda s: s.delete(["k"])):
        inner = Scripted(puts=[lost_then(action)])
        version = inner.other_puts(b"0")
        store, _ = retrying(inner)
        with pytest.raises(OutcomeUnknown):
            store.put("k", b"1", if_match=version)


def test_a_conflict_after_an_unknown_attempt_is_looked_at() -> None:
    """The repetition meets our own late first attempt: success. It meets another's: unknown."""

    def ours_lands_late(store: Scripted, effect: Callable[[], Any]) -> Any:
        MemoryStore.put(store, "k", b"1", nonce=FIRST_NONCE)
        return effect()

    def theirs_lands(store: Scripted, effect: Callable[[], Any]) -> Any:
        store.other_puts(b"2")
        return effect()

    inner = Scripted(puts=[NOT_SENT, ours_lands_late])
    version = inner.other_puts(b"0")
    store, _ = retrying(inner)
    assert store.put("k", b"1", if_match=version) == inner.head("k").version
    inner = Scripted(puts=[NOT_SENT, theirs_lands])
    version = inner.other_puts(b"0")
    store, _ = retrying(inner)
    with pytest.raises(OutcomeUnknown):
        store.put("k", b"1", if_match=version)


def test_a_conflict_at_once_is_definite() -> None:
    """No attempt was unknown: the swap lost, and nothing is looked up."""
    inner = Scripted()
    old = inner.other_puts(b"0")
    inner.other_puts(b"1")
    store, _ = retrying(inner)
    with pytest.raises(Conflict):
        store.put("k", b"2", if_match=old)
    assert inner.calls == ["put"]


# --- the other verbs -----------------------------------------------------------------------------


def test_a_plain_put_is_repeated_when_unknown() -> None:
    """Putting the same bytes twice is the same as once."""
    inner = Scripted(puts=[lost, NOT_SENT])
    store, _ = retrying(inner)
    store.put("k", b"x")
    assert inner.calls == ["put"] * 3


class Flaky(MemoryStore):
    """Fails each verb as often as told, before or in the middle."""

    def __init__(self, error: StoreError, times: int, after_items: int = 0) -> None:
        super().__init__()
        self.left = times
        self.error = error
        self.after_items = after_items

    def _maybe(self) -> None:
        if self.left:
            self.left -= 1
            raise self.error

    def get(self, key: str, **range_: Any) -> bytes:
        self._maybe()
        return super().get(key, **range_)

    def delete(self, keys: Any) -> None:
        self._maybe()
        super().delete(keys)

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        self._maybe()
        return super().copy(source_key, target_key, if_absent=if_absent)

    def stream(self, key: str, **chunks: Any) -> Any:
        for index, chunk in enumerate(super().stream(key, **chunks)):
            if index == self.after_items:
                self._maybe()
            yield chunk

    def list(self, prefix: str = "", **where: Any) -> Any:
        for index, info in enumerate(super().list(prefix, **where)):
            if index == self.after_items:
                self._maybe()
            yield info


def test_reads_deletes_and_copies_are_repeated() -> None:
    """They have no effect, or the same effect twice."""
    for error in (Unavailable("busy"), OutcomeUnknown("lost")):
        inner = Flaky(error, 2)
        MemoryStore.put(inner, "k", b"x")
        store = RetryingStore(inner, clock=ManualClock(jitter=1.0))
        store.copy("k", "copy")
        inner.left = 2
        store.delete(iter(["k"]))
        assert [info.key for info in MemoryStore.list(inner)] == ["copy"]
    inner = Flaky(Unavailable("busy"), 2)
    MemoryStore.put(inner, "k", b"x")
    assert RetryingStore(inner, clock=ManualClock(jitter=1.0)).get("k", start=0, end=1) == b"x"


def test_an_unknown_conditional_copy_surfaces() -> None:
    """A copy has no nonce, so that nobody can tell whose it is."""
    inner = Flaky(OutcomeUnknown("lost"), 1)
    MemoryStore.put(inner, "k", b"x")
    with pytest.raises(OutcomeUnknown):
        RetryingStore(inner, clock=ManualClock(jitter=1.0)).copy("k", "copy", if_absent=True)


def test_a_stream_is_begun_again_but_not_resumed() -> None:
    """A failure before the first chunk is repeated; later it is the reader's."""
    inner = Flaky(Unavailable("busy"), 2)
    MemoryStore.put(inner, "k", b"0123")
    store = RetryingStore(inner, clock=ManualClock(jitter=1.0))
    assert b"".join(store.stream("k", chunk_bytes=1)) == b"0123"
    inner.left, inner.after_items = 1, 2
    with pytest.raises(Unavailable):
        list(store.stream("k", chunk_bytes=1))


def test_a_listing_goes_on_where_it_broke() -> None:
    """No key twice, none missing; the time limit is for each page, not for the whole."""
    inner = Flaky(Unavailable("busy"), 3, after_items=4)
    keys = [f"k/{index}" for index in range(10)]
    for key in keys:
        MemoryStore.put(inner, key, b"x")
    store = RetryingStore(inner, clock=ManualClock(jitter=1.0))
    assert [info.key for info in store.list("k/")] == keys
