"""Starting real servers for tests: free ports, readiness, and no process left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from tests.support.announced import check_announced
from tests.support.waiting import wait_until

LOOPBACK = "127.0.0.1"
GRPC_OFFSET = 10_000
# Below the range from which the kernel takes ports for outgoing connections, and so are the gRPC
# ports: nobody can take one between our looking and the server's binding.
_FIRST_PORT, _LAST_PORT = 20_000, 22_700

_WATCHDOG = 'read -r _; kill -s KILL -- "-$0" 2>/dev/null; sleep 0.2; rm -rf -- "$1"'


class ServerError(RuntimeError):
    """A test server did not start."""


class PortLease:
    """Ports that no other test process on this machine takes until they are released."""

    def __init__(self) -> None:
        self._locks: list[int] = []
        self._directory = Path(tempfile.gettempdir()) / f"ckpt-test-ports-{os.getuid()}"
        self._directory.mkdir(exist_ok=True)

    def take(self, count: int, *, with_grpc: bool = False) -> list[int]:
        """Return ``count`` ports, each free now; with ``with_grpc`` port + 10000 is free as well."""
        span = _LAST_PORT - _FIRST_PORT
        begin = int(SYSTEM_CLOCK.jitter() * span)
        ports: list[int] = []
        for step in range(span):
            port = _FIRST_PORT + (begin + step) % span
            if self._lock(port, with_grpc):
                ports.append(port)
                if len(ports) == count:
                    return ports
        raise ServerError(f"no {count} free ports between {_FIRST_PORT} and {_LAST_PORT}")

    def release(self) -> None:
        """Give the ports back."""
        while self._locks:
            os.close(self._locks.pop())

    def _lock(self, port: int, with_grpc: bool) -> bool:
        lock = os.open(self._directory / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        if is_free(port) and (not with_grpc or is_free(port + GRPC_OFFSET)):
            self._locks.append(lock)
            return True
        os.close(lock)
        return False


def is_free(port: int) -> bool:
    """Say whether a server can bind ``port`` on loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


class ServerProcess:
    """A server in a process group of its own, with a log, that dies with us whatever happens."""

    def __init__(self, name: str, argv: Sequence[str], home: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = home / f"{name}.log"
        with self.log.open("wb") as log:
            check_announced("server")
            self._process = subprocess.Popen(
                list(argv),
                cwd=home,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Reads a pipe whose other end only we hold: when we die, even by SIGKILL, it ends the group.
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, str(self._process.pid), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def wait_ready(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Return once ``ready`` says so; a dead server or a passed time limit is a ``ServerError``."""

        def is_ready() -> bool:
            if ready():
                return True
            if self._process.poll() is not None:
                raise ServerError(f"{self.name} ended with {self._process.returncode}: {self._tail()}")
            return False

        try:
            wait_until(is_ready, f"{self.name} is ready", timeout_seconds)
        except AssertionError as error:
            raise ServerError(f"{error}: {self._tail()}") from None

    def stop(self) -> None:
        """End the server and everything that it started."""
        self._signal_group(signal.SIGTERM)
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._signal_group(signal.SIGKILL)
            self._process.wait(timeout=10)
        self._signal_group(signal.SIGKILL)
        self._watchdog.kill()
        self._watchdog.wait(timeout=10)
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()

    def _signal_group(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signum)

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def running(
    name: str,
    argv: Callable[[Path, Sequence[int]], Sequence[str]],
    *,
    ports: int = 1,
    with_grpc: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[ServerProcess, list[int]]]:
    """Run ``argv(home, ports)`` in a temporary home; stop it and remove the home at the end."""
    lease = PortLease()
    home = Path(tempfile.mkdtemp(prefix=f"ckpt-{name}-"))
    try:
        taken = lease.take(ports, with_grpc=with_grpc)
        server = ServerProcess(name, argv(home, taken), home, env or {})
        try:
            yield server, taken
        finally:
            server.stop()
    finally:
        lease.release()
        shutil.rmtree(home, ignore_errors=True)


def accepts(port: int) -> bool:
    """Say whether something listens on ``port``."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False
