"""Spark's own Python daemon, whose workers do less around every task, whatever Python code they run.

An application that sets ``spark.python.daemon.module`` to this module has all its Python workers settled:
those of UDFs, of ``foreachBatch`` and of other data sources too. Spark starts the module by its name, so
the package must be installed where the workers run. Each worker is a fork of the daemon; nothing is
imported here before the fork that Spark's own daemon does not import, since libraries may start threads.
"""

from __future__ import annotations

import gc

from pyspark import daemon

from pyspark_checkpoint.spark.worker_tuning import settle_worker


class TaskEnd:
    """Stands for the module ``gc`` in Spark's daemon, which collects garbage when a task has ended."""

    def collect(self) -> int:
        """Collect, at the first task's end after everything that it has imported was set aside."""
        settle_worker()
        return gc.collect()


def main() -> None:
    """Run Spark's daemon."""
    vars(daemon)["gc"] = TaskEnd()
    daemon.manager()


if __name__ == "__main__":
    main()
