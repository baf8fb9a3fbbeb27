"""What Spark's Python worker does around every task, made cheap.

* After a task it collects garbage, which looks at every object of every library that was imported: they
  are frozen once.
* Before a task (of Spark 4.1) it makes each importer look again at what it has; that of a zip reads the
  whole directory of the zip, ``pyspark.zip``. An importer that is dropped is made anew when it is needed,
  from the directory that Python remembers.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import cache
from zipimport import zipimporter


def settle_worker() -> None:
    """Called at the end of what Spark has this process do."""
    _freeze(os.getpid())
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            sys.path_importer_cache.pop(path, None)


@cache
def _freeze(process_id: int) -> int:
    """Set aside what there is, once a process. To ask the collector what is frozen would count it all."""
    gc.collect()
    gc.freeze()
    return process_id
