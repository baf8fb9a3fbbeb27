"""The runs that this process captures: of each history one at a time, whatever listeners there are."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark_checkpoint.listener.worker import QueryWorker


class CapturedRuns:
    """The newest worker of each history. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, QueryWorker] = {}

    def begin(
        self, url: str, run_id: str, make: Callable[[QueryWorker | None], QueryWorker]
    ) -> QueryWorker | None:
        """The worker that ``make`` gives, told of the one before it; None if the run has one already.

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


RUNS = CapturedRuns()
"""Those of this process."""
