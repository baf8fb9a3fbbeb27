"""Store URLs as users type them, taken apart. Nothing here is looked up; nothing secret is echoed."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pyspark_checkpoint.errors import Invalid, SettingsError
from pyspark_checkpoint.store.base import check_key

SCHEMES = {
    "memory": "memory",
    "file": "file",
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
}
EXAMPLES = {
    "memory": "memory://name",
    "file": "file:///directory",
    "s3": "s3://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "az": "az://container/prefix or abfss://container@account.dfs.core.windows.net/prefix",
}
USUAL_AZURE_SUFFIX = "core.windows.net"
AZURE_SUFFIXES = (
    USUAL_AZURE_SUFFIX,
    "core.chinacloudapi.cn",
    "core.usgovcloudapi.net",
    "core.cloudapi.de",
    "fabric.microsoft.com",
)
"""What the hosts of Azure's own clouds end with, after account and service."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,221}")
_ACCOUNT_HOST = re.compile(r"([a-z0-9-]+)\.(?:dfs|blob)\.([a-z0-9.-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where a store is. ``path`` is the prefix, or the absolute directory of a ``file`` store."""

    scheme: str
    bucket: str
    path: str
    account: str | None = None
    endpoint: str | None = None

    @property
    def azure_suffix(self) -> str | None:
        """What the host of the Azure account ends with, in lower case; None if the URL names no host."""
        if self.account is None:
            return None
        return USUAL_AZURE_SUFFIX if self.endpoint is None else self.endpoint.partition(".blob.")[2]


def parse_store_url(url: str) -> StoreUrl:
    """Take a URL or a plain path apart; raise ``SettingsError`` that says what to type instead."""
    if not isinstance(url, str) or not url.strip() or "\x00" in url:
        raise SettingsError("no store URL was given", hint=f"type for example {EXAMPLES['s3']}")
    match = _SCHEME.fullmatch(url)
    if match is None:
        return StoreUrl("file", "", _absolute(url))
    typed, rest = match[1].lower(), match[2]
    scheme = SCHEMES.get(typed)
    if scheme is None:
        raise _unknown_scheme(typed)
    return _parse_file(rest) if scheme == "file" else _parse_remote(typed, scheme, rest)


def local_url(root: Path) -> str:
    """Return how a user would type this directory so that ``parse_store_url`` finds it again."""
    text = str(root)
    return text if "?" in text or "#" in text else f"file://{text}"


def _absolute(text: str) -> str:
    try:
        # Not resolve(): a symbolic link that the user named stays the name that the user sees.
        return os.path.abspath(Path(text).expanduser())  # noqa: PTH100
    except RuntimeError:
        raise SettingsError(f"no home directory for {text!r}", hint="type an absolute path") from None


def _parse_file(rest: str) -> StoreUrl:
    # Hadoop spells a path as it is: what looks like a query or a fragment is part of a name.
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise SettingsError(
                f"a file URL has no host, but this one has {host!r}",
                hint=f"type file:///{host}/{path} or a plain path",
            )
        rest = slash + path
    if not rest.startswith("/"):
        raise SettingsError(
            "a file URL needs an absolute path", hint=f"type {EXAMPLES['file']}, or the relative path alone"
        )
    return StoreUrl("file", "", _absolute(rest))


def _parse_remote(typed: str, scheme: str, rest: str) -> StoreUrl:
    example = EXAMPLES[scheme]
    authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", "")
    if ":" in authority or ("@" in authority and scheme != "az"):
        raise SettingsError(
            f"a {typed}:// URL has no user, password or port",
            hint=f"type {example} and give credentials as options or in the environment",
        )
    _refuse_query(typed, rest)
    if not rest.startswith("//"):
        raise SettingsError(
            f"{typed}:{rest} is not a URL", hint=f"type {typed}://{rest.lstrip('/') or 'bucket'}"
        )
    account, endpoint = None, None
    if "@" in authority:
        authority, _, host = authority.partition("@")
        account, endpoint = _azure_account(host)
    if not _BUCKET.fullmatch(authority):
        what = f"{authority!r} is not a name" if authority else "no name"
        raise SettingsError(f"{what} of a bucket in {typed}:{rest}", hint=f"type {example}")
    return StoreUrl(scheme, authority, _prefix(f"{typed}:{rest}", path), account, endpoint)


def _prefix(url: str, path: str) -> str:
    prefix = path.rstrip("/")
    if prefix:
        try:
            check_key(prefix)
        except Invalid as error:
            raise SettingsError(
                f"the prefix of {url} cannot be used: {error.message}",
                hint="type segments between single slashes, without control characters",
            ) from None
    return prefix


def _azure_account(host: str) -> tuple[str, str | None]:
    match = _ACCOUNT_HOST.fullmatch(host)
    if match is None:
        raise SettingsError(f"{host!r} is not the host of an Azure account", hint=f"type {EXAMPLES['az']}")
    account, suffix = match[1].lower(), match[2].lower()
    return account, azure_endpoint(account, suffix)


def azure_endpoint(account: str, suffix: str) -> str | None:
    """Where the blobs of an account are; None at the usual place, which needs no saying."""
    return None if suffix == USUAL_AZURE_SUFFIX else f"https://{account}.blob.{suffix}"


def _refuse_query(typed: str, rest: str) -> None:
    """A query may hold a signature, so that only what stands before it is shown."""
    before = re.split(r"[?#]", rest, maxsplit=1)[0]
    if before != rest:
        raise SettingsError(
            f"{typed}:{before} is followed by a query or fragment",
            hint=f"type {typed}:{before} and give settings as options",
        )


def _unknown_scheme(typed: str) -> SettingsError:
    near = difflib.get_close_matches(typed, SCHEMES, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}://? " if near else ""
    known = ", ".join(f"{name}://" for name in EXAMPLES)
    return SettingsError(f"unknown scheme {typed}://", hint=f"{hint}Known: {known} and plain paths")
