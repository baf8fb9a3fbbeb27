"""Azure Blob Storage: ``az://``, ``abfss://``, ``wasbs://``. A version is a blob's ETag.

Conditions are ``If-None-Match: *`` and ``If-Match``; the nonce is kept as metadata ``ckptnonce``; uploads
carry an MD5 that the service verifies. It keeps the MD5 of blobs that were put by one request, and whole
reads of those are checked against it; larger ones are for the caller's SHA-256 to prove."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.azure.azure_client import AzureContainer
from pyspark_checkpoint.store.azure.azure_errors import answer_code, translate_answer
from pyspark_checkpoint.store.azure.azure_transfer import (
    SINGLE_PUT_BYTES,
    AzureReader,
    AzureUpload,
    blob_info,
    conditions_for,
    in_key_order,
    is_folder,
    upload_blocks,
    upload_single,
    version_of,
)
from pyspark_checkpoint.store.base import Body, ObjectInfo, Version, check_prefix
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.ranged import RangedStore
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.settings import AzureSettings

_BATCH = 256
_SYNC_COPY_BYTES = 256 * 1024 * 1024
_ETAG = re.compile(r"[!#-)+-~]+")
"""What an ETag can look like without its quotes; an asterisk would match every blob."""
_COPIED = {"ckptcopied": "true"}
"""What a copy gets instead of its source's metadata, since the nonce belongs to the source's put."""


class AzureStore(RangedStore):
    """A prefix of an Azure container, with or without a hierarchical namespace.

    ``single_put_bytes`` is the size up to which a body goes up in one request; larger ones go up in
    blocks of ``settings.part_size_bytes``, ``settings.max_concurrency`` at once.
    """

    def __init__(
        self,
        settings: AzureSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        single_put_bytes: int = SINGLE_PUT_BYTES,
        sync_copy_bytes: int = _SYNC_COPY_BYTES,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._single_put_bytes = single_put_bytes
        self._sync_copy_bytes = sync_copy_bytes
        self._container = AzureContainer(settings, clock)
        super().__init__("az", settings.bucket, settings.prefix, AzureReader(self._container))

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
        if if_match is not None and not _ETAG.fullmatch(if_match.token):
            raise call.lost_race()
        etag = None if if_match is None else f'"{if_match.token}"'
        body = UploadBody(data)
        return self._upload(
            call, AzureUpload(name, body.size_bytes, body.read, nonce, conditions_for(if_absent, etag))
        )

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        found = in_key_order(self._blobs(self._below + check_prefix(prefix)))
        after = (start_after or "").encode()
        return (info for info in found if info.key.encode() > after)

    def delete(self, keys: Iterable[str]) -> None:
        names = [(key, self._name(key)) for key in keys]
        if len(names) > self._settings.max_concurrency:
            for first in range(0, len(names), _BATCH):
                self._delete_batch(names[first : first + _BATCH])
        else:
            # As fast as a batch, and a request without a body has no name that could be damaged.
            run_bounded(self._delete_one, names, max(1, len(names)))

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        """Copied by the service up to 256 MiB, its limit for doing it at once; beyond, through here.

        Azure's other way, a copy in the background, shows the target before its bytes are there.
        """
        source, target = self._name(source_key), self._name(target_key)
        asking = self._call("copy", source_key)
        found = self._reader.info(asking, source, source_key)
        call = Call(self._where, "copy", target_key, writes=True, if_absent=if_absent)
        if found.size_bytes > self._sync_copy_bytes:
            return self._copy_through(call, found, target)
        url, allowed = self._container.copy_source(source, asking)
        try:
            with self._container.asking(call) as client:
                answer: Any = client.get_blob_client(target).start_copy_from_url(
                    url,
                    metadata=_COPIED,
                    requires_sync=True,
                    **allowed,
                    **conditions_for(if_absent, None),
                )
                return version_of(answer["etag"])
        except NotFound:
            raise asking.absent() from None

    @property
    def server(self) -> str:
        return self._container.address

    def close(self) -> None:
        self._container.close()

    def _upload(self, call: Call, wanted: AzureUpload) -> Version:
        if wanted.size_bytes <= self._single_put_bytes:
            return upload_single(self._container, call, wanted)
        return upload_blocks(
            self._container,
            call,
            wanted,
            clock=self._clock,
            part_bytes=self._settings.part_size_bytes,
            max_concurrency=self._settings.max_concurrency,
        )

    def _copy_through(self, call: Call, source: ObjectInfo, target: str) -> Version:
        reading, name = self._call("copy", source.key), self._name(source.key)

        def read(start: int, end: int) -> bytes:
            return self._reader.pinned(reading, name, start, end, source.version.token)

        conditions = conditions_for(call.if_absent, None)
        return self._upload(call, AzureUpload(target, source.size_bytes, read, None, conditions))

    def _delete_one(self, wanted: tuple[str, str]) -> None:
        key, name = wanted
        try:
            with self._container.asking(self._call("delete", key, writes=True)) as client:
                client.get_blob_client(name).delete_blob()
        except NotFound:
            return

    def _delete_batch(self, batch: Sequence[tuple[str, str]]) -> None:
        call = self._call("delete", writes=True)
        with self._container.asking(call) as client:
            answers = [*client.delete_blobs(*(name for _, name in batch), raise_on_any_failure=False)]
        if len(answers) != len(batch):
            raise call.unanswered(f"{len(answers)} answers to a batch of {len(batch)}")
        for (key, _), answer in zip(batch, answers, strict=True):
            code = answer_code(None, answer.headers)
            if answer.status_code >= 300 and not (answer.status_code == 404 and code == "BlobNotFound"):
                raise translate_answer(answer.status_code, code, answer.headers, replace(call, key=key))

    def _blobs(self, prefix: str) -> Iterator[ObjectInfo]:
        call = self._call("list")
        with self._container.asking(call) as client:
            pages = client.list_blobs(name_starts_with=prefix, include=["metadata"]).by_page()
        page: Iterable[Any] | None = ()
        while page is not None:
            for blob in page:
                key = blob.name[len(self._below) :]
                if key and not key.endswith("/") and not is_folder(blob):
                    yield replace(blob_info(blob, key), nonce=None)
            with self._container.asking(call):
                page = next(pages, None)
                page = None if page is None else [*page]
