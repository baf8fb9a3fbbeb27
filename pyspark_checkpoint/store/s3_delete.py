"""Removing objects from S3, a thousand by one request, each of them accounted for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark_checkpoint.store.s3_bucket import S3Bucket
from pyspark_checkpoint.store.s3_errors import Translated, translate_code

BATCH_KEYS = 1000


def delete_keys(bucket: S3Bucket, keys: Iterable[str]) -> None:
    """Remove ``keys``. Every key is checked before the first request; absent objects are fine."""
    names = {bucket.name(key): key for key in keys}
    for batch in _batches(names):
        if len(batch) == 1:
            _delete_one(bucket, *batch.popitem())
        else:
            _delete_batch(bucket, batch)


def _batches(names: dict[str, str]) -> Iterator[dict[str, str]]:
    every = list(names.items())
    for start in range(0, len(every), BATCH_KEYS):
        yield dict(every[start : start + BATCH_KEYS])


def _delete_one(bucket: S3Bucket, name: str, key: str) -> None:
    with Translated(bucket.call("delete", key, writes=True)):
        bucket.client.delete_object(Bucket=bucket.bucket_name, Key=name, **bucket.parameters.every)


def _delete_batch(bucket: S3Bucket, batch: dict[str, str]) -> None:
    """Remove up to a thousand. An answer that leaves a key out is no success for that key."""
    call = bucket.call("delete", writes=True)
    with Translated(call):
        answer = bucket.client.delete_objects(
            Bucket=bucket.bucket_name,
            Delete={"Objects": [{"Key": name} for name in batch], "Quiet": False},
            **bucket.parameters.every,
        )
    left = set(batch) - {str(item.get("Key")) for item in answer.get("Deleted", ())}
    for item in answer.get("Errors", ()):
        name, code = str(item.get("Key", "")), str(item.get("Code", ""))
        if code != "NoSuchKey":
            raise translate_code(code, 0, bucket.call("delete", batch.get(name), writes=True))
        left.discard(name)
    if left:
        raise call.unanswered(f"the answer says nothing of {len(left)} of {len(batch)} keys")
