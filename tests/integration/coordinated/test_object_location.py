"""A checkpoint location in an object store, whose times are seconds: read by tasks and driver. No Spark."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.execute import RestoreReport
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store
from tests.support.made_stream import MadeStream, totals_after
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import FaultProxy


@dataclass
class RemoteStream(MadeStream):
    """A query whose checkpoint location is in an object store; on disk is what Spark has in memory."""

    url: str = ""
    access: dict[str, str] = field(default_factory=dict)

    def remote_url(self) -> str:
        """Where the location is now."""
        return f"{self.url}/location-{self.locations}"

    def remote(self) -> ObjectStore:
        """The location, opened."""
        return open_object_store(self.remote_url(), self.access, env={})

    def start(self) -> None:
        """A new run, which is told where the location is, and how to get there."""
        self.options |= {"checkpointLocation": self.remote_url(), **self.access}
        super().start()

    def write(self, name: str, data: str | bytes) -> None:
        """What Spark writes is in both places."""
        super().write(name, data)
        self.remote().put(name, data if isinstance(data, bytes) else data.encode())

    def restore(self, **arguments: Any) -> RestoreReport:
        """Restore into a fresh place of the object store, and start from there."""
        self._begin_location()
        where = self.remote_url()
        report = restore(str(self.table), where, options={}, location_options=self.access, **arguments)
        store = self.remote()
        for found in store.list():
            super().write(found.key, store.get(found.key))
        self.start()
        return report


def lists(proxy: FaultProxy, url: str) -> list[str]:
    """The prefixes below a location that were listed."""
    root = f"{urllib.parse.urlsplit(url).path.lstrip('/')}/"
    queries = [urllib.parse.parse_qs(urllib.parse.urlsplit(r.target).query) for r in proxy.requests]
    prefixes = [query.get("prefix", [""])[0] for query in queries if "list-type" in query]
    return [prefix.removeprefix(root) for prefix in prefixes if prefix.startswith(root)]


@pytest.mark.parametrize("kind", ["v1", "v2", "zips"])
def test_a_location_on_s3_is_committed_and_restored(s3_server: S3Server, tmp_path: Path, kind: str) -> None:
    """The whole location is listed once a run, whatever is in it; then only what the sources keep."""
    with FaultProxy(s3_server.endpoint) as proxy:
        stream = RemoteStream(
            tmp_path,
            version=2 if kind == "v2" else 1,
            zips=kind == "zips",
            url=s3_server.url(tmp_path.name),
            access=s3_server.options_at(proxy.endpoint),
        )
        stream.run(4)
        assert lists(proxy, stream.remote_url()).count("") == 1
        assert lists(proxy, stream.remote_url()).count("sources/") == 3
        stream.maintain(4)
        stream.run(1)
        stream.start()
        proxy.clear()
        stream.run(2)
        assert lists(proxy, stream.remote_url()).count("") == 1, "another run looks at all of it once"
        stream.restore(epoch=3)
        stream.run(3)
        assert stream.rows() == stream.whole_state(7) == totals_after(6)
        assert list(stream.history().verify()) == []
