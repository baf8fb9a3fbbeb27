"""Google Cloud Storage: ``gs://``. A version is an object's generation, which no other write ever has.

Conditions are ``ifGenerationMatch``; the nonce is kept as metadata ``ckpt-nonce``; uploads carry a
crc32c that the service verifies, and whole reads are checked against it. An upload session that could
be neither finished nor cancelled is invisible and expires by itself after a week."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.base import Body, ObjectInfo, Version, check_prefix
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.gcs.gcs_api import GcsApi, read_body
from pyspark_checkpoint.store.gcs.gcs_transfer import (
    SINGLE_REQUEST_BYTES,
    GcsReader,
    GcsUpload,
    load_json,
    parse_info,
    upload,
)
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.ranged import RangedStore
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.settings import GcsSettings

_LIST_FIELDS = "items(name,size,generation,updated),nextPageToken"
_NO_OBJECT = "0"
_COPIED = b'{"contentType": "application/octet-stream", "metadata": {"ckpt-copied": "true"}}'
"""What a copy gets instead of its source's metadata, since the nonce belongs to the source's put."""


class GcsStore(RangedStore):
    """A prefix of a Google Cloud Storage bucket.

    ``settings.project`` plays no role for objects. ``single_request_bytes`` is the size up to which a
    body goes up in one request: one request has one outcome, and some emulators honour conditions
    only there. Larger bodies go up in parts of ``settings.part_size_bytes``, one after the other.
    """

    def __init__(
        self,
        settings: GcsSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        single_request_bytes: int = SINGLE_REQUEST_BYTES,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._single_request_bytes = single_request_bytes
        self._api = GcsApi(settings)
        super().__init__("gs", settings.bucket, settings.prefix, GcsReader(self._api))

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        call, name = self._put_call(key, if_absent, if_match), self._name(key)
        generation = _NO_OBJECT if if_absent else None
        if if_match is not None:
            generation = if_match.token
            if not _is_generation(generation):
                raise call.lost_race()
        made = upload(
            self._api,
            call,
            GcsUpload(name, UploadBody(data), generation, nonce, boundary=self._clock.nonce()),
            single_bytes=self._single_request_bytes,
            part_bytes=self._settings.part_size_bytes,
        )
        return Version(made)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        params = {"prefix": self._below + check_prefix(prefix), "fields": _LIST_FIELDS}
        if start_after is not None:
            params["startOffset"] = self._below + start_after
        return self._pages(params, (start_after or "").encode())

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [(key, self._name(key)) for key in keys]
        run_bounded(self._delete_one, wanted, self._settings.max_concurrency)

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        source, target = self._name(source_key), self._name(target_key)
        call = Call(self._where, "copy", target_key, writes=True, if_absent=if_absent)
        params = {"ifGenerationMatch": _NO_OBJECT} if if_absent else {}
        path = self._api.rewrite_path(source, target)
        while True:
            try:
                answer = self._rewrite(call, path, params)
            except NotFound:
                raise self._call("copy", source_key).absent() from None
            resource = answer.get("resource")
            if (
                answer.get("done")
                and isinstance(resource, dict)
                and _is_generation(resource.get("generation"))
            ):
                return Version(str(resource["generation"]))
            if answer.get("done") or not answer.get("rewriteToken"):
                raise call.unanswered("the answer to the copy says neither done nor how to go on")
            params["rewriteToken"] = str(answer["rewriteToken"])

    @property
    def server(self) -> str:
        return self._api.endpoint

    def close(self) -> None:
        self._api.close()

    def _delete_one(self, wanted: tuple[str, str]) -> None:
        key, name = wanted
        call = self._call("delete", key, writes=True)
        try:
            with self._api.send(call, "DELETE", self._api.object_path(name), accept=(200, 204)) as response:
                read_body(response)
        except NotFound:
            return

    def _rewrite(self, call: Call, path: str, params: dict[str, str]) -> dict[str, object]:
        with self._api.send(
            call, "POST", path, params=params, data=_COPIED, headers={"Content-Type": "application/json"}
        ) as response:
            return load_json(read_body(response), call)

    def _pages(self, params: dict[str, str], after: bytes) -> Iterator[ObjectInfo]:
        call = self._call("list")
        while True:
            with self._api.send(call, "GET", self._api.objects_path, params=params) as response:
                page = load_json(read_body(response), call)
            for item in page.get("items", ()):
                key = str(item.get("name", ""))[len(self._below) :]
                # Consoles mark folders by empty objects with a trailing slash; no put makes one.
                if not key or key.endswith("/") or key.encode() <= after:
                    continue
                yield parse_info(item, key, call)
            token = page.get("nextPageToken")
            if not token:
                return
            params = {**params, "pageToken": str(token)}


def _is_generation(token: object) -> bool:
    """Whether a generation can look like this; zero stands for no object, so that none has it."""
    text = str(token)
    return text.isascii() and text.isdigit() and int(text) > 0
