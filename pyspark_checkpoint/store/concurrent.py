"""Several requests at once, in threads that end with the call, so that no thread lives across a fork."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


def run_all(tasks: Sequence[Callable[[], None]], max_concurrency: int) -> None:
    """Run every task and wait. The first failure, in their order, is raised; the rest is not begun."""
    if len(tasks) <= 1:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(max_concurrency) as pool:
        running = [pool.submit(task) for task in tasks]
        try:
            for done in running:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
