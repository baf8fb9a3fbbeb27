"""Python imports this by itself where its directory is on the path: it kills a process amid its work.

``CKPT_TEST_KILL`` is JSON: ``module``, which is killed; ``below``, the directory whose changes are
counted; ``steps``, a file with the numbers of the changes before which it happens, one for each kill; and
``victim``: ``process``, or ``machine`` for all processes of the application at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_CHANGES = ("os.link", "os.remove", "os.rename", "os.truncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killer:
    """An audit hook: it sees every file that Python changes, whatever the code is."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = wanted
        self._steps = Path(wanted["steps"])
        self._left: list[int] = json.loads(self._steps.read_text())
        self._seen = 0

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        """Count a change, and kill before it if its number has come."""
        is_change = event in _CHANGES or (event == "open" and bool(given[2] & _WRITES))
        if not self._left or not is_change:
            return
        if not any(self._wanted["below"] in str(path) for path in given[:2]):
            return
        self._seen += 1
        if self._seen == self._left[0]:
            del self._left[0]
            self._steps.write_text(json.dumps(self._left))
            if self._wanted["victim"] == "machine":
                os.killpg(os.getpgid(0), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def begin() -> None:
    """Watch this process, if it is the one."""
    wanted = json.loads(os.environ.get("CKPT_TEST_KILL", "{}"))
    if wanted and wanted["module"] in sys.orig_argv:
        sys.addaudithook(Killer(wanted))


begin()
