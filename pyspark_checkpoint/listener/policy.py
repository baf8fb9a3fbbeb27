"""What a listener is told to do: how often it captures, and what happens to stale locations. Pure."""

from __future__ import annotations

FAIL, WARN, RESTORE = STALE_CHOICES = ("fail", "warn", "restore")
"""What happens to a query whose location is behind its history."""
INTERVAL_SECONDS = 1.0
"""How long captures of a query lie apart at least: batches that are shorter are captured together."""
