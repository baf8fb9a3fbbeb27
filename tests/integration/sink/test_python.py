"""The Python that the jar finds, or does not: one clear message, before any worker starts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.filemanager.jvm import Jvm, running_jvm


@pytest.fixture(scope="module")
def jvm(jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """A JVM in a directory where no package lies beside, but a file that has a library's name."""
    home = tmp_path_factory.mktemp("jvm")
    (home / "orjson.py").write_text("raise SystemExit('this is not the library')\n")
    with contextlib.ExitStack() as stack:
        with contextlib.chdir(home):
            running = stack.enter_context(running_jvm(jar, [], {}, home / "jvm.log"))
        yield running


def test_a_python_that_cannot_run_the_sink_is_named_with_the_cure(jvm: Jvm, tmp_path: Path) -> None:
    """No such program, libraries that are missing or of another Python, a package of another version; and
    one that will do.

    What lies in the directory that the application was started in is no library.
    """
    bare, other = _python(tmp_path / "bare"), _python(tmp_path / "other")
    site = next((tmp_path / "other").glob("lib/python*/site-packages"))
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "others.pth").write_text(ours + "\n")
    (site / "pyspark_checkpoint").mkdir()
    (site / "pyspark_checkpoint" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    third = _python(tmp_path / "third")
    site = next((tmp_path / "third").glob("lib/python*/site-packages"))
    (site / "others.pth").write_text(ours + "\n")
    (site / "orjson").mkdir()
    (site / "orjson" / "__init__.py").write_text("from orjson.orjson import loads\n")
    problem = jvm.python_problem
    assert problem(sys.executable) == ""
    missing = problem(bare)
    assert "lacks pyarrow numpy pandas orjson cryptography" in missing
    assert f"{bare} -m pip install pyarrow" in missing
    assert "cannot run the Python /no/such/python" in problem("/no/such/python")
    differs = problem(other)
    assert "pyspark_checkpoint 9.9.9 installed" in differs
    assert "the jar has version" in differs
    unusable = problem(third)
    assert "has orjson, but cannot load it (No module named 'orjson.orjson')" in unusable
    assert f"{third} -m pip install --force-reinstall orjson;" in unusable and "--archives" in unusable


def _python(directory: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    return str(directory / "bin" / "python")
