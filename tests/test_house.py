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
    "add_arguments": "every command has one: cli.main.Command",
    "run": "every command has one: cli.main.Command",
    "main": "what a process begins with: ckpt, and the two that the driver plugin starts",
}
"""Public names that a contract asks of several modules."""
STILL_TWICE = {
    "Call",
    "Link",
    "Place",
    "QueryFacts",
    "Translated",
    "check_names",
    "draft_manifest",
    "find_manifest",
    "is_given_up",
    "missing_bucket",
    "read_range",
    "restore",
    "translate",
    "translate_answer",
}
"""Public names that two modules still have for different things. Only to be shortened."""
FOR_OTHERS = ("compat/", "testing/")
"""Packages whose names are for users, and need no user in the package."""
CALLED_FROM_OUTSIDE = {"query_facts": "the jar names it in what it pickles for the driver"}
STILL_UNUSED = {
    "encrypted_size",
    "forget_run",
    "is_local",
    "operator_key",
    "partitions_with",
    "plan_only",
    "read_failures",
    "read_manifest",
    "source_log_files",
}
"""Functions and classes that nothing in the package uses, only tests do. Only to be shortened."""
SPARK_NAMES = "spark_files/names.py"
STILL_BUILT_ELSEWHERE = {
    "capture": 7,
    "history": 1,
    "listener": 1,
    "restorer": 13,
    "sink": 12,
    "spark_files": 22,
}
"""How many texts of a package still begin with the name of a directory of Spark's. Only to be lowered."""
UPPER_HALF = {"epoch": 31, "capture": 17, "restore": 13, "verify": 9}
"""Files of the upper half that a walk enters. Only to be lowered."""
CHANGES = {"epoch": 375, "capture": 146, "restore": 388, "verify": 219}
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
    assert twice.keys() - ALLOWED_TWICE.keys() == STILL_TWICE, twice
    assert twice.keys() >= ALLOWED_TWICE.keys(), "what is allowed and not there"


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
    assert unused.keys() == STILL_UNUSED, unused


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
    """Fewer than the table says is a failure too: then the table is lowered."""
    sites = {name: spark_paths(tree) for name, tree in modules() if name != SPARK_NAMES}
    found: Counter[str] = Counter()
    for name, lines in sites.items():
        found[name.split("/", 1)[0].removesuffix(".py")] += len(lines)
    told = "\n".join(f"{name}:{line}" for name, lines in sites.items() for line in lines)
    assert {name: times for name, times in found.items() if times} == STILL_BUILT_ELSEWHERE, told


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_does_not_grow(name: str) -> None:
    """The files that one reads to follow a batch, a capture, a restore or a verify; see tools/walks.py."""
    walk = count(name)
    assert len(walk.upper) <= UPPER_HALF[name], walk.upper
    assert walk.changes <= CHANGES[name]
