"""Errors have stable codes, a page that lists them, and a hint at every place that makes one."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from pyspark_checkpoint import errors
from pyspark_checkpoint.cli.main import COMMANDS
from pyspark_checkpoint.errors import CheckpointError, FormatError, RefusedError, SettingsError, Unavailable

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pyspark_checkpoint"
CODES = {
    "CheckpointError": "CKPT-ERROR",
    "StoreError": "CKPT-STORE",
    "NotFound": "CKPT-STORE-NOT-FOUND",
    "AlreadyExists": "CKPT-STORE-EXISTS",
    "Conflict": "CKPT-STORE-CONFLICT",
    "Unavailable": "CKPT-STORE-UNAVAILABLE",
    "OutcomeUnknown": "CKPT-STORE-UNKNOWN",
    "Denied": "CKPT-STORE-DENIED",
    "Invalid": "CKPT-STORE-INVALID",
    "TooLarge": "CKPT-STORE-TOO-LARGE",
    "ChecksumRefused": "CKPT-STORE-CHECKSUM",
    "SettingsError": "CKPT-SETTINGS",
    "MissingExtra": "CKPT-MISSING-PACKAGE",
    "MissingKey": "CKPT-MISSING-KEY",
    "UnsafeStore": "CKPT-UNSAFE-STORE",
    "FencedError": "CKPT-FENCED",
    "StaleAttempt": "CKPT-STALE-ATTEMPT",
    "StepAside": "CKPT-STEP-ASIDE",
    "RefusedError": "CKPT-REFUSED",
    "Diverged": "CKPT-DIVERGED",
    "InUse": "CKPT-IN-USE",
    "NoCheckpoint": "CKPT-NO-CHECKPOINT",
    "Incompatible": "CKPT-INCOMPATIBLE",
    "Unsupported": "CKPT-UNSUPPORTED",
    "Busy": "CKPT-BUSY",
    "FormatError": "CKPT-FORMAT",
    "UnknownVersion": "CKPT-VERSION",
    "IntegrityError": "CKPT-INTEGRITY",
}
"""Stable: alerts and runbooks depend on them. A row may be added, never changed."""


def kinds(base: type[CheckpointError] = CheckpointError) -> Iterator[type[CheckpointError]]:
    """Every error of ``errors.py``, below ``base`` and itself."""
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from kinds(kind)


def local_kinds(trees: Iterable[ast.Module]) -> dict[str, bool]:
    """Errors that are defined elsewhere than in ``errors.py``, and whether they bring a hint themselves."""
    known = {kind.__name__: kind.default_hint is not None for kind in kinds()}
    found: dict[str, bool] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in known]
            if bases:
                found[node.name] = known[bases[0]] or "default_hint" in ast.unparse(node)
    return found


def sites_without_hint(tree: ast.Module, local: Mapping[str, bool]) -> list[int]:
    """The lines at which an error is made that has no hint: neither given there nor by its class."""
    names = {kind.__name__: kind.default_hint is not None for kind in kinds()} | dict(local)
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _called(node) in names
        and not names[_called(node)]
        and not any(_is_hint(keyword) for keyword in node.keywords)
    ]


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_hint(keyword: ast.keyword) -> bool:
    if keyword.arg is None:
        return True
    is_empty = isinstance(keyword.value, ast.Constant) and not keyword.value.value
    return keyword.arg == "hint" and not is_empty


def test_codes_are_stable_and_unique() -> None:
    """Each class has its own code, and keeps it."""
    found = {kind.__name__: kind.code for kind in kinds()}
    assert found == CODES
    assert len(set(found.values())) == len(found)
    assert all("code" in vars(kind) for kind in kinds())
    assert all(re.fullmatch(r"CKPT(-[A-Z]+)+", code) for code in found.values())


def test_the_tree_of_the_module_docstring_is_the_tree_of_the_classes() -> None:
    """Every class is drawn once, below its own base."""
    drawn: list[tuple[int, str]] = [
        (line.index("+--"), line.split("+-- ")[1].split()[0])
        for line in (inspect.getdoc(errors) or "").splitlines()
        if "+-- " in line
    ]
    base_of, path = {}, list[tuple[int, str]]()
    for depth, name in drawn:
        path = [above for above in path if above[0] < depth]
        base_of[name] = path[-1][1] if path else "CheckpointError"
        path.append((depth, name))
    assert len(drawn) == len(base_of)
    assert base_of == {
        kind.__name__: kind.__bases__[0].__name__ for kind in kinds() if kind is not CheckpointError
    }


def test_the_page_lists_every_error_with_cause_and_cure() -> None:
    """docs/errors.md has one row a class, with its code, and leaves no cell empty."""
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| `(CKPT-[A-Z-]+)` \| `(\w+)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert {name: code for code, name, _, _ in rows} == CODES
    assert len(rows) == len(CODES) == len(re.findall(r"^\| `CKPT", page, re.MULTILINE))


def test_an_error_without_a_hint_of_its_own_has_that_of_its_class() -> None:
    """A hint that is given goes first; another process gets the same one."""
    plain, given = FormatError("torn"), FormatError("torn", hint="look")
    assert (plain.own_hint, plain.hint) == (None, FormatError.default_hint)
    assert (given.own_hint, given.hint, str(given)) == ("look", "look", "torn (look)")
    for error in (plain, Unavailable("slow", key="k", retry_after_seconds=2.5)):
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(other), other.args, vars(other)) == (type(error), error.args, vars(error))
            assert other.hint == error.hint


def test_what_depends_on_the_place_has_no_hint_for_all() -> None:
    """What was typed and what was refused need a hint of their own at each place."""
    own = {kind for base in (SettingsError, RefusedError) for kind in kinds(base)}
    assert {kind for kind in kinds() if kind.default_hint is None} == {CheckpointError, *own}


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        ('RefusedError("no")', True),
        ('RefusedError("no", hint="")', True),
        ('RefusedError("no", hint=None)', True),
        ('RefusedError("no", hint="look")', False),
        ('RefusedError("no", **more)', False),
        ('FormatError("torn")', False),
        ("error", False),
        ('build("no")', False),
    ],
)
def test_a_place_without_a_hint_is_found(made: str, missing: bool) -> None:
    """Whether the error is raised there, returned or kept."""
    for text in (f"raise {made}", f"problem = {made}", f"raise errors.{made}"):
        assert sites_without_hint(ast.parse(text), {}) == ([1] if missing else [])


def test_an_error_of_another_module_is_one_too() -> None:
    """It has the hint of its base, one of its own, or one at each place."""
    tree = ast.parse(
        "class Gone(RefusedError):\n    pass\n"
        "class Torn(FormatError):\n    pass\n"
        "class Away(RefusedError):\n    default_hint = 'look'\n"
        "raise Gone('no')\nraise Torn('no')\nraise Away('no')"
    )
    assert local_kinds([tree]) == {"Gone": False, "Torn": True, "Away": True}
    assert sites_without_hint(tree, local_kinds([tree])) == [7]


def test_every_command_that_a_text_names_exists() -> None:
    """A hint that says ``ckpt something`` can be typed."""
    named = {
        (word, path.name)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"\bckpt ([a-z]+)\b", node.value)
    }
    assert {word for word, _ in named} >= {"verify", "list", "restore"}
    assert {one for one in named if one[0] not in COMMANDS} == set()


def test_every_place_that_makes_an_error_says_what_to_do() -> None:
    """A hint of its own, or that of its class."""
    trees = {
        path.relative_to(PACKAGE): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "errors.py"
    }
    local = local_kinds(trees.values())
    sites = {path: sites_without_hint(tree, local) for path, tree in trees.items()}
    assert [f"{path}:{line}" for path, lines in sites.items() for line in sorted(lines)] == []
