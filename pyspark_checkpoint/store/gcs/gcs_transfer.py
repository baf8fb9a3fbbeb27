"""Bytes to and from Google Cloud Storage: ranges of one generation, uploads by request or session."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import google_crc32c
import requests

from pyspark_checkpoint.errors import NotFound, StoreError
from pyspark_checkpoint.store.base import ObjectInfo, Version
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.gcs.gcs_api import GcsApi, read_body
from pyspark_checkpoint.store.gcs.gcs_errors import missing_bucket
from pyspark_checkpoint.store.ranged import RangeFound, RangeReader, range_header, range_total
from pyspark_checkpoint.store.remote import Call


class Checksum:
    """Adds up the pieces of an object: crc32c in C where available (over 10 GB/s), else MD5.

    ``field`` is the name that the API has for it, ``expected`` what the pieces must come to.
    """

    def __init__(self, field: str, expected: str = "") -> None:
        self.field = field
        self._expected = expected
        self._crc = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        if self.field == "crc32c":
            self._crc = google_crc32c.extend(self._crc, piece)
        else:
            self._md5.update(piece)

    @property
    def value(self) -> str:
        """The checksum of all pieces so far."""
        digest = self._crc.to_bytes(4, "big") if self.field == "crc32c" else self._md5.digest()
        return base64.b64encode(digest).decode()

    def is_right(self) -> bool:
        """Whether the pieces so far are the whole object."""
        return self.value == self._expected


def fast_checksum() -> str:
    """The checksum that costs least here; crc32c in pure Python would be slower than the network."""
    return "crc32c" if google_crc32c.implementation == "c" else "md5Hash"


def expected_in(headers: Mapping[str, str]) -> Checksum | None:
    """What a download must come to, if the answer names a checksum that costs little here."""
    found = dict(
        part.strip().split("=", 1) for part in headers.get("x-goog-hash", "").split(",") if "=" in part
    )
    for header, field in (("crc32c", "crc32c"), ("md5", "md5Hash")):
        if header in found and field in ("md5Hash", fast_checksum()):
            return Checksum(field, found[header])
    return None


NONCE_FIELD = "ckpt-nonce"
_INFO_FIELDS = "name,size,generation,updated,metadata"


class GcsReader(RangeReader):
    """Reads by generation."""

    def __init__(self, api: GcsApi) -> None:
        self._api = api

    def info(self, call: Call, name: str, key: str) -> ObjectInfo:
        """Ask for an object's metadata."""
        with self._api.send(
            call, "GET", self._api.object_path(name), params={"fields": _INFO_FIELDS}
        ) as response:
            return parse_info(load_json(read_body(response), call), key, call)

    def find(
        self,
        call: Call,
        name: str,
        start: int | None = None,
        end: int | None = None,
        version: str | None = None,
        *,
        max_bytes: int | None = None,
    ) -> RangeFound | None:
        """Read a range that is not empty, or everything; None means that the object has no byte there."""
        params = {"alt": "media"} | ({} if version is None else {"generation": version})
        ranged = {} if start is None else {"Range": range_header(start, end)}
        with self._api.send(
            call,
            "GET",
            self._api.object_path(name),
            params=params,
            headers=ranged,
            accept=(200, 206, 416) if ranged else (200,),
        ) as response:
            if response.status_code == 416:
                # Some servers send bytes here that they did not announce: the connection is spent.
                response.raw.close()
                return None
            headers, status = (
                {name.lower(): value for name, value in response.headers.items()},
                response.status_code,
            )
            size_bytes = int(headers.get("content-length") or 0)
            if max_bytes is not None and size_bytes > max_bytes:
                raise call.too_large(size_bytes, max_bytes)
            data = read_body(response)
        generation, expected = headers.get("x-goog-generation", ""), expected_in(headers)
        if not generation:
            raise call.unavailable("the answer has no generation")
        if start is None:
            return RangeFound(data, len(data), generation, expected)
        if status == 200:
            # A server may ignore the range and send everything.
            found = RangeFound(data[start:end], len(data), generation, expected)
            return found if start < len(data) else None
        total = range_total(headers.get("content-range", ""), data, start, end, call)
        return RangeFound(data, total, generation, expected)


