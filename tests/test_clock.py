"""Ids across threads and forks."""

from __future__ import annotations

import os
import signal
import threading
from itertools import pairwise

from pyspark_checkpoint import clock
from pyspark_checkpoint.clock import SYSTEM_CLOCK


def test_a_child_makes_ids_although_a_thread_of_its_parent_was_making_one() -> None:
    """A fork copies a lock that is held, and not the thread that would release it."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with clock._uuid7_lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        pid = os.fork()
        if not pid:
            signal.alarm(20)  # ends the child by a signal if it waits for ever
            os._exit(0 if SYSTEM_CLOCK.uuid7() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        thread.join()


def test_ids_of_one_process_sort_in_the_order_they_were_made() -> None:
    """Also those of one millisecond."""
    made = [SYSTEM_CLOCK.uuid7() for _ in range(2000)]
    assert all(one < other for one, other in pairwise(made))
