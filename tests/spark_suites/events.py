"""What the JVM tells while it runs: a line of JSON for each event, between whatever tests print."""

from __future__ import annotations

import json
from dataclasses import dataclass

MARK = "\x01ckpt-event "
"""What stands before each event; EventReporter.java writes it."""


@dataclass(frozen=True)
class Event:
    """One event of scalatest, or the start of a streaming query."""

    kind: str
    suite: str = ""
    test: str = ""
    message: str = ""
    query: str = ""


def parse_event(line: str) -> Event | None:
    """The event on a line of the JVM's output; None for what a test has printed."""
    at = line.find(MARK)
    if at < 0:
        return None
    try:
        values = json.loads(line[at + len(MARK) :])
    except json.JSONDecodeError:
        return None
    names = Event.__dataclass_fields__
    return Event(**{name: str(value) for name, value in values.items() if name in names})
