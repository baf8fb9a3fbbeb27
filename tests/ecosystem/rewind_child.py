"""Rewinds queries, in processes that are killed before they change anything on a disk for the n-th time.

The processes are forks of one that has imported everything, and those that need a catalog share one JVM:
the start of a process and of a session takes longer than the rewind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pyspark_checkpoint import rewind
from tests.ecosystem.app import session

CHANGES = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate")
PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def hold_session(wanted: dict[str, Any]) -> list[str]:
    """Begin a session in a process that stays, and return how others reach its JVM."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        spark = session(wanted)
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        told = gateway.gateway_parameters
        os.write(writes, json.dumps([str(told.port), told.auth_token]).encode())
        signal.pause()
    found: list[str] = json.loads(os.read(reads, 1000))
    return found


def attach(port: str, secret: str) -> SparkSession:
    """The session of another process."""
    os.environ |= {PORT: port, SECRET: secret}
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    spark = gateway.jvm.org.apache.spark
    context = spark.api.java.JavaSparkContext(spark.SparkContext.getOrCreate())
    conf = SparkConf(_jconf=context.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf))


def go_back(wanted: dict[str, Any], gateway: list[str]) -> dict[str, Any]:
    """Rewind as it is told; killed before change ``kill_at``, if there are so many."""
    changes = 0

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal changes
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or writes:
            changes += 1
            if changes == wanted["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    spark = attach(*gateway) if wanted["needs_catalog"] else None
    sys.addaudithook(count)
    report = rewind(wanted["url"], spark=spark, **wanted["arguments"])
    restored = report.restored
    return {"changes": changes, "batch": restored.batch_id if restored else None}


def main() -> None:
    """Rewind as each line of stdin says, and answer with one."""
    gateway = hold_session(json.loads(sys.argv[1]))
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                answer = go_back(json.loads(line), gateway)
            except BaseException:  # noqa: BLE001 - whatever it is, the test looks at it
                answer = {"error": traceback.format_exc()[-3000:]}
            print(json.dumps(answer), flush=True)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            print(
                json.dumps({"killed": True} if status == -signal.SIGKILL else {"error": status}), flush=True
            )


if __name__ == "__main__":
    main()
