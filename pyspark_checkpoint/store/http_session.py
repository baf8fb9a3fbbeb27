"""Sessions of ``requests`` for GCS and Azure, without the two habits of theirs that a store cannot have.

* Python's HTTP client takes a head that ends early for a whole one, with headers missing or cut in the
  middle. Here that is a broken connection, as a body that ends early is.
* ``requests`` looks for proxies and certificates in the environment again for each request, which takes
  a third of its time. Here it is done once, when the session is made."""

from __future__ import annotations

import http.client
import io
import ssl
from typing import Any, cast

import requests
import urllib3
import urllib3.exceptions
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

NEVER_SENT = (
    requests.exceptions.ConnectTimeout,
    requests.exceptions.ProxyError,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.ProxyError,
)
"""Raised while the connection is made, before the first byte of a request."""

_MAX_DEPTH = 8


def root_cause(error: BaseException) -> BaseException:
    """Unwrap an exception down to one that ``NEVER_SENT`` names, or to the innermost."""
    for _ in range(_MAX_DEPTH):
        inner = _inner(error)
        if inner is None or isinstance(error, NEVER_SENT):
            break
        error = inner
    return error


def is_untrusted(error: BaseException) -> bool:
    """Whether the server's certificate was refused; repeating does not help."""
    return isinstance(root_cause(error), ssl.SSLCertVerificationError)


def is_never_sent(error: BaseException) -> bool:
    """Whether it is certain that the server has seen nothing of the request."""
    return isinstance(root_cause(error), NEVER_SENT)


def _inner(error: BaseException) -> BaseException | None:
    """The cause: urllib3 keeps it in ``reason``, azure in ``inner_exception``, others as an argument."""
    candidates = (getattr(error, "inner_exception", None), getattr(error, "reason", None), *error.args)
    return next((item for item in candidates if isinstance(item, BaseException)), None)


POOL_CONNECTIONS = 64


class _Watched:
    """A file that remembers the last line read from it."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self.file = file
        self.last_line = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last_line = self.file.readline(limit)
        return self.last_line

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _WholeHead(http.client.HTTPResponse):
    """An answer whose head must end with an empty line."""

    def begin(self) -> None:
        watched = _Watched(self.fp)
        self.fp = cast(Any, watched)
        super().begin()
        self.fp = cast(Any, watched.file)
        if watched.last_line not in (b"\r\n", b"\n"):
            raise http.client.IncompleteRead(b"")


class _Connection(HTTPConnection):
    response_class = _WholeHead


class _SecureConnection(HTTPSConnection):
    response_class = _WholeHead


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS = {"http": _Pool, "https": _SecurePool}


class _Adapter(HTTPAdapter):
    """Makes connections of ours, directly and through proxies, and never repeats a request."""

    def __init__(self) -> None:
        super().__init__(pool_maxsize=POOL_CONNECTIONS, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager


def mount_adapters(session: requests.Session) -> None:
    """Let a session make its connections as this module says."""
    for scheme in ("https://", "http://"):
        session.mount(scheme, _Adapter())


def settle_environment(session: requests.Session, url: str) -> Any:
    """Take proxies and certificates for ``url`` from the environment, now and not again.

    Returns what to verify certificates with, for those who pass that on with each request.
    """
    found = session.merge_environment_settings(url, {}, None, None, None)
    session.proxies, session.verify = dict(found["proxies"]), found["verify"]
    session.trust_env = False
    return found["verify"]


def close_session(session: requests.Session) -> None:
    """Close a session's idle connections now.

    ``requests`` only forgets its pools, which live on as long as some exception's traceback knows them.
    """
    for adapter in session.adapters.values():
        pools = getattr(getattr(adapter, "poolmanager", None), "pools", {})
        for name in tuple(pools.keys()):
            pool = pools.get(name)
            if pool is not None:
                pool.close()
    session.close()
