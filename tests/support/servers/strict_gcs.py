"""A Google Cloud Storage of our own, stricter than the real one, within the test's process.

fake-gcs-server ignores conditions on resumable uploads, copies, reads and deletes, and accepts bytes that
do not match their checksum. This fake keeps exactly these promises, and refuses more than Google does:

* an upload without a checksum of the whole object, or with one that does not match, is refused (400);
* conditions are decided under one lock, at the beginning *and* at the end of a resumable upload;
* a part of a resumable upload that is not the next one, or not a multiple of 256 KiB, is refused;
* a query parameter that it does not know is refused, so that no condition goes by unnoticed;
* a session that was cancelled or finished is gone; sessions that are left open can be counted;
* a copy of more than ``rewrite_step_bytes`` needs several requests.

``damage`` flips one bit of every upload's bytes as if on the wire; ``keep_bytes`` makes a resumable
session keep less of each part than was sent, as Google may.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

from tests.support.servers.process import LOOPBACK

BUCKET = "strict"
PART_MULTIPLE = 256 * 1024
_KNOWN = {
    "uploadType", "ifGenerationMatch", "upload_id", "alt", "generation", "fields", "prefix",
    "startOffset", "maxResults", "pageToken", "rewriteToken",
}  # fmt: skip


class Refused(Exception):
    """An HTTP answer other than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass
class StoredObject:
    """One generation of one object."""

    data: bytes
    generation: int
    metadata: dict[str, str]

    def resource(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "updated": "2026-11-17T06:58:24.826Z",
            "crc32c": crc32c(self.data),
            "metadata": self.metadata,
        }


@dataclass
class Session:
    """A resumable upload under way."""

    resource: dict[str, Any]
    condition: int | None
    data: bytearray = field(default_factory=bytearray)


class StrictGcs:
    """The objects and sessions of one bucket, and what is to go wrong."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, StoredObject] = {}
        self.sessions: dict[str, Session] = {}
        self.requests: list[str] = []
        self.damage = False
        self.keep_bytes: int | None = None
        self.page_size = 3
        self.rewrite_step_bytes = 1000
        self.refuse_part: int | None = None
        """The status with which the second part of a session is refused, if any."""
        self._count = 0
        self.name = "strict-gcs"
        self.port = 0
        self.pid = os.getpid()

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Store options for this server."""
        return self.options_at(self.endpoint)

    def options_at(self, endpoint: str) -> dict[str, str]:
        """Store options for this server behind another endpoint, such as a proxy's."""
        return {"endpoint": endpoint, "anonymous": "true"}

    def url(self, prefix: str = "") -> str:
        """The URL of ``prefix`` in the bucket."""
        return f"gs://{BUCKET}/{prefix}".rstrip("/")

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def check(self, name: str, condition: int | None) -> None:
        """Decide a condition. The caller holds the lock."""
        found = self.objects.get(name)
        if condition is not None and condition != (0 if found is None else found.generation):
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")

    def store(self, resource: dict[str, Any], data: bytes, condition: int | None) -> dict[str, Any]:
        """Verify, decide, and make visible, in this order, atomically. The caller holds the lock."""
        if self.damage and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        sent = resource.get("crc32c")
        if sent is None:
            raise Refused(400, "strict: an upload must carry the crc32c of the whole object")
        if sent != crc32c(data):
            raise Refused(400, f'Provided CRC32C "{sent}" doesn\'t match calculated CRC32C "x".')
        self.check(resource["name"], condition)
        made = StoredObject(data, self.next_number(), dict(resource.get("metadata") or {}))
        self.objects[resource["name"]] = made
        return made.resource(resource["name"])


