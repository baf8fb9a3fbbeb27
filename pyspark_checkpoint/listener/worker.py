"""One thread for each watched query: it captures the newest committed batch, whenever there is one.

Events only wake it. Batches that are committed while it uploads are captured together, as the newest
of them; the location is listed from time to time, because Spark may drop events.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import (
    CheckpointError,
    Diverged,
    FencedError,
    Incompatible,
    RefusedError,
    StepAside,
    safe_text,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.listener.sink_watcher import Captures
from pyspark_checkpoint.spark_files.location import LocationGone, LocationReplaced

HELD_RETRY_SECONDS = 1.0
"""How soon a capture that failed is tried again while a batch waits for it."""
INTERVAL_SECONDS = 1.0
"""How long captures of a query lie apart at least: batches that are shorter are captured together."""
_LOG = logging.getLogger(__name__)
GONE_SECONDS = 600.0
"""How long the location of a query that has ended may be absent before it counts as removed.

Meanwhile nothing more is logged: most often somebody has removed it on purpose.
"""


class Loss(enum.Enum):
    """What became of the location of a query that has ended."""

    GONE = "gone"
    """Nothing is there; it may come back."""
    REPLACED = "replaced"
    """Somebody has put another one there."""


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """How far the captures of a query are."""

    query_id: str
    query_name: str
    captured_epoch: int | None = None
    checkpoint_id: int | None = None
    captures: int = 0
    failures: int = 0
    last_error: str | None = None
    last_seconds: float = 0.0
    fenced: bool = False
    aside: bool = False
    captured_ms: int = 0
    total_bytes: int = 0
    total_requests: int = 0


class Answer(enum.Enum):
    """What is said of a checkpoint that a batch waits for."""

    DURABLE = "durable"
    """It is in the store: the batch may be planned."""
    WAITS = "waits"
    """It failed, and is tried again."""
    REFUSED = "refused"
    """It will never be: the query must not go on."""


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A batch that Spark is about to plan with these offsets, and that waits for the one before it."""

    batch: int
    offsets: bytes = field(repr=False)
    answer: Callable[[Answer, str], None] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """When a worker captures. ``interval_seconds``: at least that long between two captures.

    ``holds``: batches wait for the checkpoint of the one before. What is committed is then captured when
    the next batch comes, and without one after the interval, so that it is seldom captured twice.
    """

    interval_seconds: float = 0.0
    poll_seconds: float = 10.0
    holds: bool = False


