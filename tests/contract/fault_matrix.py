"""Every verb of a store under every fault of the proxy, for any backend.

A case breaks one request of one verb, each of the verb's requests in its turn, and then looks at the
store behind the proxy's back. Whatever happens, these hold:

* What a verb returns is true, and what it says was not done was not done.
* A put without a rival never hears that it lost; one that lost never hears that it won.
* A key holds old bytes or new bytes, never others.
* Only errors of ours arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import (
    AlreadyExists,
    ChecksumRefused,
    Conflict,
    Denied,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.store.base import ObjectStore, Version
from pyspark_checkpoint.store.retry import RetryingStore
from pyspark_checkpoint.store.settings import RetrySettings
from tests.support.servers.launch import Server
from tests.support.servers.proxy import Fault, FaultProxy, Rule

TIMEOUT_SECONDS = 1.0
LATE_SECONDS = 0.2
OLD = b"old " * 6_000
NEW = b"new!" * 7_000
LARGE = b"0123456789abcdef" * (12 * 65_536)
CHUNK_BYTES = 10_000
MINE, THEIRS = "a" * 32, "b" * 32
RETRY = RetrySettings(limit_seconds=20.0, first_delay_seconds=0.05, max_delay_seconds=1.0)


@dataclass(frozen=True)
class Verb:
    """One thing that is asked of a store, and how to see what became of it."""

    name: str
    prepare: Callable[[ObjectStore], Any]
    """Sets the store up, without faults; what it returns is given to the other two."""
    act: Callable[[ObjectStore, Any], Any]
    done: Callable[[ObjectStore, Any], bool] | None = None
    """Whether a write is in the store; None for reads. Neither old nor new is an assertion error."""
    expected: Any = None
    """What a read returns, or the error of a put that must lose."""
    partly: bool = False
    """Whether a failed one may have been done in part, as a delete of many keys."""

    @property
    def loses(self) -> bool:
        """Whether somebody else has won already."""
        return isinstance(self.expected, type) and issubclass(self.expected, StoreError)


def _holds(key: str, new: bytes, old: bytes | None) -> Callable[[ObjectStore, Any], bool]:
    def done(store: ObjectStore, _: Any) -> bool:
        try:
            found = store.get(key)
        except NotFound:
            assert old is None, f"{key} is gone"
            return False
        assert found in (new, old), f"{key} holds {len(found)} bytes that nobody put"
        return found == new

    return done


def _is_theirs(store: ObjectStore, _: Any) -> bool:
    assert store.head("k").nonce == THEIRS, "the winner's object was replaced"
    assert store.get("k") == NEW
    return False


def _stale(store: ObjectStore) -> Version:
    version = store.put("k", OLD)
    store.put("k", NEW, nonce=THEIRS)
    return version


def _three(store: ObjectStore) -> list[str]:
    keys = ["d/a b", "d/é", "d/%20"]
    for key in keys:
        store.put(key, b"x")
    return keys


def _listed(store: ObjectStore) -> list[tuple[str, int]]:
    return [(info.key, info.size_bytes) for info in store.list("d/")]


def _copied(store: ObjectStore) -> None:
    store.put("s", NEW)


def _occupied(store: ObjectStore) -> None:
    store.put("s", OLD)
    store.put("k", NEW, nonce=THEIRS)


VERBS = (
    Verb("put", lambda s: s.put("k", OLD), lambda s, _: s.put("k", NEW), _holds("k", NEW, OLD)),
    Verb(
        "create",
        lambda s: None,
        lambda s, _: s.put("k", NEW, if_absent=True, nonce=MINE),
        _holds("k", NEW, None),
    ),
    Verb(
        "swap",
        lambda s: s.put("k", OLD),
        lambda s, version: s.put("k", NEW, if_match=version, nonce=MINE),
        _holds("k", NEW, OLD),
    ),
    Verb(
        "create-lost",
        lambda s: s.put("k", NEW, nonce=THEIRS),
        lambda s, _: s.put("k", NEW, if_absent=True, nonce=MINE),
        _is_theirs,
        AlreadyExists,
    ),
    Verb(
        "swap-lost",
        _stale,
        lambda s, version: s.put("k", NEW, if_match=version, nonce=MINE),
        _is_theirs,
        Conflict,
    ),
    Verb("put-large", lambda s: None, lambda s, _: s.put("k", LARGE), _holds("k", LARGE, None)),
    Verb("read", lambda s: s.put("k", NEW), lambda s, _: s.read("k").data, expected=NEW),
    Verb("get", lambda s: s.put("k", NEW), lambda s, _: s.get("k"), expected=NEW),
    Verb(
        "get-range",
        lambda s: s.put("k", NEW),
        lambda s, _: s.get("k", start=7, end=20_001),
        expected=NEW[7:20_001],
    ),
    Verb(
        "stream",
        lambda s: s.put("k", NEW),
        lambda s, _: b"".join(s.stream("k", chunk_bytes=CHUNK_BYTES)),
        expected=NEW,
    ),
    Verb("head", lambda s: s.put("k", NEW), lambda s, _: s.head("k").size_bytes, expected=len(NEW)),
    Verb("list", _three, lambda s, _: _listed(s), expected=[("d/%20", 1), ("d/a b", 1), ("d/é", 1)]),
    Verb(
        "delete",
        lambda s: s.put("k", OLD),
        lambda s, _: s.delete(["k"]),
        lambda s, _: not list(s.list()),
    ),
    Verb(
        "delete-many",
        _three,
        lambda s, keys: s.delete(keys),
        lambda s, _: not list(s.list()),
        partly=True,
    ),
    Verb("copy", _copied, lambda s, _: s.copy("s", "k"), _holds("k", NEW, None)),
    Verb("copy-new", _copied, lambda s, _: s.copy("s", "k", if_absent=True), _holds("k", NEW, None)),
    Verb("copy-lost", _occupied, lambda s, _: s.copy("s", "k", if_absent=True), _is_theirs, AlreadyExists),
)
WHOLE_READS = ("read", "get")
"""The verbs that can find a bit flipped in an answer: others have no checksum of their own."""
UNCONDITIONAL = ("put", "put-large", "copy")
"""The writes that may land once more after they were answered, as another version of the same bytes."""
PASSING = (
    Fault.RESET,
    Fault.LOSE_RESPONSE,
    Fault.LATE_EFFECT,
    Fault.ERROR_500,
    Fault.ERROR_503,
    Fault.CUT_HEAD,
    Fault.FLIP_REQUEST,
)
"""What the retry wrapper is tried with. It cannot tell the remaining ones from these."""


def _cases(faults: tuple[Fault, ...]) -> tuple[tuple[Verb, Fault], ...]:
    flips = tuple((verb, Fault.FLIP_RESPONSE) for verb in VERBS if verb.name in WHOLE_READS)
    return tuple((verb, fault) for verb in VERBS for fault in faults) + flips


CASES = _cases((*PASSING, Fault.SLOW_BODY, Fault.STALL, Fault.TRUNCATE))
RETRIED_CASES = _cases(PASSING)
DENIED_CASES = tuple((verb, Fault.ERROR_403) for verb in VERBS)


def case_id(value: object) -> str:
    """The name of a parameter in a test's id."""
    if isinstance(value, Verb):
        return value.name
    return value.value if isinstance(value, Fault) else str(value)


