"""The Python processes of the plugin: they live as long as the driver, and what ends them is the driver."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys

import pytest

from pyspark_checkpoint.plugin import process_input as plugin_input

_PROGRAM = """
import sys
from pyspark_checkpoint.plugin import process_input as plugin_input
given = plugin_input.begin_process(sys.stdin)
print(given.app, flush=True)
import time
time.sleep(60)
"""


def test_helpers_of_the_sdks_import_as_they_always_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plugin sets against files beside the application is for its own process alone."""
    package = logging.getLogger("pyspark_checkpoint")
    monkeypatch.setattr(package, "handlers", [])
    monkeypatch.setattr(package, "level", package.level)
    monkeypatch.setenv(plugin_input.SAFE_PATH, "1")
    plugin_input.begin_process(io.StringIO("{}"), has_driver=False)
    assert plugin_input.SAFE_PATH not in os.environ


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_of_an_application_is_for_the_driver(number: signal.Signals) -> None:
    """Ctrl-C, a service that is stopped, a terminal that is closed: the last checkpoints are to be made."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write('{"app": "mine", "jar": ""}\n')
        process.stdin.flush()
        assert process.stdout.readline() == "mine\n"
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.stdin.close()
        assert process.wait(20) == 3, "it ends when the driver is gone"
