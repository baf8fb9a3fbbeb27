"""A Delta table in a bucket goes back; delta-rs wrote it there and reads it again, by its own S3 client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

from pyspark_checkpoint.errors import StaleAttempt
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.store.open import open_object_store
from tests.support.servers.s3 import S3Server

QUERY_ID = "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11"
WRITERS = 4


def test_of_several_that_take_a_table_back_one_wins(s3_server: S3Server) -> None:
    """By the store's conditional create; the others change nothing and say so."""
    url, options = s3_server.url("delta-goes-back"), s3_server.options
    theirs = {
        "AWS_ENDPOINT_URL": options["endpoint"],
        "AWS_ACCESS_KEY_ID": options["accessKey"],
        "AWS_SECRET_ACCESS_KEY": options["secretKey"],
        "AWS_REGION": options.get("region", "us-east-1"),
        "AWS_ALLOW_HTTP": "true",
    }
    for batch_id in range(5):
        numbers = range(batch_id * 3, batch_id * 3 + 3)
        made = CommitProperties(app_transactions=[Transaction(QUERY_ID, batch_id)])
        rows = pa.table({"n": list(numbers)})
        write_deltalake(url, rows, mode="append", storage_options=theirs, commit_properties=made)
    DeltaTable(url, storage_options=theirs).optimize.compact()
    outputs = [DeltaOutput(url, open_object_store(url, options)) for _ in range(WRITERS)]
    plans = [output.plan_roll_back(QUERY_ID, 2) for output in outputs]

    def go_back(number: int) -> bool:
        plan = plans[number]
        assert plan is not None
        try:
            outputs[number].roll_back(plan)
        except StaleAttempt:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(go_back, range(WRITERS)))
    assert any(won)
    table = DeltaTable(url, storage_options=theirs)
    assert table.version() == 6, "one commit of all the writers"
    assert table.transaction_version(QUERY_ID) == 2
    found = QueryBuilder().register("t", table).execute("select n from t order by n").read_all()
    assert pa.table(found)["n"].to_pylist() == list(range(9))
    assert outputs[0].position(QUERY_ID).batch_id == 2