class Matrix:
    """Runs cases against one server, through a proxy of its own."""

    def __init__(self, server: Server, proxy: FaultProxy) -> None:
        self._server = server
        self._proxy = proxy
        self._requests_of: dict[str, int] = {}

    def run(self, verb: Verb, fault: Fault, *, retrying: bool) -> None:
        """Break each request of ``verb`` in turn and check what the module promises."""
        for broken in range(self._count_requests(verb)):
            direct, disturbed = self._stores()
            context = verb.prepare(direct)
            self._proxy.clear()
            self._proxy.add(_rule(fault, skip=broken))
            outcome = _outcome(verb, RetryingStore(disturbed, RETRY) if retrying else disturbed, context)
            self._proxy.clear()
            where = f"{verb.name}, {fault.value} at request {broken}: {outcome!r}"
            late = fault is Fault.LATE_EFFECT
            if late:
                time.sleep(LATE_SECONDS + 0.1)
            _check(verb, direct, context, outcome, where, late=late)
            if retrying:
                _check_retried(verb, outcome, where)

    def run_cut(self, verb: Verb, cut_at: float) -> None:
        """End the connection at some byte of the head of the answer to the verb's last request."""
        direct, disturbed = self._stores()
        context = verb.prepare(direct)
        last = self._count_requests(verb) - 1
        self._proxy.clear()
        self._proxy.add(Rule(Fault.CUT_HEAD, skip=last, cut_at=cut_at))
        outcome = _outcome(verb, disturbed, context)
        _check(verb, direct, context, outcome, f"{verb.name}, head cut at {cut_at:.3f}: {outcome!r}")

    def run_denied(self, verb: Verb) -> None:
        """A permission error at any request ends the verb at once, and nothing was done."""
        for broken in range(self._count_requests(verb)):
            direct, disturbed = self._stores()
            context = verb.prepare(direct)
            self._proxy.clear()
            self._proxy.add(_rule(Fault.ERROR_403, skip=broken))
            outcome = _outcome(verb, RetryingStore(disturbed, RETRY), context)
            requests = [request.fault for request in self._proxy.requests if request.method != "DELETE"]
            where = f"{verb.name}, denied at request {broken}: {outcome!r}"
            assert requests.count(Fault.ERROR_403) <= 1, where
            if verb.done is None or not verb.done(direct, context):
                assert isinstance(outcome, Denied), where
                assert outcome.hint, where

    def _count_requests(self, verb: Verb) -> int:
        """How many requests the verb takes, from an undisturbed run that must be right itself."""
        if verb.name not in self._requests_of:
            self._requests_of[verb.name] = self._run_undisturbed(verb)
        return self._requests_of[verb.name]

    def _run_undisturbed(self, verb: Verb) -> int:
        direct, disturbed = self._stores()
        context = verb.prepare(direct)
        self._proxy.clear()
        outcome = _outcome(verb, disturbed, context)
        _check(verb, direct, context, outcome, f"{verb.name} undisturbed: {outcome!r}")
        _check_retried(verb, outcome, f"{verb.name} undisturbed: {outcome!r}")
        return len(self._proxy.requests)

    def _stores(self) -> tuple[ObjectStore, ObjectStore]:
        """A fresh prefix, opened without the proxy and with it, both without retries."""
        url = self._server.url(SYSTEM_CLOCK.uuid7())
        more = {"timeoutSeconds": str(TIMEOUT_SECONDS), "partSizeBytes": str(5 * 1024 * 1024)}
        direct = open_object_store(url, self._server.options, env={})
        disturbed = open_object_store(
            url, {**self._server.options_at(self._proxy.endpoint), **more}, env={}
        )
        assert isinstance(disturbed, RetryingStore)
        return direct, disturbed.inner


