"""``spark.ckpt.*``: what is read, what is refused, what is asked about, and what is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.plugin.plugin_settings import (
    SETTINGS,
    option_conf,
    parse_plugin_settings,
    unknown_settings,
)

ROOT = Path(__file__).resolve().parents[2]
URL = {"spark.ckpt.url": "s3://bucket/prefix"}


def test_defaults_are_what_the_table_says() -> None:
    """One setting is enough."""
    settings = parse_plugin_settings(URL, "my-app")
    assert settings.url == "s3://bucket/prefix"
    assert (settings.app, settings.restore, settings.stale) == ("my-app", "never", "fail")
    assert (settings.interval_seconds, settings.poll_seconds, settings.retain) == (1.0, 10.0, 20)
    assert settings.wants("anything") and settings.wants("")
    by_name = {setting.name: setting.default for setting in SETTINGS}
    assert by_name["retain"] == "20" and by_name["stale"] == "fail"


def test_everything_that_python_obeys_is_read() -> None:
    """Values of every kind, options of the store under both names, and Hadoop's."""
    confs = {
        **URL,
        "spark.ckpt.app": "other",
        "spark.ckpt.restore": "before-upgrade",
        "spark.ckpt.queries": "orders*, totals",
        "spark.ckpt.intervalSeconds": "2.5",
        "spark.ckpt.retain": "7",
        "spark.ckpt.stale": "WARN",
        "spark.ckpt.stopWhenFenced": "true",
        "spark.ckpt.option.endpoint": "http://127.0.0.1:9000",
        "spark.ckpt.option.encryptionKeyFile": "/keys",
        "spark.ckpt.secret.secretKey": "hidden",
        "spark.hadoop.fs.s3a.endpoint": "x",
        "spark.master": "local",
    }
    settings = parse_plugin_settings(confs, "my-app")
    assert (settings.app, settings.restore, settings.stale) == ("other", "before-upgrade", "warn")
    assert settings.wants("orders-eu") and settings.wants("totals") and not settings.wants("total")
    assert settings.options == {
        "endpoint": "http://127.0.0.1:9000",
        "encryptionKeyFile": "/keys",
        "secretKey": "hidden",
    }
    assert settings.hadoop == {"spark.hadoop.fs.s3a.endpoint": "x"}
    assert "hidden" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retain", "0"),
        ("retain", "many"),
        ("stale", "perhaps"),
        ("stopWhenFenced", "2"),
        ("url", " "),
        ("url", "memory://of-a-process-that-ends"),
        ("queries", " , "),
    ],
)
def test_a_value_that_cannot_be_is_an_error_that_names_the_setting(name: str, value: str) -> None:
    """And not a default."""
    with pytest.raises(SettingsError, match=f"spark.ckpt.{name}"):
        parse_plugin_settings({**URL, f"spark.ckpt.{name}": value}, "app")


@pytest.mark.parametrize(
    "name",
    [
        "accessKey",
        "secretKey",
        "sessionToken",
        "accountKey",
        "sasToken",
        "CONNECTIONSTRING",
        "serverEncryptionKey",
    ],
)
def test_a_credential_under_a_name_that_spark_may_log_is_refused(name: str) -> None:
    """The message has the name that Spark hides, and not the value."""
    with pytest.raises(SettingsError, match=r"give it as spark\.ckpt\.secret\.\w+") as found:
        parse_plugin_settings({**URL, f"spark.ckpt.option.{name}": "hidden"}, "app")
    assert name in str(found.value) and "hidden" not in str(found.value)
    settings = parse_plugin_settings({**URL, f"spark.ckpt.secret.{name}": "hidden"}, "app")
    assert settings.options == {name: "hidden"}


def test_what_is_no_secret_may_have_either_name() -> None:
    """The name of a file, and that there is nothing to hide."""
    confs = {**URL, "spark.ckpt.option.credentialsFile": "/k", "spark.ckpt.option.anonymous": "true"}
    assert parse_plugin_settings(confs, "app").options == {"credentialsFile": "/k", "anonymous": "true"}


def test_an_unknown_setting_is_asked_about_with_the_nearest() -> None:
    """The application runs on: Spark ignores confs that it does not know, too."""
    confs = {
        **URL,
        "spark.ckpt.intervalSecond": "1",
        "spark.ckpt.option.endpiont": "x",
        "spark.ckpt.fileManager.memoryBytes": "1m",
        "spark.ckpt.secret.accountKey": "x",
        "spark.other": "y",
    }
    assert unknown_settings(confs) == [
        "unknown setting spark.ckpt.intervalSecond; did you mean spark.ckpt.intervalSeconds?",
        "unknown setting spark.ckpt.option.endpiont; did you mean spark.ckpt.option.endpoint?",
    ]


def test_options_of_configure_become_confs() -> None:
    """A wrong one is an error; a credential gets a name that Spark hides."""
    assert option_conf("endpoint", "x") == ("spark.ckpt.option.endpoint", "x")
    assert option_conf("accountKey", "x") == ("spark.ckpt.secret.accountKey", "x")
    hadoop = "fs.azure.account.key.shop.dfs.core.windows.net"
    assert option_conf(hadoop, "x") == (f"spark.ckpt.secret.{hadoop}", "x")
    assert option_conf("encryptionKeyFile", "/k") == ("spark.ckpt.option.encryptionKeyFile", "/k")
    with pytest.raises(SettingsError, match="endpiont"):
        option_conf("endpiont", "x")


def test_the_documents_list_every_setting_with_its_default() -> None:
    """docs/options.md and conf/reference.conf, in the order of the table."""
    page = (ROOT / "docs" / "options.md").read_text()
    rows = re.findall(r"^\| `spark\.ckpt\.([\w.]+)` \| ([^|]*) \|", page, re.MULTILINE)
    documented = [(name, default.strip().strip("`")) for name, default in rows]
    assert documented == [(setting.name, setting.default) for setting in SETTINGS]
    reference = (ROOT / "conf" / "reference.conf").read_text()
    assert re.findall(r"^#spark\.ckpt\.([\w.]+)", reference, re.MULTILINE)[: len(SETTINGS)] == [
        setting.name for setting in SETTINGS
    ]


def test_the_reference_says_of_every_setting_what_it_is() -> None:
    """Word for word, wrapped and with a capital letter; more may follow."""
    text = (ROOT / "conf" / "reference.conf").read_text()
    blocks = re.findall(r"((?:^# .*\n)+)#spark\.ckpt\.([\w.]+)", text, re.MULTILINE)
    told = {name: " ".join(line[2:] for line in lines.splitlines()).lower() for lines, name in blocks}
    wrong = [one.name for one in SETTINGS if not told[one.name].startswith(one.meaning.lower())]
    assert wrong == []


def test_a_default_that_is_no_value_is_not_offered_as_one() -> None:
    """Two applications that uncomment the same line must not become one application."""
    reference = (ROOT / "conf" / "reference.conf").read_text()
    offered = dict(re.findall(r"^#spark\.ckpt\.([\w.]+) +(.+)$", reference, re.MULTILINE))
    assert offered["app"] != "spark.app.name"
    assert Path(offered["fileManager.spoolDirectory"]).is_absolute()
