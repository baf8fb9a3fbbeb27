"""The test servers themselves: real, on loopback, and gone when the tests are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.servers.launch import rclone_s3
from tests.support.servers.process import accepts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

_CHILD = """
import time
from tests.support.servers.launch import rclone_s3
with rclone_s3() as server:
    print(server.port, flush=True)
    time.sleep(60)
"""


def test_a_server_is_stopped_when_the_test_fails() -> None:
    """An exception inside the block ends the server's process."""
    with pytest.raises(ZeroDivisionError), rclone_s3() as server:
        assert accepts(server.port)
        raise ZeroDivisionError
    assert not accepts(server.port)


def test_a_server_dies_with_a_killed_test_process() -> None:
    """SIGKILL of the process that started a server takes the server with it."""
    with subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert accepts(port)
        os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not accepts(port), "the end of the server", 10)


def test_two_servers_run_side_by_side() -> None:
    """Each instance has ports of its own."""
    with rclone_s3() as one, rclone_s3() as two:
        assert one.port != two.port
        assert accepts(one.port)
        assert accepts(two.port)
