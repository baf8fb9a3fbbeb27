"""The files in ``conf/``: each is loaded, and leads to a store that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.config import parse_plugin_settings, unknown_settings
from pyspark_checkpoint.store.open import open_object_store
from tests.conftest import Place, fresh_place
from tests.plugin.lab import PLUGIN

CONF = Path(__file__).resolve().parents[2] / "conf"
SCHEMES = {"local": "file", "s3": "s3", "gcs": "gs", "azure": "az"}


def load(name: str) -> dict[str, str]:
    """A properties file as ``--properties-file`` reads it: a name, white space, a value."""
    lines = (CONF / f"{name}.conf").read_text().splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_conf_file_leads_to_a_store_that_works(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With the URL and the options of a test server in place of the file's own."""
    confs = load(name)
    assert confs["spark.plugins"] == PLUGIN
    assert confs["spark.ckpt.restore"] == "missing"
    assert unknown_settings(confs) == []
    parse_plugin_settings(confs, "app")
    place: Place = fresh_place(request, SCHEMES[name], tmp_path)
    confs["spark.ckpt.url"] = place.url
    confs |= {f"spark.ckpt.secret.{option}": value for option, value in place.options.items()}
    assert unknown_settings(confs) == []
    settings = parse_plugin_settings(confs, "app")
    store = open_object_store(settings.url, settings.options, env={})
    store.put("a", b"1", if_absent=True)
    assert store.get("a") == b"1"
    store.close()


@pytest.mark.parametrize("name", SCHEMES)
def test_what_a_conf_file_offers_as_a_comment_is_known(name: str) -> None:
    """Every line that begins with #spark. is a setting that works when it is uncommented."""
    lines = (CONF / f"{name}.conf").read_text().splitlines()
    offered = {line[1:].split()[0]: "1" for line in lines if line.startswith("#spark.")}
    assert unknown_settings(offered) == []


def test_the_reference_names_nothing_unknown() -> None:
    """It lists everything; that it is complete is tested with the settings."""
    lines = (CONF / "reference.conf").read_text().splitlines()
    offered = {line[1:].split()[0]: "1" for line in lines if line.startswith("#spark.")}
    assert unknown_settings(offered) == []
