"""The house keeps its order: names occur once, Spark's names are built in one place, walks do not grow."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.walks import PACKAGE, WALKS, count

ALLOWED_TWICE = {
    "run": "every command has one: cli.main.Command",
    "missing_bucket": "an error of a backend, in its own errors module",
    "translate": "each backend's translator of its SDK's exceptions, in its own errors module",
    "translate_answer": "the same for an HTTP answer",
    "main": "what a process begins with: ckpt, and the two that the driver plugin starts",
}
"""Public names that a contract asks of several modules."""
FOR_OTHERS = ("compat/", "testing/")
"""Packages whose names are for users, and need no user in the package."""
CALLED_FROM_OUTSIDE = {
    "query_facts": "the jar names it in what it pickles for the driver",
    "inline_rows": "the same",
    "scanned_source": "the same, for a scan",
}
SPARK_NAMES = "spark_files/names.py"
UPPER_HALF = {"epoch": 28, "capture": 16, "restore": 13, "verify": 8}
"""Files of the upper half that a walk enters. Only to be lowered."""
CHANGES = {"epoch": 420, "capture": 160, "restore": 418, "verify": 225}
"""Calls on a walk that go from one package to another. Only to be lowered."""
_SPARK_PATH = re.compile(r"(?:offsets|commits|state|sources)/")
_SPARK_DIRECTORIES = ("offsets", "commits", "state", "sources")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package, by its path below it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8"))


def public_names(tree: ast.Module) -> Iterator[str]:
    """What a module defines at its top for others."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name


def spark_paths(tree: ast.Module) -> list[int]:
    """The lines at which a text begins with a directory of Spark's, or a path is joined from its name."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
            found += [node.lineno for part in parts if part in _SPARK_DIRECTORIES]
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found += [node.lineno] if _SPARK_PATH.match(node.value) else []
    return sorted(found)


def test_a_file_stem_occurs_once() -> None:
    """Whoever hears a module's name knows which one it is."""
    stems: defaultdict[str, list[str]] = defaultdict(list)
    for name, _ in modules():
        if Path(name).stem not in ("__init__", "__main__"):
            stems[Path(name).stem].append(name)
    assert {stem: names for stem, names in stems.items() if len(names) > 1} == {}


def test_a_public_name_occurs_once() -> None:
    """One name means one thing; where a contract asks for more, the list says which."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in modules():
        for name in public_names(tree):
            found[name].append(module)
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert twice.keys() == ALLOWED_TWICE.keys(), twice


def test_no_repr_shows_the_options_of_a_store() -> None:
    """They may be credentials, and a repr goes to logs and tracebacks."""
    shown = {
        f"{module}: {owner.name}.{field.target.id}"
        for module, tree in modules()
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        and any("dataclass" in ast.unparse(one) for one in owner.decorator_list)
        for field in owner.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and re.fullmatch(r"_?(\w+_)?options", field.target.id)
        and "repr=False" not in ast.unparse(field)
    }
    assert shown == set()


def test_nothing_is_there_for_tests_alone() -> None:
    """A name that occurs nowhere but where it is defined has no user."""
    words = Counter(
        word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\w+", path.read_text("utf-8"))
    )
    unused = {
        name: module
        for module, tree in modules()
        if not module.startswith(FOR_OTHERS)
        for name in public_names(tree)
        if words[name] == 1 and name not in CALLED_FROM_OUTSIDE
    }
    assert unused == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('name = f"offsets/{batch}"', [1]),
        ('path.startswith("state/")', [1]),
        ('root / "commits" / str(batch)', [1]),
        ('"""offsets/N is Spark\'s."""\nx = "my offsets/"', []),
        ('log == "offsets"', []),
    ],
)
def test_a_name_of_spark_is_recognized(text: str, lines: list[int]) -> None:
    """A path that begins with one of its directories, however it is put together."""
    assert spark_paths(ast.parse(text)) == lines


def test_spark_names_are_built_and_parsed_in_one_module() -> None:
    """Nobody else spells them but the fakes, which write what Spark writes and not what we expect."""
    found = {
        f"{name}:{line}"
        for name, tree in modules()
        if name != SPARK_NAMES and not name.startswith(FOR_OTHERS)
        for line in spark_paths(tree)
    }
    assert found == set()


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_does_not_grow(name: str) -> None:
    """The files that one reads to follow a batch, a capture, a restore or a verify; see tools/walks.py."""
    walk = count(name)
    assert len(walk.upper) <= UPPER_HALF[name], walk.upper
    assert walk.changes <= CHANGES[name]
