"""SIGKILL of a writer at random moments: no torn object, nothing that was confirmed is gone."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyspark_checkpoint.store.local.local_files import RESERVED
from pyspark_checkpoint.store.local.local_store import LocalStore
from tests.contract.killed_writer import is_whole, sealed

ROUNDS = 12
SEED = 20_261_117


def run_and_kill(root: Path, name: str, seed: int, seconds: float) -> list[str]:
    """Let a writer work for a while, kill it, and return the lines that it had confirmed."""
    argv = [sys.executable, "-m", "tests.contract.killed_writer", str(root), name, str(seed)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        writer.send_signal(signal.SIGKILL)
        confirmed = writer.stdout.read().decode()
        assert writer.wait() == -signal.SIGKILL
    return confirmed.splitlines()


@pytest.mark.process
@pytest.mark.parametrize("first_round", range(0, ROUNDS, 4))
def test_a_killed_writer_leaves_whole_objects_only(tmp_path: Path, first_round: int) -> None:
    """Whatever the moment: each object verifies, confirmed ones are there, and the store goes on."""
    store = LocalStore(tmp_path)
    store.put("counter", sealed(b"0"))
    counted = 0
    for index in range(first_round, first_round + 4):
        chance = random.Random(SEED + index)
        lines = run_and_kill(tmp_path, f"w{index}", SEED + index, chance.uniform(0.02, 0.3))
        counted += lines.count("counted")
        created = {line.split()[1] for line in lines if line.startswith("created")}
        deleted = {line.split()[1] for line in lines if line.startswith("deleted")}
        found = {info.key.split("/")[-1] for info in store.list(f"created/w{index}/")}
        last = max((int(step) for step in created), default=-1)
        may_be_gone = {str(last - 1)}  # a delete that was under way
        assert created - deleted - may_be_gone <= found, f"round {index}"
        assert not deleted & found, f"round {index}"
        assert found - created <= {str(last + 1)}, f"round {index}"
        for info in store.list():
            assert is_whole(store.get(info.key)), f"torn object {info.key} in round {index}"
        value = int(store.get("counter")[32:])
        assert counted <= value <= counted + 1, f"round {index}"
        counted = value


@pytest.mark.process
def test_what_a_killed_writer_leaves_unfinished_is_hidden(tmp_path: Path) -> None:
    """Killed in the middle of a large put: no object, only a file in the reserved directory."""
    script = (
        "import sys; from pathlib import Path\n"
        "from pyspark_checkpoint.store.local.local_store import LocalStore\n"
        "class Endless:\n"
        "    at = 0\n"
        "    def seekable(self): return True\n"
        "    def tell(self): return 0\n"
        "    def seek(self, offset, whence=0): return 1 << 40 if whence else offset\n"
        "    def read(self, n):\n"
        "        self.at += 1\n"
        "        if self.at == 3: print('writing', flush=True)\n"
        "        return bytes(min(n, 100_000))\n"
        f"LocalStore(Path({str(tmp_path)!r})).put('k', Endless(), if_absent=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    store = LocalStore(tmp_path)
    assert list(store.list()) == []
    assert len(list((tmp_path / RESERVED).iterdir())) == 1
    store.put("k", b"x", if_absent=True)
    assert [info.key for info in store.list()] == ["k"]
