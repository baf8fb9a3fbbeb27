"""``spark.ckpt.*``: every setting of the plugin in one table; from Spark's confs to frozen settings. Pure.

The file manager's and the time limits of the driver are obeyed on the JVM's side; they are listed here so
that there is one table, and so that a name that nobody knows is noticed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from pyspark_checkpoint.capture.location_status import STALE_CHOICES
from pyspark_checkpoint.crypto.keyring import KEY_FILE_OPTION
from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.listener.worker import INTERVAL_SECONDS
from pyspark_checkpoint.outputs.decide import FAIL, OUTPUT_CHOICES
from pyspark_checkpoint.outputs.pyiceberg_table import SPARK_CATALOG
from pyspark_checkpoint.store.options import HIDDEN, KNOWN, is_store_option

PREFIX = "spark.ckpt."
OPTION_PREFIX = f"{PREFIX}option."
SECRET_PREFIX = f"{PREFIX}secret."
NEVER = "never"
MISSING = "missing"
ASYNC, BATCH = DURABILITY_CHOICES = ("async", "batch")
_HADOOP = ("spark.hadoop.fs.", "spark.hadoop.google.")
_FLAGS = {"true": True, "false": False}
_SECRETS = {name.lower(): name for name in HIDDEN if name not in ("credentialsFile", "anonymous")}
"""Options whose values nobody may see; a file's name, and that there is nothing to see, are none."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table in docs/options.md."""

    name: str
    default: str
    meaning: str

    @property
    def argument(self) -> str:
        """Its name in ``configure``: ``fileManager.memoryBytes`` is ``file_manager_memory_bytes``."""
        return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", self.name.replace(".", "_"))


SETTINGS = (
    Setting("url", "", "where checkpoints go; without it only the file manager is set"),
    Setting("app", "spark.app.name", "whose checkpoints they are, for the restore"),
    Setting(
        "restore",
        NEVER,
        "never, missing, a checkpoint's number or a savepoint's name: what a checkpoint location that is "
        "not there is restored from before the application begins",
    ),
    Setting("restoreTimeoutSeconds", "1800", "how long that may take"),
    Setting("queries", "*", "names of the queries that are checkpointed, with * and commas"),
    Setting("intervalSeconds", "1", "at least so long between two captures of a query"),
    Setting(
        "durability",
        ASYNC,
        "async, or batch: no batch begins before the one before it, and its own plan, are in the store",
    ),
    Setting(
        "durabilityTimeoutSeconds",
        "300",
        "how long a batch waits for that before its query fails",
    ),
    Setting("pollSeconds", "10", "how often to look for batches whose events were dropped"),
    Setting("retain", "20", "epochs kept at least; savepoints are kept beside them"),
    Setting("stale", "fail", "fail, warn or restore: a query whose location is behind its history"),
    Setting(
        "sink",
        "fail",
        "fail, rollback or warn: a query whose output has batches already that it would write again",
    ),
    Setting("stopWhenFenced", "false", "stop a query whose history was taken over"),
    Setting(
        "startTimeoutSeconds",
        "30",
        "how long the start of a query waits for the look at its history; with stale=restore and "
        "sink=rollback it is restoreTimeoutSeconds",
    ),
    Setting(
        "stopTimeoutSeconds",
        "5",
        "how long the end of the application waits for the last checkpoints",
    ),
    Setting(
        "fileManager",
        "auto",
        "auto or off: our file manager for object stores and local disks",
    ),
    Setting(
        "fileManager.allowUnfenced",
        "false",
        "run on a store without conditional create",
    ),
    Setting(
        "fileManager.memoryBytes",
        "64m",
        "what open files of one JVM hold in memory",
    ),
    Setting(
        "fileManager.spoolDirectory",
        "Spark's local directory",
        "where the rest waits",
    ),
)
"""Everything but the store's options, which are ``spark.ckpt.option.X`` and ``spark.ckpt.secret.X``."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """What the side process and the automatic restore obey. Options may hold secrets; never printed."""

    url: str
    app: str
    restore: str = NEVER
    queries: tuple[str, ...] = ("*",)
    interval_seconds: float = INTERVAL_SECONDS
    poll_seconds: float = 10.0
    durability: str = ASYNC
    retain: int = 20
    stale: str = "fail"
    sink: str = FAIL
    stop_when_fenced: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    hadoop: Mapping[str, str] = field(default_factory=dict, repr=False)
    catalogs: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Confs of the catalogs that the application's sessions begin with."""

    def wants(self, query_name: str) -> bool:
        """Whether a query of this name is meant."""
        return any(fnmatchcase(query_name, pattern) for pattern in self.queries)

    def holds(self, query_name: str) -> bool:
        """Whether each batch of a query of this name waits until the one before it is durable."""
        return self.durability == BATCH and self.wants(query_name)


