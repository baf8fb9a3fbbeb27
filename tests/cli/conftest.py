"""Commands run in this process; Spark and a browser where a command needs them, once a session."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.browser import Browser
from tests.cli.kit import Shell, make_query, make_table

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ckpt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command, in this process, without keys of the environment."""
    for name in ("CKPT_KEY_FILE", "CKPT_KEYRING"):
        monkeypatch.delenv(name, raising=False)
    return Shell(capsys)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A URL with two queries below it: ``orders`` with epochs 0 to 2, ``clicks`` with 0 and 1."""
    parent = tmp_path / "ckpt"
    make_query(parent, tmp_path / "orders-location", 0, 1, 2)
    make_query(parent, tmp_path / "clicks-location", 0, 1, name="clicks")
    return parent


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table with five checkpoints, 1 to 5, of epochs 0 to 4."""
    return make_table(tmp_path / "table", 5)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A real browser; installed if the machine has none."""
    subprocess.run([ROOT / "tools" / "install_chromium.sh"], check=True)
    path = (ROOT / ".tools" / "chromium" / "path").read_text().strip()
    return Browser(path, tmp_path_factory.mktemp("browser"))