def parse_info(resource: Mapping[str, Any], key: str, call: Call) -> ObjectInfo:
    """Read an object's metadata."""
    try:
        updated = datetime.fromisoformat(resource["updated"])
        return ObjectInfo(
            key=key,
            size_bytes=int(resource.get("size", 0)),
            version=Version(str(int(resource["generation"]))),
            modified_ms=int(updated.timestamp() * 1000),
            nonce=(resource.get("metadata") or {}).get(NONCE_FIELD),
        )
    except (LookupError, ValueError, TypeError, AttributeError):
        raise call.unavailable("the answer is not an object's metadata") from None


def load_json(body: bytes, call: Call) -> dict[str, Any]:
    """Parse an answer that must be a JSON object."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise call.unanswered("the answer is not JSON")
    return found


SINGLE_REQUEST_BYTES = 1024 * 1024 * 1024
"""Up to here a body goes up in one request, streamed; beyond, in parts, one after the other."""

_KEPT = re.compile(r"bytes=0-(\d+)")
_PART_MULTIPLE = 256 * 1024
_MAX_PARTS = 16
_JOIN_BYTES = 256 * 1024
_MEDIA_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class GcsUpload:
    """What is to be stored: where, which bytes, under which condition."""

    name: str
    body: UploadBody
    generation: str | None
    """The generation that the key must have: ``"0"`` for none, None for no condition."""
    nonce: str | None
    boundary: str
    """What separates the parts of a single request: random, since the body must not contain it."""

    def params(self, upload_type: str) -> dict[str, str]:
        """The query of the request that carries the condition."""
        params = {"uploadType": upload_type}
        if self.generation is not None:
            params["ifGenerationMatch"] = self.generation
        return params


def upload(api: GcsApi, call: Call, wanted: GcsUpload, *, single_bytes: int, part_bytes: int) -> str:
    """Store the body and return its generation. Raises what ``ObjectStore.put`` says."""
    checksum = _checksum(wanted.body)
    try:
        if wanted.body.size_bytes <= single_bytes:
            resource = _upload_single(api, call, wanted, checksum)
        else:
            resource = _upload_parts(api, call, wanted, checksum, part_bytes)
    except NotFound:
        # A key that is written cannot be absent; only its bucket can.
        raise missing_bucket(call) from None
    generation = str(resource.get("generation", ""))
    if not generation.isdigit() or resource.get("name") != wanted.name:
        raise call.unanswered("the answer to the upload is not about this object")
    if resource.get(checksum.field, checksum.value) != checksum.value:
        raise _take_back(api, call, wanted.name, generation)
    return generation


def _checksum(body: UploadBody) -> Checksum:
    checksum = Checksum(fast_checksum())
    for piece in (body.whole,) if body.whole is not None else body.pieces(0, body.size_bytes):
        checksum.add(bytes(piece))
    return checksum


def _take_back(api: GcsApi, call: Call, name: str, generation: str) -> StoreError:
    """Remove what a server created although the checksum that came with it was wrong; return the error.

    Google refuses such an upload itself; emulators and other servers may not. What was replaced by it
    is lost there, and removing the damaged bytes would not bring it back.
    """
    detail = "the server stored other bytes than were sent, although their checksum came with them"
    if call.if_absent:
        pinned = {"generation": generation, "ifGenerationMatch": generation}
        with (
            contextlib.suppress(StoreError),
            api.send(call, "DELETE", api.object_path(name), params=pinned, accept=(200, 204)) as response,
        ):
            read_body(response)
            detail += "; they were removed again"
    return call.damaged(detail)


def _metadata(wanted: GcsUpload, checksum: Checksum) -> bytes:
    resource: dict[str, object] = {
        "name": wanted.name,
        "contentType": _MEDIA_TYPE,
        checksum.field: checksum.value,
    }
    if wanted.nonce is not None:
        resource["metadata"] = {NONCE_FIELD: wanted.nonce}
    return json.dumps(resource).encode()


class _Related:
    """A multipart/related body with a known length, which ``requests`` sends piece by piece.

    Each pass begins anew, so that a request repeated after a token refresh sends everything.
    """

    def __init__(self, metadata: bytes, body: UploadBody, boundary: str) -> None:
        self._head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode()
            + metadata
            + f"\r\n--{boundary}\r\nContent-Type: {_MEDIA_TYPE}\r\n\r\n".encode()
        )
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._body = body

    def __len__(self) -> int:
        return len(self._head) + self._body.size_bytes + len(self._tail)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        yield from self._body.pieces(0, self._body.size_bytes)
        yield self._tail


def _upload_single(api: GcsApi, call: Call, wanted: GcsUpload, checksum: Checksum) -> dict[str, object]:
    related = _Related(_metadata(wanted, checksum), wanted.body, wanted.boundary)
    data = b"".join(related) if len(related) <= _JOIN_BYTES else related
    with api.send(
        call,
        "POST",
        api.upload_path,
        params=wanted.params("multipart"),
        headers={"Content-Type": f"multipart/related; boundary={wanted.boundary}"},
        data=data,
    ) as response:
        return load_json(read_body(response), call)


def _upload_parts(
    api: GcsApi, call: Call, wanted: GcsUpload, checksum: Checksum, part_bytes: int
) -> dict[str, object]:
    """Send the body through a resumable session; cancel the session whatever goes wrong."""
    session_url = _begin(api, call, wanted, checksum)
    step = part_step(wanted.body.size_bytes, part_bytes)
    try:
        offset, total = 0, wanted.body.size_bytes
        while True:
            end = min(offset + step, total)
            final = end == total
            asked = call if final else replace(call, writes=False)
            with api.send(
                asked,
                "PUT",
                session_url,
                headers={"Content-Range": f"bytes {offset}-{end - 1}/{total}"},
                data=_Slice(wanted.body, offset, end),
                accept=(200, 201, 308),
            ) as response:
                if response.status_code != 308:
                    return load_json(read_body(response), call)
                offset = _persisted(response, asked, offset, end)
    except NotFound:
        raise call.unavailable("the upload session is gone") from None
    except BaseException:
        _cancel(api, call, session_url)
        raise


def part_step(size_bytes: int, part_bytes: int) -> int:
    """How much a part carries: at least ``part_bytes``, in the multiples that Google wants.

    A part is streamed and takes no memory, but a round trip, so that there are at most 16.
    """
    least = max(part_bytes, -(-size_bytes // _MAX_PARTS))
    return max(1, -(-least // _PART_MULTIPLE)) * _PART_MULTIPLE


def _begin(api: GcsApi, call: Call, wanted: GcsUpload, checksum: Checksum) -> str:
    with api.send(
        replace(call, writes=False),
        "POST",
        api.upload_path,
        params=wanted.params("resumable"),
        headers={
            "Content-Type": "application/json; charset=UTF-8",
            "X-Upload-Content-Type": _MEDIA_TYPE,
            "X-Upload-Content-Length": str(wanted.body.size_bytes),
        },
        data=_metadata(wanted, checksum),
        accept=(200, 201),
    ) as response:
        read_body(response)
        session_url = response.headers.get("Location")
    if session_url is None:
        raise call.unavailable("the server began no upload session")
    return session_url


class _Slice:
    """A range of a body with a known length, which ``requests`` sends piece by piece."""

    def __init__(self, body: UploadBody, start: int, end: int) -> None:
        self._body, self._start, self._end = body, start, end

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return self._body.pieces(self._start, self._end)


def _persisted(response: requests.Response, call: Call, offset: int, end: int) -> int:
    """Return where to go on: the server may have kept less than was sent, though never nothing twice."""
    read_body(response)
    kept = _KEPT.fullmatch(response.headers.get("Range", ""))
    reached = 0 if kept is None else int(kept[1]) + 1
    if not offset < reached <= end:
        raise call.unavailable("the upload session made no progress")
    return reached


def _cancel(api: GcsApi, call: Call, session_url: str) -> None:
    """End an upload session, so that no part of it stays; one that cannot be ended expires in a week."""
    with (
        contextlib.suppress(StoreError),
        api.send(
            replace(call, writes=False),
            "DELETE",
            session_url,
            headers={"Content-Length": "0"},
            accept=(200, 204, 499),
        ) as response,
    ):
        read_body(response)
