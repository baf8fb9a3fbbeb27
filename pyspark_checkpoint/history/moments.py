"""Points in time as people type them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark_checkpoint.errors import SettingsError


def parse_timestamp_ms(text: str, option: str) -> int:
    """Read milliseconds, or a date and time of ISO 8601; without a zone it is UTC. ``option`` had it."""
    if text.strip().isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SettingsError(
            f"{option} is not a time: {text!r}", hint="write 2026-01-31T12:00:00Z, or milliseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
