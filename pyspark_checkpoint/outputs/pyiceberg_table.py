"""Iceberg tables without Spark, through pyiceberg: of the REST, SQL, Hive and Glue catalogs that it knows.

The catalog is the first part of the table's name. pyiceberg reads how to reach it, and with which
credentials, from ``.pyiceberg.yaml`` or variables such as ``PYICEBERG_CATALOG__LAKE__URI``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark_checkpoint.errors import Denied, NotFound, OutcomeUnknown, StaleAttempt, Unavailable
from pyspark_checkpoint.outputs.iceberg_table import MAIN

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.update import TableUpdate

_FOR_EVER_MS = (1 << 63) - 1


class PyIcebergTable:
    """An ``IcebergTable`` of a catalog, which checks a reference and sets it in one step."""

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        """``identifier`` is the table's name within the catalog."""
        self._catalog = catalog
        self._identifier = identifier

    def read_metadata(self) -> bytes:
        """The current metadata, read anew."""
        with _translated(self._identifier):
            return (
                self._catalog.load_table(self._identifier).metadata.model_dump_json(by_alias=True).encode()
            )

    def set_reference(self, name: str, snapshot_id: int | None, expected_id: int | None) -> None:
        """Point the branch ``main`` or a tag to a snapshot, if it points to ``expected_id`` now."""
        from pyiceberg.table.update import (  # noqa: PLC0415 - an extra, and slow to import
            AssertRefSnapshotId,
            RemoveSnapshotRefUpdate,
            SetSnapshotRefUpdate,
        )

        update: TableUpdate
        if snapshot_id is None:
            update = RemoveSnapshotRefUpdate.model_validate({"ref-name": name})
        else:
            fields = {
                "ref-name": name,
                "type": "branch" if name == MAIN else "tag",
                "snapshot-id": snapshot_id,
            }
            kept = {} if name == MAIN else {"max-ref-age-ms": _FOR_EVER_MS}
            update = SetSnapshotRefUpdate.model_validate(fields | kept)
        with _translated(self._identifier):
            table = self._catalog.load_table(self._identifier)
            expected = AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": expected_id})
            self._catalog.commit_table(table, (expected,), (update,))


def find_pyiceberg_table(name: str) -> PyIcebergTable | None:
    """The table of a name such as ``lake.db.numbers``; None if pyiceberg does not know its catalog."""
    catalog, _, identifier = name.partition(".")
    if not identifier or "/" in name or find_spec("pyiceberg") is None:
        return None
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra, and slow to import
    from pyiceberg.utils.config import Config  # noqa: PLC0415

    with _translated(name):
        config = Config().get_catalog_config(catalog)  # as it is now, and not when pyiceberg was imported
        if config is None:
            return None
        return PyIcebergTable(
            load_catalog(catalog, **{key: str(config[key]) for key in config}), identifier
        )


@contextmanager
def _translated(name: str) -> Iterator[None]:
    from pyiceberg import exceptions  # noqa: PLC0415 - an extra

    try:
        yield
    except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
        raise NotFound(
            f"the catalog that pyiceberg is configured for has no table {name}",
            hint="check the name, and the catalog's uri in .pyiceberg.yaml",
        ) from None
    except exceptions.CommitFailedException:
        raise StaleAttempt(f"somebody else has just committed to Iceberg table {name}") from None
    except exceptions.CommitStateUnknownException:
        raise OutcomeUnknown(f"the catalog did not say whether its commit to {name} was done") from None
    except (exceptions.UnauthorizedError, exceptions.ForbiddenError):
        raise Denied(
            f"the catalog of Iceberg table {name} does not allow it",
            hint="check the credentials that pyiceberg is configured with",
        ) from None
    except Exception as error:  # noqa: BLE001 - each catalog's client has errors of its own
        raise Unavailable(
            f"Iceberg table {name} cannot be reached by pyiceberg ({type(error).__name__})",
            hint="check the catalog's configuration for pyiceberg; try it with the command pyiceberg",
        ) from None