def _rule(fault: Fault, skip: int) -> Rule:
    seconds = {Fault.STALL: 4 * TIMEOUT_SECONDS, Fault.LATE_EFFECT: LATE_SECONDS}.get(fault, 0.2)
    return Rule(fault, skip=skip, seconds=seconds, retry_after_seconds=0)


def _outcome(verb: Verb, store: ObjectStore, context: Any) -> Any:
    """What the verb returns, or the error of ours that it raises. Others fail the test by themselves."""
    try:
        return verb.act(store, context)
    except StoreError as error:
        return error


def _check(
    verb: Verb, direct: ObjectStore, context: Any, outcome: Any, where: str, *, late: bool = False
) -> None:
    if verb.done is None:
        if isinstance(outcome, StoreError):
            assert isinstance(outcome, Unavailable | ChecksumRefused), where
        else:
            assert outcome == verb.expected, where
        return
    done = verb.done(direct, context)
    if verb.loses:
        allowed = (verb.expected, Unavailable, OutcomeUnknown, ChecksumRefused)
        assert isinstance(outcome, allowed), where
    elif isinstance(outcome, StoreError):
        assert isinstance(outcome, Unavailable | OutcomeUnknown | ChecksumRefused), where
        assert not done or verb.partly or isinstance(outcome, OutcomeUnknown), where
    else:
        assert done, where
        if isinstance(outcome, Version) and not (late and verb.name in UNCONDITIONAL):
            assert outcome == direct.head("k").version, where


def _check_retried(verb: Verb, outcome: Any, where: str) -> None:
    """One fault is survived. What cannot be proven afterwards stays unknown, and is said so."""
    if verb.loses:
        assert isinstance(outcome, (verb.expected, OutcomeUnknown)), where
    elif verb.name == "copy-new":
        assert not isinstance(outcome, StoreError) or isinstance(outcome, OutcomeUnknown), where
    elif verb.name == "stream":
        assert not isinstance(outcome, StoreError) or isinstance(outcome, Unavailable), where
    else:
        assert not isinstance(outcome, StoreError), where
