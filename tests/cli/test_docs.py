"""docs/cli.md says what is so: its tables are those of the code, and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_checkpoint.cli import exits
from pyspark_checkpoint.cli.main import COMMANDS, load_command, parser_of
from tests.cli.kit import make_query, make_table

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text("utf-8")


def test_the_page_has_the_exit_statuses() -> None:
    """One table, word for word that of ``ckpt --help``."""
    for status, meaning in exits.MEANINGS.items():
        assert f"| {status} | {meaning} |" in PAGE


def test_the_page_has_every_command_with_every_option() -> None:
    """The row of a command, or what is said for all of them, names each option that it takes."""
    shared = PAGE.partition("For all of them:")[2].partition("CHECKPOINT is")[0]
    for name in COMMANDS:
        (row,) = re.findall(rf"^\| `{name}\b.*$", PAGE, re.MULTILINE)[:1]
        parser = parser_of(name, load_command(name))
        for action in parser._actions:
            for option in action.option_strings:
                if option.startswith("--") and option not in ("--out", "--to"):
                    assert option in row or option in shared, (name, option)


@pytest.mark.process
@pytest.mark.parametrize(("page", "at_least"), [("cli.md", 20), ("operations.md", 7)])
def test_the_examples_of_the_page_run(tmp_path: Path, page: str, at_least: int) -> None:
    """All of them, one after the other, in a directory with two queries and a table."""
    make_query(tmp_path / "checkpoints", tmp_path / "orders-location", 0, 1, 2)
    make_query(tmp_path / "checkpoints", tmp_path / "clicks-location", 0, 1, name="clicks")
    make_table(tmp_path / "table", 5)
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line]
    assert len(lines) >= at_least
    script = "\n".join(["set -e", *(f'echo "{line.split("#")[0].strip()}"; {line}' for line in lines)])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr
    assert (tmp_path / "report.html").exists() or page != "cli.md"
