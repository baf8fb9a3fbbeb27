"""One thread for each watched query: it captures the newest committed batch, whenever there is one.

Events only wake it. Batches that are committed while it uploads are captured together, as the newest
of them; events that Spark dropped are healed by a look at the location from time to time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark_checkpoint.capture.covered import Captures
from pyspark_checkpoint.capture.describe import QueryFacts
from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import CheckpointError, FencedError, StepAside
from pyspark_checkpoint.format.manifest import CheckpointManifest

_LOG = logging.getLogger(__name__)


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
    last_bytes: int = 0
    last_puts: int = 0
    fenced: bool = False
    aside: bool = False
    captured_ms: int = 0
    total_bytes: int = 0
    total_requests: int = 0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """When a worker captures. ``interval_seconds``: at least that long between two captures."""

    interval_seconds: float = 0.0
    poll_seconds: float = 10.0


class QueryWorker:
    """Captures one run of one query. A failure never reaches the query: it is counted and tried again."""

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
        gate: threading.Semaphore | None = None,
    ) -> None:
        """``begin`` opens the store and claims it; it is called on the worker's own thread.

        ``on_health`` is told after the first capture, and whenever it changes, why captures fail; None
        if they work.

        Workers that share a ``gate`` capture no more at once than it lets through.
        """
        self._gate = gate or threading.Semaphore()
        self._begin = begin
        self._settings = settings
        self._clock = clock
        self._on_captured = on_captured
        self._on_fenced = on_fenced
        self._on_health = on_health
        self._told: tuple[str | None] | None = None
        self._facts = facts
        self._capture: Captures | None = None
        self._changed = threading.Condition()
        self._wake = True
        self._stopping = False
        self._hurry = False
        self._in_round = False
        self._done = False
        self._rounds = 0
        self._last_began = float("-inf")
        self.status = CaptureStatus(facts.query.id, facts.query.name)
        self._thread = threading.Thread(target=self._run, name=f"ckpt-{facts.query.id[:8]}", daemon=True)
        self._thread.start()

    def notify(self, facts: QueryFacts | None = None) -> None:
        """Something may have been committed. Returns at once."""
        with self._changed:
            self._facts = facts or self._facts
            self._wake = True
            self._changed.notify_all()

    def notify_described(self, sources: tuple[str, ...], sink: str) -> None:
        """Like ``notify``, with what a progress event says of sources and sink."""
        with self._changed:
            facts = self._facts
        self.notify(replace(facts, sources=sources, sink=sink))

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything that was committed before the call is captured; False if that failed."""
        with self._changed:
            wanted = self._rounds + (2 if self._in_round else 1)
            self._wake = self._hurry = True
            self._changed.notify_all()
            ended = self._changed.wait_for(lambda: self._rounds >= wanted or self._done, timeout_seconds)
            return ended and self.status.last_error is None

    def finish(self, timeout_seconds: float | None = None) -> None:
        """Capture what is left, then end. With a time limit, wait for that."""
        with self._changed:
            self._stopping = True
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

    def _run(self) -> None:
        is_last = False
        while not is_last and not self._has_lost:
            is_last = self._wait()
            with self._gate:
                self._round()
                self._tell_health()
            with self._changed:
                self._rounds += 1
                self._in_round = False
                self._changed.notify_all()
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait for the next round; says whether it is the last one, because the query has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._wake or self._stopping, self._settings.poll_seconds)
            pause = self._last_began + self._settings.interval_seconds - self._clock.monotonic_seconds()
            self._changed.wait_for(lambda: self._hurry or self._stopping, max(pause, 0.0))
            self._wake = self._hurry = False
            self._in_round = True
            self._last_began = self._clock.monotonic_seconds()
            return self._stopping

    def _round(self) -> None:
        began = self._clock.monotonic_seconds()
        try:
            if self._capture is None:
                self._capture = self._begin()
            self._capture.facts = self._facts
            newest = self._capture.newest_committed()
            if newest is None or newest == self.status.captured_epoch:
                self._succeeded(None, began)
                return
            self._succeeded(self._capture.capture(newest), began)
        except FencedError as error:
            self.status = replace(self.status, fenced=True, last_error=str(error))
            _LOG.error("query %s: %s; its captures stop", self._facts.query.id, error)
            self._on_fenced(error)
        except StepAside as error:
            self.status = replace(self.status, aside=True, last_error=str(error))
            _LOG.warning("query %s is left alone: %s", self._facts.query.id, error)
        except CheckpointError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a capture never fails the query; it is counted and retried
            self._failed(error)

    def _tell_health(self) -> None:
        now = (self.status.last_error,)
        if self._on_health is not None and now != self._told and not self._has_lost:
            try:
                self._on_health(self.status.last_error)
            except Exception as error:  # noqa: BLE001 - whoever is told must not end the captures
                _LOG.warning("query %s: %s", self._facts.query.id, type(error).__name__)
        self._told = now

    def _succeeded(self, manifest: CheckpointManifest | None, began: float) -> None:
        if manifest is None:
            self.status = replace(self.status, last_error=None)
            return
        self.status = replace(
            self.status,
            captured_epoch=manifest.epoch,
            checkpoint_id=manifest.checkpoint_id,
            captures=self.status.captures + 1,
            last_error=None,
            last_seconds=self._clock.monotonic_seconds() - began,
            last_bytes=manifest.requests.bytes,
            last_puts=manifest.requests.puts + 1,
            captured_ms=self._clock.now_ms(),
            total_bytes=self.status.total_bytes + manifest.requests.bytes,
            total_requests=self.status.total_requests + manifest.requests.puts + manifest.requests.gets + 1,
        )
        self._on_captured(manifest)

    def _failed(self, error: Exception) -> None:
        text = str(error) if isinstance(error, CheckpointError) else type(error).__name__
        if text != self.status.last_error:
            _LOG.warning("query %s: capture failed, and is tried again: %s", self._facts.query.id, text)
        self.status = replace(self.status, failures=self.status.failures + 1, last_error=text)
