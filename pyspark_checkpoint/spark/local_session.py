"""A Spark session for a command that needs one for a moment: on this machine, and quiet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark_checkpoint.errors import MissingExtra, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONFS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
}


def parse_confs(texts: Iterable[str]) -> dict[str, str]:
    """Read confs of Spark as a command takes them: ``NAME=VALUE`` each, the last one of a name counts.

    Raises:
        SettingsError: A text is not of that form.
    """
    confs = {}
    for text in texts:
        name, is_conf, value = text.partition("=")
        if not is_conf or not name.startswith("spark.") or name != name.strip():
            raise SettingsError(
                f"{name.strip()[:100]!r} is no conf of Spark",  # the value may be a secret
                hint="give NAME=VALUE with a name that begins with spark.",
            )
        confs[name] = value
    return confs


@contextmanager
def local_session(confs: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """The session that is active in this process, or one of its own that is stopped afterwards.

    Args:
        confs: Confs of a session of its own, such as those of a catalog (``spark.sql.catalog.lake...``),
            ``spark.jars`` and ``spark.jars.packages``. They come before those of ``spark-defaults.conf`` in
            ``SPARK_CONF_DIR``, which Spark reads itself. A session that is active already keeps its own.
    """
    if find_spec("pyspark") is None:
        raise MissingExtra(
            "this needs Spark, and pyspark is not installed", hint="pip install 'pyspark-checkpoint[spark]'"
        )
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the rest of the command line needs no Spark

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("ckpt")
    for name, value in {**_CONFS, **(confs or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def session_with(texts: Sequence[str], *, is_needed: bool = False) -> Iterator[SparkSession | None]:
    """The session of a command that takes ``NAME=VALUE``; None if it was given none and needs none."""
    if not texts and not is_needed:
        yield None
        return
    with local_session(parse_confs(texts)) as session:
        yield session
