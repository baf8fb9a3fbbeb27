"""What an exception of ``requests`` or urllib3 proves about a request. Shared by GCS and Azure."""

from __future__ import annotations

import ssl

import requests
import urllib3.exceptions

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
