"""The Python that the jar finds, or does not: one clear message, before any worker starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.filemanager.jvm import running_jvm


def test_a_python_that_cannot_run_the_sink_is_named_with_the_cure(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such program, libraries that are missing, a package of another version; and one that will do."""
    bare, other = _python(tmp_path / "bare"), _python(tmp_path / "other")
    site = next((tmp_path / "other").glob("lib/python*/site-packages"))
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "others.pth").write_text(ours + "\n")
    (site / "pyspark_checkpoint").mkdir()
    (site / "pyspark_checkpoint" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    monkeypatch.chdir(tmp_path)  # where no package lies beside
    with running_jvm(jar, [], {}, tmp_path / "jvm.log") as jvm:
        problem = jvm.access.pythonProblem
        assert problem(sys.executable) == ""
        missing = problem(bare)
        assert "lacks pyarrow numpy pandas orjson cryptography" in missing
        assert f"{bare} -m pip install pyarrow" in missing
        assert "cannot run the Python /no/such/python" in problem("/no/such/python")
        differs = problem(other)
        assert "pyspark_checkpoint 9.9.9 installed" in differs
        assert "the jar has version" in differs


def _python(directory: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    return str(directory / "bin" / "python")
