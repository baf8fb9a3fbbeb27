"""What the plugin has stored while suites ran: ``ckpt verify`` for every query."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_checkpoint.cli.exits import DONE
from pyspark_checkpoint.cli.main import main


@dataclass
class Histories:
    """How many queries a setting has started and stored, and what is wrong with those."""

    started: int
    stored: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """For people."""
        good = self.stored - len(self.findings)
        return f"ckpt verify: {self.started} queries started, {self.stored} checkpointed, {good} good"


def verify_histories(store: Path, started: Set[str]) -> Histories:
    """Verify every query's history below a store that a plugin has written.

    A query that ended before its first capture has none. That none has one at all is a finding.
    """
    roots = sorted(path for path in store.glob("*") if _is_query(path.name))
    histories = Histories(started=len(started), stored=len(roots))
    for root in roots:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main(["verify", str(root)])
        if status != DONE:
            histories.findings.append(f"ckpt verify {root} ends with {status}:\n{said.getvalue()}")
    if not roots:
        histories.findings.append(f"the plugin has checkpointed none of {len(started)} queries in {store}")
    return histories


def _is_query(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False
