"""Java names Python's modules, and Python Java's classes: each name must be there on the other side."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "jvm-shim" / "src"
JAVA_ROOTS = (SHIM / "main" / "java", SHIM / "test" / "java", ROOT / "tests" / "spark_suites" / "java")
MODULES = SHIM / "main" / "java" / "io" / "github" / "pysparkcheckpoint" / "python" / "PythonModules.java"
WRITTEN_IN = ("pyspark_checkpoint", "tests", "conf", "docs", "examples", "benchmarks", "jvm-shim/src")


def test_every_python_module_that_java_names_is_there() -> None:
    """A module that is moved is found here, and not when a driver starts it."""
    text = MODULES.read_text()
    (package,) = re.findall(r'PACKAGE = "(\w+)"', text)
    modules = dict(re.findall(r'(\w+) =\s+PACKAGE \+ "([.\w]+)"', text))
    members = dict(re.findall(r'(\w+) = "(\w+)"', text))
    for name in modules.values():
        importlib.import_module(package + name)
    called = (("MESSAGES", "QUERY_FACTS"), ("MESSAGES", "INLINE_ROWS"))
    source = (("DATA_SOURCE", "DATA_SOURCE_CLASS"), ("DATA_SOURCE", "SCANNED_SOURCE"))
    for module, member in (*source, *called):
        assert callable(getattr(importlib.import_module(package + modules[module]), members[member]))
    assert set(modules) == {"AUTO_RESTORE", "SIDE_PROCESS", "DATA_SOURCE", "MESSAGES"}


def test_no_other_java_file_names_a_python_module() -> None:
    """They are in one file, so that the test above sees all of them."""
    found = [
        path.name
        for path in (SHIM / "main" / "java").rglob("*.java")
        if path != MODULES and re.search(r'"pyspark_checkpoint\.|PACKAGE \+', path.read_text())
    ]
    assert found == []


def test_every_java_class_that_is_named_anywhere_is_there() -> None:
    """In Python, confs, docs and services: a class that is moved is found here."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in _named_classes()
        if not any((root / f"{name.replace('.', '/')}.java").is_file() for root in JAVA_ROOTS)
    ]
    assert missing == []


def _named_classes() -> Iterator[tuple[Path, str]]:
    """Every full name of a class, with the file that it is in."""
    pattern = re.compile(r"io\.github\.pysparkcheckpoint(?:\.[a-z_]+)*\.[A-Z]\w*")
    for folder in WRITTEN_IN:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".conf", ".scala", ".java", ""} and path.is_file():
                for name in pattern.findall(path.read_text(encoding="utf-8", errors="replace")):
                    yield path, name
