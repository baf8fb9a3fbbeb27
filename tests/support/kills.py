"""Kills of a Python process at chosen steps of its work, from outside of its code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_HOOK = Path(__file__).with_name("killing")


def kill_environment(
    module: str, below: Path, steps: Sequence[int], note: Path, victim: str = "process"
) -> dict[str, str]:
    """What a driver's environment needs so that a process which it starts is killed by SIGKILL.

    Each of the steps is one kill of ``module``: before that change of a file ``below`` a directory, counted
    from the start of the process. ``note`` remembers which are left.
    """
    note.write_text(json.dumps(list(steps)))
    wanted = {"module": module, "below": str(below), "steps": str(note), "victim": victim}
    path = os.pathsep.join(filter(None, (str(_HOOK), str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {"CKPT_TEST_KILL": json.dumps(wanted), "PYTHONPATH": path}


def kills_left(note: Path) -> int:
    """How many of them have not come."""
    return len(json.loads(note.read_text()))
