"""``docs/testing.md``: its example runs, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_checkpoint.testing.faulty_store import FaultKind

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")


def test_the_example_survives_a_crash_at_every_step() -> None:
    """It asserts so itself."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(step := names["step"], int)
    assert step > 10, "every call was one"


def test_the_page_names_every_kind_of_fault() -> None:
    """One row each."""
    assert [kind.name for kind in FaultKind] == re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
