"""A progress bar: one line that is written over, and gone when the work is done."""

from __future__ import annotations

import shutil
import threading
from typing import TextIO

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.clock import Clock

_WIDTH = 24
_EVERY_SECONDS = 0.1
_AFTER_SECONDS = 1.0


class Bar:
    """Shows how many bytes are done, how many there are, and how long the rest will take."""

    def __init__(self, label: str, stream: TextIO, clock: Clock) -> None:
        self._label = label
        self._stream = stream
        self._clock = clock
        self._begin = self._last = clock.monotonic_seconds()
        self._lock = threading.Lock()
        self._is_shown = False

    def show(self, done: int, total: int) -> None:
        """Draw it, unless it was drawn a moment ago. Any thread may call this."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            if now - self._last < _EVERY_SECONDS and done < total:
                return
            self._last = now
            line = bar_line(self._label, done, total, now - self._begin)
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{line[:width]}")
            self._stream.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Take it away."""
        with self._lock:
            if self._is_shown:
                self._stream.write("\r\x1b[2K")
                self._stream.flush()


def bar_line(label: str, done: int, total: int, seconds: float) -> str:
    """The bar as a line. Pure."""
    share = 1.0 if total <= 0 else min(1.0, done / total)
    full = int(share * _WIDTH)
    drawn = "#" * full + "." * (_WIDTH - full)
    line = f"{label} [{drawn}] {share:4.0%}  {text.size(done)} of {text.size(total)}"
    if seconds > _AFTER_SECONDS and 0 < done < total:
        line += f"  {text.span(int(seconds * (total - done) / done * 1000))} left"
    return line