def crc32c(data: bytes) -> str:
    """The checksum as the API writes it."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


@contextlib.contextmanager
def strict_gcs() -> Iterator[StrictGcs]:
    """A running strict fake with one empty bucket."""
    state = StrictGcs()
    server = _Server((LOOPBACK, 0), type("Handler", (_Handler,), {"state": state}))
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.drop_connections()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._accepted: list[socket.socket] = []
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted = super().get_request()
        self._accepted.append(accepted[0])
        return accepted

    def drop_connections(self) -> None:
        """End connections that a client keeps open, so that their threads end."""
        for accepted in self._accepted:
            with contextlib.suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    state: StrictGcs
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        announced = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(announced)
        if len(body) < announced:
            self.close_connection = True  # a torn request has no effect
            return
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        self.state.requests.append(f"{self.command} {url.path}")
        try:
            if query.keys() - _KNOWN:
                raise Refused(400, f"strict: unknown parameters {query.keys() - _KNOWN}")
            with self.state.lock:
                self._route(url.path, query, body)
        except Refused as refusal:
            error = {"code": refusal.status, "message": refusal.message, "errors": [{"reason": "strict"}]}
            self._answer(refusal.status, {"error": error})

    def _route(self, path: str, query: dict[str, str], body: bytes) -> None:
        upload = re.fullmatch(rf"/upload/storage/v1/b/{BUCKET}/o", path)
        found = re.fullmatch(
            rf"/storage/v1/b/{BUCKET}/o(?:/([^/]+)(?:/rewriteTo/b/{BUCKET}/o/([^/]+))?)?", path
        )
        if upload and query.get("upload_id"):
            self._session(query["upload_id"], body)
        elif upload:
            self._upload(query, body)
        elif found is None:
            raise Refused(404, "The specified bucket does not exist.")
        elif found[2]:
            self._rewrite(unquote(found[1]), unquote(found[2]), query, json.loads(body))
        elif found[1]:
            self._object(unquote(found[1]), query)
        else:
            self._list(query)

    def _upload(self, query: dict[str, str], body: bytes) -> None:
        condition = _condition(query)
        if query["uploadType"] == "multipart":
            resource, data = _parse_related(self.headers["Content-Type"], body)
            self._answer(200, self.state.store(resource, data, condition))
            return
        resource = json.loads(body)
        self.state.check(resource["name"], condition)
        upload_id = f"session-{self.state.next_number()}"
        self.state.sessions[upload_id] = Session(resource, condition)
        location = f"http://{self.headers['Host']}/upload/storage/v1/b/{BUCKET}/o?upload_id={upload_id}"
        self._answer(200, {}, {"Location": location})

    def _session(self, upload_id: str, body: bytes) -> None:
        session = self.state.sessions.get(upload_id)
        if session is None:
            raise Refused(404, "no such session")
        if self.command == "DELETE":
            del self.state.sessions[upload_id]
            raise Refused(499, "cancelled")
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", self.headers["Content-Range"])
        assert match is not None
        start, end, total = int(match[1]), int(match[2]) + 1, int(match[3])
        if start != len(session.data) or end - start != len(body):
            raise Refused(400, "strict: not the next part")
        if start and self.state.refuse_part is not None:
            raise Refused(self.state.refuse_part, "strict: as told")
        if end < total and len(body) % PART_MULTIPLE:
            raise Refused(400, "strict: a part must be a multiple of 256 KiB")
        session.data += body[: self.state.keep_bytes]
        if len(session.data) < total:
            kept = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
            self._answer(308, {}, kept)
            return
        del self.state.sessions[upload_id]
        self._answer(200, self.state.store(session.resource, bytes(session.data), session.condition))

    def _object(self, name: str, query: dict[str, str]) -> None:
        found = self.state.objects.get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise Refused(404, f"No such object: {BUCKET}/{name}")
        self.state.check(name, _condition(query))
        if self.command == "DELETE":
            del self.state.objects[name]
            self._answer(204, None)
        elif query.get("alt") == "media":
            self._media(found)
        else:
            self._answer(200, found.resource(name))

    def _media(self, found: StoredObject) -> None:
        headers = {
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Hash": f"crc32c={crc32c(found.data)}",
        }
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            self._answer(200, found.data, headers)
            return
        start, total = int(match[1]), len(found.data)
        if start >= total:
            raise Refused(416, "range")
        end = min(int(match[2]) + 1 if match[2] else total, total)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
        self._answer(206, found.data[start:end], headers)

    def _list(self, query: dict[str, str]) -> None:
        names = sorted(
            (
                name
                for name in self.state.objects
                if name.startswith(query.get("prefix", ""))
                and name.encode() >= query.get("startOffset", "").encode()
                and name.encode() > query.get("pageToken", "").encode()
            ),
            key=str.encode,
        )
        page = names[: self.state.page_size]
        answer: dict[str, Any] = {"items": [self.state.objects[name].resource(name) for name in page]}
        if len(names) > len(page):
            answer["nextPageToken"] = page[-1]
        self._answer(200, answer)

    def _rewrite(self, source: str, target: str, query: dict[str, str], resource: dict[str, Any]) -> None:
        found = self.state.objects.get(source)
        if found is None:
            raise Refused(404, f"No such object: {BUCKET}/{source}")
        self.state.check(target, _condition(query))
        done = int(query.get("rewriteToken", "0")) + self.state.rewrite_step_bytes
        if done < len(found.data):
            self._answer(200, {"done": False, "rewriteToken": str(done)})
            return
        copied = {"crc32c": crc32c(found.data), **resource, "name": target}
        self._answer(200, {"done": True, "resource": self.state.store(copied, found.data, None)})

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        payload = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def _condition(query: dict[str, str]) -> int | None:
    return int(query["ifGenerationMatch"]) if "ifGenerationMatch" in query else None


def _parse_related(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a multipart/related body into its metadata and its bytes, without forgiving anything."""
    boundary = content_type.partition("boundary=")[2].encode()
    if not content_type.startswith("multipart/related") or len(boundary) < 16:
        raise Refused(400, "strict: no boundary that a body could not contain")
    begin, end = b"--" + boundary + b"\r\n", b"\r\n--" + boundary + b"--\r\n"
    if not body.startswith(begin) or not body.endswith(end):
        raise Refused(400, "strict: not a multipart body")
    metadata, _, data = body[len(begin) : -len(end)].partition(b"\r\n" + begin)
    return json.loads(metadata.partition(b"\r\n\r\n")[2]), data.partition(b"\r\n\r\n")[2]
