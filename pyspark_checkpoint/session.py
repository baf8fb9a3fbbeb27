"""``checkpoint`` and ``CheckpointListener``: checkpoints for every query of a session.

Here the listener meets the restore that a stale location needs; neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from pyspark_checkpoint.capture.location_status import FAIL
from pyspark_checkpoint.listener.listener import QueryListener
from pyspark_checkpoint.listener.worker import INTERVAL_SECONDS
from pyspark_checkpoint.restorer.replace_stale import LocationRestorer


class CheckpointListener(QueryListener):
    """Register it with ``spark.streams.addListener``; every query started afterwards is checkpointed.

    Checkpoints of a query go to ``{url}/{query id}``. The newest ``retain`` epochs are kept, and every
    savepoint. A capture that fails is logged once, counted in ``statuses`` and retried.
    """

    restorer = LocationRestorer()


def checkpoint(
    spark: SparkSession,
    url: str,
    *,
    interval_seconds: float = INTERVAL_SECONDS,
    retain: int = 20,
    queries: Callable[[str], bool] | None = None,
    stale: str = FAIL,
    sink: str = FAIL,
    stop_when_fenced: bool = False,
    options: Mapping[str, str] | None = None,
    location_options: Mapping[str, str] | None = None,
    poll_seconds: float = 10.0,
    concurrency: int = 4,
) -> CheckpointListener:
    """Checkpoint every query that ``spark`` starts from now on.

    Args:
        spark: The session whose queries are meant.
        url: Where checkpoints go; those of a query to ``{url}/{query id}``.
        interval_seconds: How long captures of one query lie apart at least.
        retain: How many epochs of a query are kept, besides savepoints.
        queries: Says by name which queries are meant; None means all.
        stale: What happens to a query whose location is behind its history, or has diverged from it:
            ``fail``, ``warn`` or ``restore``.
        sink: What happens to a query whose output has batches already that it would write again: ``fail``,
            ``rollback`` (of the output) or ``warn``.
        stop_when_fenced: Whether a query is stopped when another run has claimed its history.
        options: Options of the store, such as credentials; see ``docs/options.md``.
        location_options: Options of the checkpoint locations; by default those of the session and the
            store.
        poll_seconds: How often a location is listed if no event comes.
        concurrency: How many queries are captured at a time.

    Returns:
        The listener, which is registered with ``spark.streams``.

    Raises:
        SettingsError: An argument, the URL or an option is not valid; nothing was registered.
        Unsupported: ``spark`` is a session of Spark Connect; use the plugin on the server instead.
    """
    listener = CheckpointListener(
        spark,
        url,
        interval_seconds=interval_seconds,
        retain=retain,
        queries=queries,
        stale=stale,
        sink=sink,
        stop_when_fenced=stop_when_fenced,
        options=options,
        location_options=location_options,
        poll_seconds=poll_seconds,
        concurrency=concurrency,
    )
    spark.streams.addListener(listener)
    return listener
