"""Reads by ranges of one version, against a service that answers what it should not."""

from __future__ import annotations

import io
from typing import Any

import pytest

from pyspark_checkpoint.errors import Conflict, StoreError, Unavailable
from pyspark_checkpoint.store.s3.s3_client import S3Bucket
from pyspark_checkpoint.store.s3.s3_store import S3Store
from pyspark_checkpoint.store.settings import S3Settings
from pyspark_checkpoint.testing.manual_clock import ManualClock

DATA = bytes(range(100))


class Service:
    """Gives ranges of one object, under one ETag whatever happens to the object."""

    def __init__(self, totals: list[str]) -> None:
        self._totals = totals

    def get_object(self, Range: str, **_: Any) -> dict[str, Any]:
        total = self._totals.pop(0) if len(self._totals) > 1 else self._totals[0]
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        held = DATA[: int(total)] if len(total) < 5 else DATA
        data = held[first : last + 1]
        return {
            "Body": io.BytesIO(data),
            "ContentLength": len(data),
            "ContentRange": f"bytes {first}-{first + len(data) - 1}/{total}",
            "ETag": '"same"',
            "ResponseMetadata": {"HTTPStatusCode": 206},
        }


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Streams the object of a service that says these totals, one an answer."""

    def read(*totals: str) -> bytes:
        service = Service(list(totals))
        monkeypatch.setattr(S3Bucket, "client", property(lambda _: service))
        store = S3Store(S3Settings("bkt"), clock=ManualClock("ranged"))
        return b"".join(store.stream("k", chunk_bytes=40))

    return read


def test_an_object_arrives_whole(stream: Any) -> None:
    """In as many ranges as it takes."""
    assert stream("100") == DATA


@pytest.mark.parametrize("totals", [("100", "50"), ("100", "100", "90")])
def test_an_object_that_shrinks_under_its_version_is_no_whole_one(
    stream: Any, totals: tuple[str, ...]
) -> None:
    """A chunk that is shorter than the first answer promised is never the end of the object."""
    with pytest.raises(Conflict):
        stream(*totals)


def test_a_total_that_is_no_number_is_no_answer(stream: Any) -> None:
    """Python refuses to read 5,000 digits, by an error that is none of ours."""
    with pytest.raises(StoreError) as refused:
        stream("9" * 5000)
    assert isinstance(refused.value, Unavailable)
