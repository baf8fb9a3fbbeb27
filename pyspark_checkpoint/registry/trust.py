"""Which of the places that a store's records name may be opened with the user's credentials.

Records and manifests name tables and checkpoint locations by URL, and whoever can write to a store can
write them. An Azure URL even names a host. So a table is opened only in the account or bucket that the user
typed, or in one that the option ``trustedStores`` lists. A checkpoint location may be anywhere that Spark
reaches; only a host that is neither a cloud's own nor one that the user typed is refused. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.open import StoreHome, home_of
from pyspark_checkpoint.store.options import TRUSTED_STORES, is_store_option
from pyspark_checkpoint.store.url import AZURE_SUFFIXES, parse_store_url

Options = Mapping[str, str]


def check_named_table(
    table_url: str,
    typed_url: str,
    options: Options | None = None,
    table_options: Options | None = None,
) -> None:
    """Refuse a table that a record names elsewhere than in the account or bucket of ``typed_url``.

    ``table_options`` are what the table is opened with, if those are not ``options``.
    """
    home = _named_home(table_url, options if table_options is None else table_options)
    if home not in _trusted_homes(typed_url, options, table_options):
        raise RefusedError(
            f"a record names the table {table_url!r}, in another account or bucket than {typed_url}",
            hint=f"if it is yours, give the option {TRUSTED_STORES}={home.spelled} (--option, "
            f"spark.ckpt.option.{TRUSTED_STORES}), or the table's own URL",
        )


def check_named_location(location_url: str, typed_url: str, options: Options | None = None) -> None:
    """Refuse a checkpoint location that a record names on a host which no cloud has and nobody typed."""
    if not location_url or LocationSpec(location_url).is_foreign:
        return
    suffix = parse_store_url(location_url).azure_suffix
    if suffix is None or suffix in AZURE_SUFFIXES:
        return
    home = _named_home(location_url, options)
    if home not in _trusted_homes(typed_url, options):
        raise RefusedError(
            f"a record names the checkpoint location {location_url!r} on a host that is none of Azure's",
            hint=f"if it is yours, give the option {TRUSTED_STORES}={home.spelled}",
        )


def _named_home(url: str, options: Options | None) -> StoreHome:
    try:
        return _home(url, options)
    except SettingsError as error:
        raise RefusedError(f"a record names {url!r}, which cannot be opened: {error.message}") from None


def _trusted_homes(typed_url: str, *options: Options | None) -> Iterator[StoreHome]:
    yield _home(typed_url, options[0])
    for given in options:
        for name, value in (given or {}).items():
            if name.lower() == TRUSTED_STORES.lower():
                yield from (_home(url.strip(), given) for url in value.split(",") if url.strip())


def _home(url: str, options: Options | None) -> StoreHome:
    return home_of(url, {name: value for name, value in (options or {}).items() if is_store_option(name)})