def parse_plugin_settings(confs: Mapping[str, str], app: str) -> PluginSettings:
    """Read Spark's confs. Raises ``SettingsError`` for a value that cannot be; see ``unknown_settings``."""
    values = {
        name.removeprefix(PREFIX): value.strip() for name, value in confs.items() if name.startswith(PREFIX)
    }
    url = values.get("url", "")
    if not url:
        raise SettingsError(f"{PREFIX}url is not set", hint="for example s3://bucket/checkpoints")
    if url.lower().startswith("memory:"):
        raise SettingsError(
            f"{PREFIX}url is memory of the side process, which ends with the application",
            hint="give a directory or a bucket",
        )
    _check_secrets(confs)
    patterns = tuple(part.strip() for part in values.get("queries", "*").split(",") if part.strip())
    if not patterns:
        raise SettingsError(f"{PREFIX}queries names no query", hint="leave it out to checkpoint all")
    return PluginSettings(
        url=url,
        app=values.get("app") or app,
        restore=values.get("restore") or NEVER,
        queries=patterns,
        interval_seconds=_number(values, "intervalSeconds", INTERVAL_SECONDS, 0.0),
        poll_seconds=_number(values, "pollSeconds", 10.0, 0.1),
        durability=_choice(values, "durability", DURABILITY_CHOICES, ASYNC),
        retain=int(_number(values, "retain", 20, 1)),
        stale=_choice(values, "stale", STALE_CHOICES, FAIL),
        sink=_choice(values, "sink", OUTPUT_CHOICES, FAIL),
        stop_when_fenced=_flag(values, "stopWhenFenced"),
        options=_store_options(confs),
        hadoop={name: value for name, value in confs.items() if name.startswith(_HADOOP)},
        catalogs={name: value for name, value in confs.items() if name.startswith(SPARK_CATALOG)},
    )


def unknown_settings(confs: Mapping[str, str]) -> list[str]:
    """A sentence for each setting that nobody knows, with the nearest that somebody does."""
    known = [f"{PREFIX}{setting.name}" for setting in SETTINGS]
    options = [f"{OPTION_PREFIX}{name}" for name in (*KNOWN, KEY_FILE_OPTION)]
    by_lower = {name.lower(): name for name in (*known, *options)}
    sentences = []
    for name in sorted(confs):
        if not name.startswith(PREFIX) or name in known or _is_option(name):
            continue
        near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
        hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
        sentences.append(f"unknown setting {name}{hint}")
    return sentences


def option_conf(name: str, value: str) -> tuple[str, str]:
    """The conf for a store's option: what may be a credential gets a name that Spark hides everywhere."""
    if name != KEY_FILE_OPTION and not is_store_option(name):
        raise SettingsError(f"unknown store option {name}", hint=f"known: {', '.join(KNOWN)}")
    if name.startswith("spark."):
        return name, value
    is_hadoop = name.lower() not in {known.lower() for known in (*KNOWN, KEY_FILE_OPTION)}
    hidden = is_hadoop or name.lower() in {credential.lower() for credential in HIDDEN}
    return f"{SECRET_PREFIX if hidden else OPTION_PREFIX}{name}", value


def _is_option(name: str) -> bool:
    for prefix in (OPTION_PREFIX, SECRET_PREFIX):
        if name.startswith(prefix):
            option = name.removeprefix(prefix)
            return option == KEY_FILE_OPTION or is_store_option(option)
    return False


def _check_secrets(confs: Mapping[str, str]) -> None:
    """Spark logs and shows what it does not know for a secret before the plugin can take it away."""
    for name in sorted(confs):
        option = _SECRETS.get(name.removeprefix(OPTION_PREFIX).lower())
        if option is not None and name.startswith(OPTION_PREFIX):
            raise SettingsError(
                f"{name} is a credential, and Spark may have logged it by that name",
                hint=f"give it as {SECRET_PREFIX}{option}, which Spark hides everywhere",
            )


def _store_options(confs: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in confs.items():
        if name.startswith((OPTION_PREFIX, SECRET_PREFIX)) and _is_option(name):
            found[name.removeprefix(OPTION_PREFIX).removeprefix(SECRET_PREFIX)] = value
    return found


def _number(values: Mapping[str, str], name: str, default: float, minimum: float) -> float:
    text = values.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not minimum <= number < float("inf"):
        raise SettingsError(f"{PREFIX}{name} is {text!r}", hint=f"give a number of at least {minimum:g}")
    return number


def _choice(values: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    text = values.get(name, default).lower()
    if text not in choices:
        raise SettingsError(f"{PREFIX}{name} is {text!r}", hint=f"choose one of {', '.join(choices)}")
    return text


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name, "false").lower()
    if text not in _FLAGS:
        raise SettingsError(f"{PREFIX}{name} is {text!r}", hint="give true or false")
    return _FLAGS[text]
