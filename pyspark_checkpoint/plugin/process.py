"""The Python process beside a driver: a listener for every query of every session. Started by the plugin.

It attaches to the running SparkContext, takes the events of all queries from the plugin's door, and runs
the same ``CheckpointListener`` that a Python application would register. It ends with the driver.

The start of a query may take long: its location is restored, or its output taken back. That is done in a
thread, in which the events of that query wait for it in their order. Those of other queries pass.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import NoReturn

from pyspark_checkpoint.errors import CheckpointError, Unsupported, safe_text
from pyspark_checkpoint.listener.listener import PLUGIN
from pyspark_checkpoint.listener.worker import Answer, CaptureStatus, HeldBatch
from pyspark_checkpoint.plugin.plugin_settings import BATCH, PREFIX, PluginSettings
from pyspark_checkpoint.plugin.process_input import begin_process, leave_signals_to_driver
from pyspark_checkpoint.session import CheckpointListener
from pyspark_checkpoint.spark.jvm import SideDoor

_LOG = logging.getLogger("pyspark_checkpoint.plugin.process")
TICK_SECONDS = 1.0
STOP = "stop"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
FILE_MANAGERS = "io.github.pysparkcheckpoint."
MAX_ENDED = 100
"""How many runs that have ended are tried again for as long as their captures fail."""
SETTINGS_STATUS = 2
"""The exit status that says: another start would not help."""


class SideCar:
    """Turns events of the door into calls of listeners: one for each run, in the session that has it."""

    def __init__(self, door: SideDoor, settings: PluginSettings) -> None:
        self._door = door
        self._settings = settings
        self._listeners: dict[str, CheckpointListener] = {}
        self._reported: dict[str, CaptureStatus] = {}
        self._given_up: set[str] = set()
        self._heard: set[str] = set()
        self._lock = threading.Lock()
        self._starting: dict[str, deque[Mapping[str, str]]] = {}
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def run(self) -> None:
        """Work until the driver says stop; then capture what is left."""
        while True:
            event = self._door.next_event(TICK_SECONDS)
            if event is not None and event["kind"] == STOP:
                break
            if event is not None:
                self._handle(event)
            if self._failure is not None:
                raise self._failure
            self._report()
            self._forget_ended()
        for thread in self._threads:
            thread.join()
        self._finish()

    def _finish(self) -> None:
        """Capture what is left of all queries at the same time, and say of which it could not be."""
        for listener in self._listeners.values():
            listener.close(0.0)
        for listener in self._listeners.values():
            listener.close()
            for status in listener.statuses:
                if status.last_error is not None and not (status.fenced or status.aside):
                    _LOG.warning(
                        "query %s: its last batches are not checkpointed: %s",
                        status.query_id,
                        status.last_error,
                    )
        self._report()

    def _forget_ended(self) -> None:
        """An application may start queries for months; what has ended and was reported is over.

        What could not be captured is tried again, but not of any number of runs: the oldest give up.
        """
        left = [
            run_id
            for run_id, one in list(self._listeners.items())
            if one.has_ended and not one.is_done and any(status.last_error for status in one.statuses)
        ]
        for run_id in left[:-MAX_ENDED]:
            if run_id not in self._given_up:
                self._given_up.add(run_id)
                _LOG.warning("run %s has ended, and its last batches could not be checkpointed", run_id)
                self._listeners[run_id].close(0.0)
        for run_id in [run_id for run_id, one in list(self._listeners.items()) if one.is_done]:
            self._report()
            del self._listeners[run_id]
            self._given_up.discard(run_id)
            self._reported.pop(run_id, None)

    def _handle(self, event: Mapping[str, str]) -> None:
        """Pass an event on, or let it wait for the start of its query, whichever run that is of."""
        query_id = event["id"]
        with self._lock:
            waiting = self._starting.get(query_id)
            if waiting is not None:
                waiting.append(event)
                return
            is_start = self._is_start(event)
            if is_start:
                self._starting[query_id] = deque([event])
        if not is_start:
            self._pass_on(event)
            return
        thread = threading.Thread(target=self._start, args=(query_id,), name="ckpt-start", daemon=True)
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()

    def _start(self, query_id: str) -> None:
        """Handle the events of a query, one after the other, until none is left."""
        waiting = self._starting[query_id]
        try:
            while True:
                with self._lock:
                    if not waiting:
                        del self._starting[query_id]
                        return
                    event = waiting.popleft()
                self._pass_on(event)
        except Exception as error:  # noqa: BLE001 - as in any other event: this process ends with it
            self._failure = error

    def _is_start(self, event: Mapping[str, str]) -> bool:
        """Whether an event starts its query.

        Told while no side process ran, a plan comes before the start of its query; it says the same.
        """
        return event["kind"] == "started" or (
            event["kind"] == "planned" and event["run_id"] not in self._heard
        )

    def _pass_on(self, event: Mapping[str, str]) -> None:
        run_id = event["run_id"]
        if self._is_start(event):
            self._heard.add(run_id)
            self._started(event)
        if event["kind"] == "started":
            return
        listener = self._listeners.get(run_id)
        if listener is None:
            if event["kind"] == "planned":
                self._door.answer(
                    run_id, int(event["batch"]), Answer.REFUSED.value, "it is not checkpointed"
                )
            return
        if event["kind"] == "progress":
            listener.heard_progress(event["progress"])
        elif event["kind"] == "planned":
            self._hold(listener, run_id, int(event["batch"]), event["offsets"].encode("utf-8"))
        elif event["kind"] == "committed":
            listener.heard_commit(run_id)
        elif event["kind"] == "idle":
            listener.heard_idle(run_id)
        elif event["kind"] == "terminated":
            listener.onQueryTerminated(SimpleNamespace(runId=run_id))
            self._heard.discard(run_id)

    def _hold(self, listener: CheckpointListener, run_id: str, batch: int, offsets: bytes) -> None:
        def answer(outcome: Answer, problem: str) -> None:
            self._door.answer(run_id, batch, outcome.value, problem)

        listener.hold_batch(run_id, HeldBatch(batch, offsets, answer))

    def _started(self, event: Mapping[str, str]) -> None:
        run_id, query_id = event["run_id"], event["id"]
        is_watched = False
        must_be_held = self._settings.holds(event["name"]) and event["execution"] != "ContinuousExecution"
        try:
            if must_be_held:
                check_holdable(event)
            session, listener = self._door.session(run_id), self._listeners.get(run_id)
            if session is not None and listener is None:
                settings = self._settings
                listener = CheckpointListener(
                    session,
                    settings.url,
                    interval_seconds=settings.interval_seconds,
                    retain=settings.retain,
                    queries=settings.wants,
                    stale=settings.stale,
                    sink=settings.sink,
                    stop_when_fenced=settings.stop_when_fenced,
                    options=settings.options,
                    poll_seconds=settings.poll_seconds,
                    holds_batches=settings.durability == BATCH,
                    producer=PLUGIN,
                    hold=self._door,
                )
                listener.onQueryStarted(SimpleNamespace(id=query_id, runId=run_id, name=event["name"]))
                self._listeners[run_id] = listener
            is_watched = listener is not None and bool(listener.statuses)
            must_be_held = must_be_held and session is not None
        except Exception as error:  # noqa: BLE001 - the other queries go on
            _LOG.error("query %s is not checkpointed: %s", query_id, safe_text(error))
        finally:
            if must_be_held and not is_watched:
                _LOG.error("query %s is stopped: it could not be made durable", query_id)
                self._door.refuses(run_id)
            self._door.looked(run_id, is_watched=is_watched)

    def _report(self) -> None:
        """Tell the driver what is new since it was last told. The sums are kept there: it outlives us."""
        for run_id, listener in list(self._listeners.items()):
            for status in listener.statuses:
                before = self._reported.get(run_id, CaptureStatus(status.query_id, status.query_name))
                if before != status:
                    self._reported[run_id] = status
                    self._door.report(
                        status.query_id,
                        captured_ms=status.captured_ms,
                        seconds=status.last_seconds,
                        captures=status.captures - before.captures,
                        failures=status.failures - before.failures,
                        size_bytes=status.total_bytes - before.total_bytes,
                        requests=status.total_requests - before.total_requests,
                    )


def check_holdable(event: Mapping[str, str]) -> None:
    """Refuse a query whose batches cannot wait for a checkpoint, by what is said of its start. Pure."""
    if event["execution"].startswith("AsyncProgress"):
        problem = "with asyncProgressTrackingEnabled Spark does not log every batch before it runs"
    elif not event["file_manager"].startswith(FILE_MANAGERS):
        problem = f"{FILE_MANAGER} of its session is {event['file_manager']!r}, which is not ours"
    else:
        return
    raise Unsupported(
        f"no batch of it can be held: {problem}", hint=f"mend that, or set {PREFIX}durability to async"
    )


def main() -> NoReturn:
    """Serve the driver that has started this process, until it ends."""
    status = 1
    try:
        given = begin_process(sys.stdin)
        settings = given.settings()
        door = SideDoor(settings.app, given.jar)
        leave_signals_to_driver()  # once more: PySpark cancels all jobs of the driver on Ctrl-C
        SideCar(door, settings).run()
        status = 0
    except CheckpointError as error:
        status = SETTINGS_STATUS
        _LOG.error("queries are not checkpointed: %s", error)
    except Exception as error:  # noqa: BLE001 - told to the driver's log; the plugin starts a new process
        _LOG.error("the side process ends: %s", type(error).__name__)
        _LOG.debug("where", exc_info=True)
    finally:
        sys.stderr.flush()
        # No clean-up of Python's: it would stop the driver's own SparkContext.
        os._exit(status)


if __name__ == "__main__":
    main()
