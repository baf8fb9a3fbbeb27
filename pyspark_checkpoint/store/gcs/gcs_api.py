"""Requests to Google Cloud Storage's JSON API: authorised, one attempt each, every failure translated.

It stands on google-auth's session, as google-cloud-storage does, and not on that package's blobs: they
cannot send a large body with its condition and checksum in one request, they add a layer of hidden
retries, and they cost more time per request. Nothing here repeats a request, except that
google-auth fetches a new access token once when the old one is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import google.auth
import requests
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.transport.requests import AuthorizedSession
from google.oauth2.service_account import Credentials as ServiceAccountCredentials

from pyspark_checkpoint.errors import StoreError
from pyspark_checkpoint.store.gcs import gcs_errors
from pyspark_checkpoint.store.http_session import close_session, mount_adapters, settle_environment
from pyspark_checkpoint.store.remote import Call, PerProcess
from pyspark_checkpoint.store.settings import GcsSettings

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_AGENT = "pyspark-checkpoint"
_LENGTH_HEADERS = ("Content-Length", "Transfer-Encoding")

# google-auth has no types for these three.
_Session: Any = AuthorizedSession
_Anonymous: Any = AnonymousCredentials
_ServiceAccount: Any = ServiceAccountCredentials


@dataclass(frozen=True, slots=True)
class GcsConnection:
    """A session with credentials, and the address that it talks to."""

    session: requests.Session
    endpoint: str


class GcsApi:
    """The JSON API of one bucket. Used by many threads at once; each process has its own connections."""

    def __init__(self, settings: GcsSettings) -> None:
        self._settings = settings
        self._bucket_path = f"b/{quote(settings.bucket, safe='')}/o"
        self._bucket_seen = False
        self._connections = PerProcess(self._connect, _disconnect)

    def object_path(self, name: str) -> str:
        """The path of one object below the API's root."""
        return f"/storage/v1/{self._bucket_path}/{quote(name, safe='')}"

    def rewrite_path(self, source: str, target: str) -> str:
        """The path that copies one object to another of the same bucket."""
        return f"{self.object_path(source)}/rewriteTo/{self._bucket_path}/{quote(target, safe='')}"

    @property
    def endpoint(self) -> str:
        """The address that requests go to, which the credentials may decide."""
        return self._connections.get().endpoint

    @property
    def objects_path(self) -> str:
        """The path of the bucket's objects below the API's root."""
        return f"/storage/v1/{self._bucket_path}"

    @property
    def upload_path(self) -> str:
        """The path that takes uploads."""
        return f"/upload{self.objects_path}"

    @contextmanager
    def send(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
        accept: tuple[int, ...] = (200,),
    ) -> Iterator[requests.Response]:
        """Send one request; yield its answer if its status is one to ``accept``, else raise our error.

        ``path`` may be a whole URL. Failures while the caller reads the body are translated as well.
        """
        try:
            connection = self._connections.get()
            url = path if "://" in path else connection.endpoint + path
            with connection.session.request(
                method,
                url,
                params=params,
                headers={"User-Agent": _AGENT, "Accept-Encoding": "identity", **(headers or {})},
                data=data,
                timeout=self._settings.timeout_seconds,
                allow_redirects=False,
                stream=True,
            ) as response:
                if response.status_code not in accept:
                    raise self._refusal(call, response)
                self._bucket_seen = self._bucket_seen or response.ok
                yield response
        except gcs_errors.FOREIGN as error:
            raise gcs_errors.translate(error, call) from None

    def _refusal(self, call: Call, response: requests.Response) -> StoreError:
        """The error of an answer that was not accepted. Absence is reported only when it is proven.

        Google's text says whether object or bucket is missing. Where a server's does not, one request
        for the bucket decides, unless the bucket has answered before.
        """
        headers = {name.lower(): value for name, value in response.headers.items()}
        answer = gcs_errors.parse_answer(response.status_code, headers, read_body(response))
        if answer.status == 404 and answer.names_bucket is None and not self._bucket_seen:
            with self.send(
                replace(call, writes=False),
                "GET",
                self.objects_path,
                params={"maxResults": "1"},
                accept=(200, 404),
            ) as listing:
                read_body(listing)
                answer = replace(answer, names_bucket=listing.status_code == 404)
        return gcs_errors.translate_answer(answer, call)

    def close(self) -> None:
        """Close this process's connections. The next request opens new ones."""
        self._connections.close()

    def _connect(self) -> GcsConnection:
        settings = self._settings
        credentials = _credentials(settings)
        endpoint = settings.endpoint or f"https://storage.{credentials.universe_domain}"
        session: requests.Session = _Session(credentials, refresh_timeout=settings.timeout_seconds)
        mount_adapters(session)
        settle_environment(session, endpoint)
        return GcsConnection(session, endpoint.rstrip("/"))


def read_body(response: requests.Response) -> bytes:
    """Return the whole body, exactly as long as announced; a shorter one raises.

    A body that only the end of the connection ends could be of any length, so that it raises as well.
    """
    if response.status_code != 204 and not any(name in response.headers for name in _LENGTH_HEADERS):
        raise requests.exceptions.ChunkedEncodingError("a body of unknown length")
    body: bytes = response.raw.read(decode_content=False)
    return body


def _credentials(settings: GcsSettings) -> Credentials:
    call = Call(f"gs://{settings.bucket}", "open")
    try:
        if settings.anonymous:
            found = _Anonymous()
        elif settings.credentials_file is None:
            found, _ = google.auth.default(scopes=_SCOPES)
        else:
            found = _ServiceAccount.from_service_account_file(settings.credentials_file, scopes=_SCOPES)
    except gcs_errors.FOREIGN as error:
        raise gcs_errors.translate(error, call) from None
    except (OSError, ValueError) as error:
        raise call.denied(
            f"the credentials file cannot be read ({type(error).__name__})",
            "the option credentialsFile takes the JSON key of a service account; for every other kind of "
            "credentials set GOOGLE_APPLICATION_CREDENTIALS",
        ) from None
    credentials: Credentials = found
    return credentials


def _disconnect(connection: GcsConnection) -> None:
    close_session(connection.session)