class QueryWorker:
    """Captures one run of one query. A failure never reaches the query: it is counted and retried."""

    def __init__(
        self,
        facts: QueryFacts,
        begin: Callable[[], Captures],
        *,
        settings: WorkerSettings,
        clock: Clock,
        on_captured: Callable[[CheckpointManifest], None],
        on_fenced: Callable[[FencedError], None],
        on_health: Callable[[str | None], None] | None = None,
        on_done: Callable[[], None] = lambda: None,
        describe: Callable[[], tuple[tuple[str, ...], str] | None] | None = None,
        gate: threading.Semaphore | None = None,
        after: QueryWorker | None = None,
    ) -> None:
        """``begin`` opens the store and claims it; it is called on the worker's own thread.

        ``on_health`` is called after the first capture, and whenever it changes, with why captures fail, or
        None if they work. ``on_done`` is called when nothing will be captured any more. ``describe`` gives
        sources and sink as long as no event has described them.

        Workers that share a ``gate`` capture no more at once than it lets through. ``after`` is the worker
        of an earlier run of the query: it gives way, and nothing begins before it has ended.
        """
        self._gate = gate or threading.Semaphore()
        self._begin = begin
        self._settings = settings
        self._clock = clock
        self._on_captured = on_captured
        self._on_fenced = on_fenced
        self._on_health = on_health
        self._on_done = on_done
        self._describe = describe
        self._after = after
        self._told: tuple[str | None] | None = None
        self._facts = facts
        self._capture: Captures | None = None
        self._changed = threading.Condition()
        self._held: HeldBatch | None = None
        self._let_go: HeldBatch | None = None
        self._wake = True
        self._is_committed = False
        self._ended = False
        self._closing = False
        self._gives_way = False
        self._hurry = False
        self._in_round = False
        self._done = False
        self._rounds = 0
        self._last_ended = float("-inf")  # the last capture; a look that finds nothing is none
        self._gone_since: float | None = None
        self._gave_up = False
        self.status = CaptureStatus(facts.query.id, facts.query.name)
        self._thread = threading.Thread(target=self._run, name=f"ckpt-{facts.query.id[:8]}", daemon=True)
        self._thread.start()

    def notify(self, facts: QueryFacts | None = None) -> None:
        """Something may have been committed. Returns at once."""
        with self._changed:
            self._facts = facts or self._facts
            self._wake = True
            self._changed.notify_all()

    def hold(self, held: HeldBatch) -> None:
        """A batch waits until the one before it is durable. Returns at once; ``held.answer`` is called.

        May be told again and again: one that was let go before is at once, for what it waits for is there.
        """
        with self._changed:
            last, is_over = self._let_go, self._done or self._ended
            was_let_go = last is not None and (held == last or held.batch < last.batch)
            if not is_over and not was_let_go:
                self._held = held
                self._changed.notify_all()
                return
        if is_over:
            held.answer(Answer.REFUSED, self.status.last_error or "its captures have ended")
        else:
            held.answer(Answer.DURABLE, "")

    def notify_committed(self) -> None:
        """A batch is committed. Spark describes sources only after the first one: that is waited for."""
        with self._changed:
            self._is_committed = True
            self._wake = self._wake or bool(self._facts.sources)
            self._changed.notify_all()

    def notify_described(self, sources: tuple[str, ...], sink: str, batch: int | None = None) -> None:
        """Like ``notify``, with what a progress event says: sources, sink, and the batch that is done."""
        with self._changed:
            facts = self._facts
        self.notify(replace(facts, sources=sources, sink=sink, finished_batch=batch))

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything that was committed before the call is captured; False if that failed."""
        with self._changed:
            wanted = self._rounds + (2 if self._in_round else 1)
            self._wake = self._hurry = True
            self._changed.notify_all()
            ended = self._changed.wait_for(lambda: self._rounds >= wanted or self._done, timeout_seconds)
            return ended and self.status.last_error is None

    @property
    def run_id(self) -> str:
        """The run that is captured."""
        return self._facts.run_id

    def end(self) -> None:
        """The query has ended: capture what is left, however long the store is away. Returns at once.

        A batch that has waited until then is not planned any more.
        """
        with self._changed:
            self._ended = self._wake = True
            self._held = None
            self._changed.notify_all()

    def give_way(self) -> None:
        """A later run captures the same location: begin nothing more, and do not speak for the query."""
        with self._changed:
            self._gives_way = True
            self._changed.notify_all()

    def finish(self, timeout_seconds: float | None = None) -> None:
        """Try once more to capture what is left, then end. With a time limit, wait for that."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if timeout_seconds is not None:
            self._thread.join(timeout_seconds)

    @property
    def is_done(self) -> bool:
        """Whether nothing will be captured any more."""
        with self._changed:
            return self._done

    @property
    def _has_lost(self) -> bool:
        return self.status.fenced or self.status.aside

    @property
    def has_ended(self) -> bool:
        """Whether the query has ended."""
        with self._changed:
            return self._ended

    def _run(self) -> None:
        try:
            if self._after is not None:
                self._after.give_way()
                self._after._thread.join()
                self._after = None
            self._work()
        finally:
            self._capture = None  # what it knows of the location is much, and of no use any more
            self._tell(self._on_done)
            with self._changed:
                self._done, held = True, self._held
                self._changed.notify_all()
            self._answer(held, Answer.REFUSED, self.status.last_error or "its captures have ended")

    def _work(self) -> None:
        is_last = False
        while not (is_last or self._has_lost or self._gives_way):
            self._wait_for_news()
            if self._settings.holds:
                self._prepare()
            is_closing, has_ended = self._wait_for_turn()
            with self._gate:
                if not self._gives_way:
                    self._round()
                    self._tell_health()
            is_last = is_closing or self._gave_up or (has_ended and self.status.last_error is None)
            with self._changed:
                self._rounds += 1
                self._in_round = False
                self._changed.notify_all()

    def _wait_for_news(self) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._wake or self._held is not None or self._must_end(),
                self._settings.poll_seconds,
            )

    def _prepare(self) -> None:
        """Upload what the next capture needs, before a batch waits for it. What fails is the capture's."""
        capture = self._capture
        with self._changed:
            is_new, self._is_committed = self._is_committed, False
            is_waited_for = self._held is not None or self._hurry or self._ended or self._must_end()
        if capture is None or not is_new or is_waited_for or self.status.last_error is not None:
            return
        try:
            with self._gate:
                capture.facts = replace(self._described(), has_ended=False)
                capture.prepare()
        except Exception as error:  # noqa: BLE001 - as of a capture, which follows and says what is wrong
            _LOG.debug("query %s: nothing was prepared: %s", self._facts.query.id, type(error).__name__)

    def _wait_for_turn(self) -> tuple[bool, bool]:
        """Wait for the next round; says whether we are to close, and whether the query has ended."""
        with self._changed:
            now = self._clock.monotonic_seconds()
            began = now if self._settings.holds else self._last_ended
            pause = began + self._settings.interval_seconds - now
            self._changed.wait_for(
                lambda: self._held is not None or self._hurry or self._ended or self._must_end(),
                max(pause, 0.0),
            )
            if self._held is not None and self.status.last_error is not None:
                self._changed.wait_for(self._must_end, HELD_RETRY_SECONDS)
            self._wake = self._hurry = False
            self._in_round = True
            return self._closing, self._ended

    def _must_end(self) -> bool:
        return self._closing or self._gives_way

    def _described(self) -> QueryFacts:
        """What is known of the query; before the first event comes, Spark is asked."""
        with self._changed:
            facts = self._facts
        if facts.sources or self._describe is None:
            return facts
        found = self._describe()
        with self._changed:
            if found is not None and not self._facts.sources:
                self._facts = replace(self._facts, sources=found[0], sink=found[1])
            return self._facts

    def _round(self) -> None:
        began = self._clock.monotonic_seconds()
        with self._changed:
            held = self._held
        try:
            if self._capture is None:
                self._capture = self._begin()
            self._capture.facts = replace(self._described(), has_ended=self.has_ended)
            self._try_round(self._capture, began, held)
        except FencedError as error:
            self.status = replace(self.status, fenced=True, last_error=str(error))
            level = logging.INFO if self.has_ended else logging.ERROR  # then it is the next run's
            _LOG.log(level, "query %s: %s; its captures stop", self._facts.query.id, error)
            self._answer(held, Answer.REFUSED, str(error))
            if not self._gives_way:  # otherwise the query is another run's, which captures it
                self._tell(partial(self._on_fenced, error))
        except StepAside as error:
            self.status = replace(self.status, aside=True, last_error=str(error))
            _LOG.warning("query %s is left alone: %s", self._facts.query.id, error)
        except RefusedError as error:
            lost = self._find_loss(error) if self.has_ended else None
            if lost is None:
                self._failed(error, held)
            else:
                self._location_lost(began, lost)
        except Exception as error:  # noqa: BLE001 - a capture never fails the query; it is counted and retried
            self._failed(error, held)

    def _try_round(self, capture: Captures, began: float, held: HeldBatch | None) -> None:
        if held is not None:
            made = self._timed(
                lambda: capture.capture_planned(held.batch, held.offsets, lambda: self._release(held))
            )
            self._release(held)
            self._succeeded(made, began)
            return
        newest = capture.newest_committed()
        if newest is None or newest == self.status.captured_epoch:
            self._succeeded(None, began)
        elif self._is_replaced(newest):
            self._location_lost(began, Loss.REPLACED)
        else:
            self._succeeded(self._timed(lambda: capture.capture(newest)), began)

    def _timed(self, capture: Callable[[], CheckpointManifest | None]) -> CheckpointManifest | None:
        try:
            return capture()
        finally:
            self._last_ended = self._clock.monotonic_seconds()

    def _release(self, held: HeldBatch) -> None:
        """Its checkpoint is durable: tell this batch, once; another one may wait by now."""
        with self._changed:
            if held == self._let_go:
                return
            self._let_go = held
        self._answer(held, Answer.DURABLE)

    def _answer(self, held: HeldBatch | None, answer: Answer, problem: str = "") -> None:
        """Tell a batch what became of its checkpoint, and no other one that waits by now.

        Nothing but that is told to a batch that was let go.
        """
        if held is None:
            return
        with self._changed:
            if answer is not Answer.DURABLE and held == self._let_go:
                return
            if answer is not Answer.WAITS and self._held == held:
                self._held = None
        self._tell(partial(held.answer, answer, problem))

    def _is_replaced(self, newest: int) -> bool:
        """Whether the location of a query that has ended has fewer batches than the query committed.

        Somebody has restored it, or copied an old one there: it is not that run's any more.
        """
        captured = self.status.captured_epoch
        return self.has_ended and captured is not None and newest < captured

    def _find_loss(self, error: RefusedError) -> Loss | None:
        """What became of the location, if that is why a capture was refused; None if it is there."""
        if isinstance(error, LocationReplaced):
            return Loss.REPLACED
        if isinstance(error, LocationGone):
            return Loss.GONE
        if self._capture is None:
            return None
        with self._changed:
            finished = self._facts.finished_batch
        try:
            newest = self._capture.newest_committed()
        except RefusedError:
            return Loss.GONE
        except CheckpointError:
            return None
        if newest is None:
            return Loss.GONE
        return Loss.REPLACED if finished is not None and newest < finished else None

    def _location_lost(self, now: float, loss: Loss) -> None:
        """After the end of its query a location may be removed; what it had is captured, or is lost."""
        with self._changed:
            finished = self._facts.finished_batch
        captured = self.status.captured_epoch
        if captured is not None and (finished is None or finished <= captured):
            self._succeeded(None, now)
            return
        if self._gone_since is None:
            self._gone_since = now
            text = (
                "its checkpoint location was removed or replaced after its end: what was committed after "
                f"batch {captured} is not captured"
            )
            _LOG.warning("query %s: %s", self._facts.query.id, text)
            self.status = replace(self.status, failures=self.status.failures + 1, last_error=text)
        self._gave_up = loss is Loss.REPLACED or now - self._gone_since >= GONE_SECONDS

    def _tell_health(self) -> None:
        on_health, now = self._on_health, (self.status.last_error,)
        if self._gone_since is not None:
            return  # a query that has ended, and whose location was removed, concerns nobody
        if on_health is not None and now != self._told and not self._has_lost:
            self._tell(partial(on_health, self.status.last_error))
        self._told = now

    def _tell(self, whom: Callable[[], None]) -> None:
        try:
            whom()
        except Exception as error:  # noqa: BLE001 - a callback must not end the captures
            _LOG.warning("query %s: %s", self._facts.query.id, type(error).__name__)

    def _succeeded(self, manifest: CheckpointManifest | None, began: float) -> None:
        self._gone_since = None
        if manifest is None:
            self.status = replace(self.status, last_error=None)
            return
        self.status = replace(
            self.status,
            captured_epoch=None if manifest.is_start else manifest.epoch,
            checkpoint_id=manifest.checkpoint_id,
            captures=self.status.captures + 1,
            last_error=None,
            last_seconds=self._clock.monotonic_seconds() - began,
            captured_ms=self._clock.now_ms(),
            total_bytes=self.status.total_bytes + manifest.requests.bytes,
            total_requests=self.status.total_requests + manifest.requests.puts + manifest.requests.gets + 1,
        )
        self._on_captured(manifest)

    def _failed(self, error: Exception, held: HeldBatch | None) -> None:
        text = safe_text(error)
        if text != self.status.last_error:
            _LOG.warning("query %s: capture failed, and is retried: %s", self._facts.query.id, text)
        self.status = replace(self.status, failures=self.status.failures + 1, last_error=text)
        is_final = isinstance(error, (Diverged, Incompatible))
        self._answer(held, Answer.REFUSED if is_final else Answer.WAITS, text)


class ActiveRuns:
    """The newest worker of each history in this process, whatever listeners there are. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, QueryWorker] = {}

    def begin(
        self, url: str, run_id: str, make: Callable[[QueryWorker | None], QueryWorker]
    ) -> QueryWorker | None:
        """The worker that ``make`` returns, given the one before it; None if the run has one already.

        A run that was restarted begins when the worker of the run before has ended: late captures of a run
        that is over must neither fence nor stop the one that follows it.
        """
        with self._lock:
            self._workers = {at: worker for at, worker in self._workers.items() if not worker.is_done}
            before = self._workers.get(url)
            if before is not None and before.run_id == run_id:
                return None
            self._workers[url] = worker = make(before)
            return worker


ACTIVE_RUNS = ActiveRuns()
"""Those of this process."""
