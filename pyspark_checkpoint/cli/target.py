"""From what was typed to an open history, and to the checkpoint in it that is meant."""

from __future__ import annotations

from pyspark_checkpoint.cli.arguments import Place
from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history import lookup
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import (
    QueryNames,
    is_history,
    plain_options,
    read_names,
    resolve_root,
)
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store

LATEST = "latest"
"""What ``capture.operations`` calls so too; importing that would cost every command a tenth of a second."""
REFERENCE = "a number, a savepoint, epoch=N or latest"


def open_history(place: Place) -> CheckpointStore:
    """The history that is meant; ``RefusedError`` if there is none, or several."""
    return CheckpointStore.open(resolve_root(place.url, place.query, place.options), place.options)


def open_parent(place: Place) -> ObjectStore:
    """What is at the URL itself."""
    return open_object_store(place.url, plain_options(place.options))


def find_queries(place: Place) -> QueryNames | None:
    """The queries below the URL; None if one is chosen, or if the URL is a history itself."""
    names = QueryNames() if place.query is not None else find_names(place)[1]
    return names if names.roots or names.damaged else None


def find_names(place: Place) -> tuple[ObjectStore, QueryNames]:
    """What is at the URL, and the queries below it that are meant; none if it is a history itself."""
    parent = open_parent(place)
    if place.query is None and is_history(parent):
        return parent, QueryNames()
    names = read_names(parent)
    if place.query is None:
        return parent, names
    return parent, QueryNames(
        tuple(root for root in names.roots if place.query in (root.name, root.query_id))
    )


def find_number(history: CheckpointStore, typed: str) -> int:
    """The number that was typed, or what the savepoint, ``epoch=N`` or ``latest`` stands for."""
    text = typed.strip()
    if text.isdigit():
        return int(text)
    number: int | None
    if text == LATEST:
        number = max(history.list_ids(), default=None)
    elif text.startswith("epoch=") and text.removeprefix("epoch=").isdigit():
        number = lookup.find_number_by_epoch(history.store, int(text.removeprefix("epoch=")))
    else:
        number = lookup.find_number_by_savepoint(history.store, text)
    if number is None:
        raise RefusedError(
            f"{history.store.url} has no checkpoint {typed!r}",
            hint=f"give {REFERENCE}; ckpt list shows what there is",
        )
    return number


def read_manifest(history: CheckpointStore, typed: str) -> CheckpointManifest:
    """The manifest of the checkpoint that was typed."""
    number = find_number(history, typed)
    try:
        manifest = history.load_by_id(number)
    except FormatError as error:
        error.hint = error.own_hint or (
            "ckpt verify shows the damage; ckpt rollback goes back to a good checkpoint"
        )
        raise
    if manifest is None:
        raise RefusedError(
            f"{history.store.url} has no checkpoint {number}", hint="ckpt list shows what it has"
        )
    return manifest
