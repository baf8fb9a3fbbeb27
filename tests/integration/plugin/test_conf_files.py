"""The files in ``conf/``: each is given to ``spark-submit``, and its application has a checkpoint then."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.plugin.plugin_settings import option_conf, unknown_settings
from pyspark_checkpoint.registry.queries import list_app_queries, root_url
from pyspark_checkpoint.store.open import open_object_store
from tests.integration.plugin.lab import Submitter, expected_batches, found_batches, write_input
from tests.support.servers.launch import AzureServer, GcsServer, S3Server

CONF = Path(__file__).resolve().parents[3] / "conf"
READY = ("local", "s3", "gcs", "azure")
APP = "totals-app"


def run_with(
    name: str, submitter: Submitter, home: Path, options: dict[str, str], url: str | None = None
) -> None:
    """Run an application with a conf file, and look into the store that the file names.

    ``options`` are what differs between a test server and the real service: given beside the file.
    """
    write_input(home, 1)
    conf = dict(option_conf(option, value) for option, value in options.items())
    conf["spark.ckpt.stopTimeoutSeconds"] = "30"
    if url is not None:
        conf["spark.ckpt.url"] = url
    file = CONF / f"{name}.conf"
    with submitter.submit(home, submitter.java_app(home), conf=conf, properties=file) as application:
        assert application.wait() == 0
        assert f"nothing of application '{APP}' is to be restored" in application.log
    assert found_batches(home) == expected_batches(home)
    where = url or lines(name)["spark.ckpt.url"]
    (query,) = list_app_queries(open_object_store(where, options, env={}), APP)
    newest = CheckpointStore.open(root_url(where, query.query_id), options).load_latest()
    assert newest is not None and newest.epoch == 0


def lines(name: str, mark: str = "") -> dict[str, str]:
    """The settings of a file; with a mark, those that it offers as comments."""
    text = (CONF / f"{name}.conf").read_text().splitlines()
    pairs = (line.removeprefix(mark).split(None, 1) for line in text if line.startswith(f"{mark}spark."))
    return {pair[0]: pair[-1].strip() for pair in pairs}


@pytest.mark.timeout(600)
def test_the_file_for_a_directory(submitter: Submitter, home: Path) -> None:
    """With a directory of the test in place of the one that it names."""
    run_with("local", submitter, home, {}, str(home / "store"))


@pytest.mark.timeout(600)
def test_the_file_for_s3(submitter: Submitter, home: Path, s3_server: S3Server) -> None:
    """The bucket is the one that the file names; endpoint and credentials are the test server's."""
    s3_server.create_bucket("bucket")
    run_with("s3", submitter, home, s3_server.options)


@pytest.mark.timeout(600)
def test_the_file_for_gcs(submitter: Submitter, home: Path, gs_server: GcsServer) -> None:
    """The bucket is the one that the file names; endpoint and credentials are the test server's."""
    gs_server.create_bucket("bucket")
    run_with("gcs", submitter, home, gs_server.options)


@pytest.mark.timeout(600)
def test_the_file_for_azure(submitter: Submitter, home: Path, az_server: AzureServer) -> None:
    """Container and account are those that the file names; endpoint and key are the test server's."""
    az_server.create_other("container")
    run_with("azure", submitter, home, az_server.other_options())


@pytest.mark.parametrize("name", [*READY, "reference"])
def test_what_a_conf_file_sets_or_offers_is_known(name: str) -> None:
    """Every line that begins with #spark. is a setting that works when it is uncommented."""
    offered = lines(name, "#")
    assert offered or name == "local"
    assert unknown_settings({**lines(name), **offered}) == []
