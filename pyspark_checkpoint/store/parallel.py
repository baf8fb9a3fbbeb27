"""Many requests at once, never more than allowed, and never fewer results than requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_CONCURRENCY = 8
Progress = Callable[[int, int], None]
"""Told after each object of many: bytes done, bytes in all."""


def group_by_size(
    items: Iterable[T], size_of: Callable[[T], int], most_bytes: int
) -> Iterator[tuple[T, ...]]:
    """Items in their order, in groups of at most so many bytes; one that is larger is alone. Pure."""
    group: list[T] = []
    total = 0
    for item in items:
        size_bytes = size_of(item)
        if group and total + size_bytes > most_bytes:
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += size_bytes
    if group:
        yield tuple(group)


def run_bounded(function: Callable[[T], R], items: Sequence[T], limit: int) -> list[R]:
    """Call ``function`` for every item, at most ``limit`` at a time; results in the order of the items.

    One result an item, or an error: the first one, after those under way have ended.
    """
    return list(iter_bounded(function, items, limit))


def iter_bounded(function: Callable[[T], R], items: Iterable[T], limit: int) -> Iterator[R]:
    """Like ``run_bounded``, yielding results in order while at most ``limit`` are under way or waiting.

    A single item needs no thread: starting one costs more than many a request.
    """
    if limit < 1:
        raise ValueError(f"at least one request at a time, not {limit}")
    source = iter(items)
    first = list(islice(source, min(limit, 2)))
    source = chain(first, source)
    if len(first) < 2:
        yield from map(function, source)
        return
    with ThreadPoolExecutor(limit) as pool:
        window: list[Future[R]] = [pool.submit(function, item) for item in islice(source, limit)]
        try:
            while window:
                result = window.pop(0).result()
                window.extend(pool.submit(function, item) for item in islice(source, 1))
                yield result
        finally:
            for future in window:
                future.cancel()
