"""An application with listeners of its own beside the plugin, on the plugin's URL in two spellings.

Arguments: a directory for everything, and the URL.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_checkpoint import checkpoint


def main() -> None:
    """Run a query in a session for each spelling, with a listener on it."""
    home, url = Path(sys.argv[1]), sys.argv[2]
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    spark = SparkSession.builder.getOrCreate()
    listeners = []
    for name, spelled in (("same", f"{url}/"), ("other", f"file://{url}")):
        session = spark.newSession()
        listener = checkpoint(session, spelled)
        listeners.append(listener)
        source = session.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        counts = source.text(str(home / "input")).groupBy("value").count()
        writer = counts.writeStream.outputMode("complete").format("noop").queryName(name)
        writer = writer.option("checkpointLocation", str(home / "location" / name))
        writer.trigger(availableNow=True).start().awaitTermination()
    for listener in listeners:
        listener.close()
    spark.stop()


if __name__ == "__main__":
    main()
