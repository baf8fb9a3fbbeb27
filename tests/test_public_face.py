"""The package's own names: loaded when used, listed, and nothing else."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pyspark_checkpoint


@pytest.mark.parametrize("name", pyspark_checkpoint.__all__)
def test_every_public_name_loads(name: str) -> None:
    """What the table of exports names exists, and is in dir()."""
    assert getattr(pyspark_checkpoint, name) is not None
    assert name in dir(pyspark_checkpoint)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As with any module."""
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = pyspark_checkpoint.no_such_name


def test_a_public_name_is_the_object_of_its_module() -> None:
    """No copies, no wrappers."""
    module = importlib.import_module("pyspark_checkpoint.store.open")
    assert pyspark_checkpoint.open_object_store is module.open_object_store
    assert pyspark_checkpoint.errors is importlib.import_module("pyspark_checkpoint.errors")


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Importing such a module would put it in the function's place, for the whole process."""
    package = Path(pyspark_checkpoint.__file__).parent
    rooms = {path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert rooms & set(pyspark_checkpoint.__all__) == {"errors"}


FRONT_DOORS = (
    pyspark_checkpoint.checkpoint,
    pyspark_checkpoint.configure,
    pyspark_checkpoint.idempotent_options,
    pyspark_checkpoint.open_object_store,
    pyspark_checkpoint.preflight,
    pyspark_checkpoint.restore,
    pyspark_checkpoint.rewind,
    pyspark_checkpoint.savepoint,
)


def methods() -> Iterator[tuple[str, Callable[..., object]]]:
    """What the two public classes offer, but for Spark's callbacks."""
    for kind in (pyspark_checkpoint.CheckpointListener, pyspark_checkpoint.CheckpointStore):
        ours = {
            name
            for base in kind.__mro__
            if base.__module__.startswith("pyspark_checkpoint")
            for name in vars(base)
        }
        for name, method in inspect.getmembers(kind, inspect.isroutine):
            if name in ours and (name == "__init__" or not name.startswith(("_", "on"))):
                yield f"{kind.__name__}.{name}", method


@pytest.mark.parametrize(("name", "method"), list(methods()))
def test_a_public_method_names_every_argument(name: str, method: Callable[..., object]) -> None:
    """In a line of its own, or in its sentence."""
    text = inspect.getdoc(method) or ""
    parameters = [one for one in inspect.signature(method).parameters.values() if one.name != "self"]
    assert all(one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters), name
    assert all(one.annotation is not one.empty for one in parameters), name
    told = [one.name for one in parameters if f"    {one.name}: " in text or f"``{one.name}``" in text]
    assert told == [one.name for one in parameters], name


@pytest.mark.parametrize("door", FRONT_DOORS, ids=lambda door: door.__name__)
def test_a_front_door_names_and_explains_every_argument(door: Callable[..., object]) -> None:
    """Completion needs names, readers need sentences: no ``**settings``, and a line for each argument."""
    parameters = inspect.signature(door).parameters.values()
    text = inspect.getdoc(door) or ""
    assert all(one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)
    assert all(one.annotation is not one.empty for one in parameters)
    assert [one.name for one in parameters if f"    {one.name}: " not in text] == []
    assert all(f"{section}:\n" in text for section in ("Args", "Returns", "Raises"))
