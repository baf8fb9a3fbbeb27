"""What holds for every command: help, exit status, errors with their cure, what is imported."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.cli import exits
from pyspark_checkpoint.cli.console import bar_line
from pyspark_checkpoint.cli.main import COMMANDS, load_command
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from tests.cli.kit import Shell
from tests.support.sink_kit import Query

PYTHON = (sys.executable, "-m", "pyspark_checkpoint")
CHANGING = ("restore", "rewind", "rollback", "savepoint", "prune", "gc", "copy", "rekey")


@contextmanager
def running(*typed: str, **settings: Any) -> Iterator[subprocess.Popen[Any]]:
    """The command as a process of its own, which ends with the block; Ctrl-C reaches it.

    Whoever is started in the background of a script ignores Ctrl-C, and so would what it starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen([*PYTHON, *typed], **settings) as process:
        try:
            yield process
        finally:
            process.kill()


def test_help_lists_every_command_and_every_exit_status(ckpt: Shell) -> None:
    """What ``ckpt --help`` says is what there is; without a command it is shown too, as a mistake."""
    done = ckpt("--help")
    assert done.status == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\w", done.out, re.MULTILINE)
    for status in exits.MEANINGS:
        assert re.search(rf"^  {status} +\w", done.out, re.MULTILINE)
    assert ckpt().status == exits.USAGE
    assert ckpt("help", "list").out == ckpt("list", "--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(ckpt: Shell, name: str) -> None:
    """And JSON for programs; what changes something has a dry run."""
    done = ckpt(name, "--help")
    assert done.status == 0
    assert "examples:" in done.out
    assert f"ckpt {name}" in done.out.partition("examples:")[2]
    assert "--json" in done.out
    assert ("--dry-run" in done.out) == (name in CHANGING)
    assert load_command(name).ABOUT.split()[0].istitle()


def test_a_mistake_says_what_was_meant(ckpt: Shell) -> None:
    """A command, an option of a command and an option of a store."""
    done = ckpt("lsit")
    assert (done.status, "did you mean ckpt list?" in done.err) == (exits.USAGE, True)
    assert done.err.startswith("error CKPT-SETTINGS: there is no command")
    assert ckpt("list", "--nothing").status == exits.USAGE
    done = ckpt("list", "memory://none", "--option", "acesKey=TOPSECRET")
    assert (done.status, "did you mean accessKey?" in done.err) == (exits.USAGE, True)
    assert "TOPSECRET" not in done.err + done.out
    done = ckpt("list", "memory://none", "--option", "TOPSECRET")
    assert done.status == exits.USAGE
    assert "TOPSECRET" not in done.err + done.out


def test_each_kind_of_error_has_its_exit_status(ckpt: Shell, table: str, tmp_path: Path) -> None:
    """With its cure on standard error and never with a traceback."""
    nothing = ckpt("list", tmp_path / "nothing")
    assert (nothing.status, nothing.out) == (exits.REFUSED, "")
    unknown = ckpt("show", table, "99")
    assert (unknown.status, "hint: ckpt list" in unknown.err) == (exits.REFUSED, True)
    denied = ckpt("list", tmp_path / "table" / "_control")
    assert denied.status == exits.STORE
    (Path(table) / manifest_key(5)).write_bytes(b"{}")
    damaged = ckpt("show", table)
    assert (damaged.status, "hint:" in damaged.err) == (exits.DAMAGED, True)
    for done in (nothing, unknown, denied, damaged):
        assert re.fullmatch(r"error CKPT-[A-Z-]+: .+\n  hint: .+\n", done.err)


def test_an_error_is_json_for_programs(ckpt: Shell, table: str) -> None:
    """Standard output is one document then too; people read the same on standard error."""
    done = ckpt("show", table, "99", "--json")
    assert done.status == exits.REFUSED
    told = done.json["error"]
    assert (told["code"], told["status"]) == ("CKPT-NO-CHECKPOINT", done.status)
    assert done.err == f"error {told['code']}: {told['message']}\n  hint: {told['hint']}\n"


@pytest.mark.process
def test_looking_imports_no_spark_and_no_cloud() -> None:
    """What makes a command slow to start is not imported unless it is needed."""
    heavy = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "boto3", "google.cloud", "azure")
    code = (
        "import sys; from pyspark_checkpoint.cli.main import main, COMMANDS, load_command\n"
        "main(['--help'])\n"
        "assert 'pyspark_checkpoint.history' not in sys.modules\n"
        "for name in COMMANDS: load_command(name)\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.process
@pytest.mark.parametrize("typed", [("read",), ("diff", "1", "--rows")], ids=lambda typed: typed[0])
def test_without_spark_the_cure_is_told(table: str, typed: tuple[str, ...]) -> None:
    """Where pyspark is not installed, what needs it says which line installs it; the rest works."""
    name, *rest = typed
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from pyspark_checkpoint.cli.main import main\n"
        f"assert main(['list', {table!r}]) == 0\n"
        f"sys.exit(main([{name!r}, {table!r}, *{rest!r}]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == exits.USAGE
    assert "hint: pip install 'pyspark-checkpoint[spark]'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.process
def test_the_command_is_installed_and_is_the_module(table: str) -> None:
    """``ckpt`` and ``python -m pyspark_checkpoint`` are one."""
    script = Path(sys.executable).parent / "ckpt"
    ran = [
        subprocess.run([*start, "list", table, "--json"], capture_output=True, text=True, check=True).stdout
        for start in ((str(script),), PYTHON)
    ]
    assert ran[0] == ran[1]


@pytest.mark.process
def test_a_reader_that_has_had_enough_is_no_error(table: str) -> None:
    """``ckpt ... | head -1`` prints a line and no complaint."""
    command = f"{' '.join(PYTHON)} list {table} --json | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("[\n", "")


@pytest.mark.process
def test_watch_tells_each_change_and_ends_with_ctrl_c(table: str) -> None:
    """A line for the newest, then one for each new checkpoint and savepoint; Ctrl-C is a good end."""
    pipe = subprocess.PIPE
    with running("watch", table, "--interval", "0.1s", stdout=pipe, stderr=pipe, text=True) as watching:
        assert watching.stdout is not None
        assert "checkpoint 5, epoch 4" in watching.stdout.readline()
        CheckpointStore.open(table).savepoint("seen")
        assert "seen keeps checkpoint 5" in watching.stdout.readline()
        Query(table).epoch(5, [(9, 9)])
        told = watching.stdout.readline() + watching.stdout.readline()
        assert "(claim)" in told
        assert "epoch 5" in told
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=30)
        assert (watching.returncode, errors) == (0, "")


@pytest.mark.process
def test_on_a_terminal_watch_draws_in_place(table: str) -> None:
    """The view is drawn over itself; what it shows is the newest first."""
    reading, writing = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with running("watch", table, "--interval", "0.1s", stdout=writing, stderr=writing, env=env) as watching:
        os.close(writing)
        screen = ""
        while "\x1b[J" not in screen:
            screen += os.read(reading, 4096).decode()
        watching.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(reading, 4096):
                screen += chunk.decode()
        except OSError:
            pass  # the terminal is gone with the last one who wrote to it
        os.close(reading)
        assert watching.wait(30) == 0
    assert "Traceback" not in screen
    assert re.search(r"\n +5 +4 +epoch.*\n +4 +3 +epoch", screen.replace("\r", ""))


def test_a_bar_says_how_much_is_done_and_how_long_it_takes() -> None:
    """A quarter after two seconds leaves six."""
    line = bar_line("copy", 25_000_000, 100_000_000, 2.0)
    assert line == "copy [######..................]  25%  25.0 MB of 100 MB  6.0 s left"
    assert bar_line("copy", 0, 0, 0.0).endswith("100%  0 B of 0 B")
