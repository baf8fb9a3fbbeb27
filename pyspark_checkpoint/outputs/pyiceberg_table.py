"""Iceberg tables without Spark, through pyiceberg: of the REST, SQL, Hive and Glue catalogs that it knows.

The catalog is the first part of the table's name. pyiceberg reads how to reach it, and with which
credentials, from ``.pyiceberg.yaml`` or variables such as ``PYICEBERG_CATALOG__LAKE__URI``. Where it is not
configured, and the confs of a session that is still to come are known, those say it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyspark_checkpoint.errors import Denied, NotFound, OutcomeUnknown, StaleAttempt, Unavailable
from pyspark_checkpoint.outputs.iceberg_table import MAIN, FindTable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.update import TableUpdate

SPARK_CATALOG = "spark.sql.catalog."
"""How confs of Spark begin that name a catalog and say how it is reached."""
_FOR_EVER_MS = (1 << 63) - 1
_CLASSES = ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg.spark.SparkSessionCatalog")
_TYPES = {"rest": "rest", "hive": "hive", "glue": "glue", "jdbc": "sql"}
"""pyiceberg's names of the catalogs that it shares with Spark."""
_IMPLEMENTATIONS = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
}
_OF_SPARK = ("type", "catalog-impl", "io-impl", "jdbc.user", "jdbc.password")


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


def find_pyiceberg_table(name: str, confs: Mapping[str, str] | None = None) -> PyIcebergTable | None:
    """The table of a name such as ``lake.db.numbers``; None if pyiceberg does not know its catalog.

    ``confs`` are Spark's, which count where pyiceberg is not configured for the catalog.
    """
    catalog, _, identifier = name.partition(".")
    if not identifier or "/" in name or find_spec("pyiceberg") is None:
        return None
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra, and slow to import
    from pyiceberg.utils.config import Config  # noqa: PLC0415

    with _translated(name):
        config = Config().get_catalog_config(catalog)  # as it is now, and not when pyiceberg was imported
        told = catalog_properties(confs or {}, catalog) if config is None else config
        if told is None:
            return None
        return PyIcebergTable(load_catalog(catalog, **{key: str(told[key]) for key in told}), identifier)


def tables_of_confs(confs: Mapping[str, str]) -> FindTable:
    """How tables are found before there is a session: by pyiceberg, and the confs that it will have."""
    return lambda name: find_pyiceberg_table(name, confs)


def catalog_properties(confs: Mapping[str, str], catalog: str) -> dict[str, str] | None:
    """What Spark's confs say of an Iceberg catalog, as pyiceberg spells it. Pure.

    None if they name no such catalog, or one that only Java knows: of files (``hadoop``), a class of
    somebody's own, or a database for which pyiceberg has no driver.
    """
    prefix = f"{SPARK_CATALOG}{catalog}"
    if confs.get(prefix) not in _CLASSES:
        return None
    given = {
        name.removeprefix(f"{prefix}."): text
        for name, text in confs.items()
        if name.startswith(f"{prefix}.")
    }
    implementation = given.get("catalog-impl")
    kind = (
        given.get("type", "hive").lower()
        if implementation is None
        else _IMPLEMENTATIONS.get(implementation)
    )
    found = {name: text for name, text in given.items() if name not in _OF_SPARK}
    if kind == "jdbc":
        found["uri"] = _database(given)
    if kind not in _TYPES or not (kind == "glue" or found.get("uri")):
        return None
    return {"type": _TYPES[kind], **found}


def _database(given: Mapping[str, str]) -> str:
    """SQLAlchemy's URI of the database that JDBC names; empty if there is no driver for it."""
    uri = given.get("uri", "").removeprefix("jdbc:")
    scheme, _, rest = uri.partition(":")
    if scheme == "sqlite":
        return f"sqlite:///{rest}"
    if scheme != "postgresql" or not rest.startswith("//"):
        return ""
    user, password = (quote(given.get(f"jdbc.{name}", ""), safe="") for name in ("user", "password"))
    login = f"{user}:{password}@" if password else f"{user}@"
    return f"postgresql+psycopg2://{login if user else ''}{rest.removeprefix('//')}"


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
