"""Settings that users already have elsewhere, in our own words: Hadoop's keys and the environment.

Pure: mappings in, mappings out, with the names of ``store.options.KNOWN``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark_checkpoint.store.url import StoreUrl, azure_endpoint

_PREFIX = "spark.hadoop."
_GLOBAL_S3 = "s3.amazonaws.com"
_S3A = {
    "endpoint": "endpoint",
    "endpoint.region": "region",
    "access.key": "accessKey",
    "secret.key": "secretKey",
    "session.token": "sessionToken",
    "path.style.access": "pathStyleAccess",
    "requester.pays.enabled": "requesterPays",
    "server-side-encryption-algorithm": "serverEncryption",  # Hadoop's names before 3.3.2, and since then
    "server-side-encryption.key": "serverEncryptionKey",
    "encryption.algorithm": "serverEncryption",
    "encryption.key": "serverEncryptionKey",
    "encryption.context": "serverEncryptionContext",
}
_S3_ENVIRONMENT = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "accessKey": ("AWS_ACCESS_KEY_ID",),
    "secretKey": ("AWS_SECRET_ACCESS_KEY",),
    "sessionToken": ("AWS_SESSION_TOKEN",),
}
_AZURE_ENVIRONMENT = {
    "connectionString": ("AZURE_STORAGE_CONNECTION_STRING",),
    "accountName": ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
    "accountKey": ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    "sasToken": ("AZURE_STORAGE_SAS_TOKEN",),
}


def hadoop_options(url: StoreUrl, options: Mapping[str, str]) -> dict[str, str]:
    """Read ``fs.s3a.*``, ``fs.gs.*`` and ``fs.azure.*`` keys, with or without ``spark.hadoop.``."""
    readers = {"s3": _s3a, "gs": _gs, "az": _azure}
    return readers[url.scheme](url, _hadoop_keys(options)) if url.scheme in readers else {}


def hadoop_endpoint(url: StoreUrl, options: Mapping[str, str]) -> str | None:
    """The endpoint that Hadoop's keys name, also the global one of S3, which is no option; None: none."""
    found = hadoop_options(url, options)
    if url.scheme != "s3":
        return found.get("endpoint")
    keys = _hadoop_keys(options)
    typed = _first(keys, (f"fs.s3a.bucket.{url.bucket.lower()}.endpoint", "fs.s3a.endpoint"))
    is_global = "accessPoint" in found or (typed is not None and "endpoint" not in found)
    return f"https://{_GLOBAL_S3}" if is_global else found.get("endpoint")


def _hadoop_keys(options: Mapping[str, str]) -> dict[str, str]:
    return {
        name.lower().removeprefix(_PREFIX): str(value).strip()
        for name, value in sorted(options.items())
        if name.lower().startswith((_PREFIX, "fs.", "google."))
    }


def environment_options(url: StoreUrl, env: Mapping[str, str]) -> dict[str, str]:
    """Read the variables that the services' own tools read."""
    if url.scheme == "gs":
        host = env.get("STORAGE_EMULATOR_HOST")
        return {"endpoint": _with_scheme(host, secure=False), "anonymous": "true"} if host else {}
    table = {"s3": _S3_ENVIRONMENT, "az": _AZURE_ENVIRONMENT}.get(url.scheme, {})
    read = {name: _first(env, variables) for name, variables in table.items()}
    found = {name: value for name, value in read.items() if value}
    if not {"accessKey", "secretKey"} <= found.keys():
        found = _without(found, ("accessKey", "secretKey", "sessionToken"))
    account = connection_account(found.get("connectionString")) or found.get("accountName")
    if url.account and account != url.account:
        # Credentials of another account than the one the URL names are not for this store.
        found = _without(found, tuple(_AZURE_ENVIRONMENT))
    return found


def connection_account(connection: str | None) -> str | None:
    """Return the account that an Azure connection string is for, if it says so."""
    match = re.search(r"(?:^|;)\s*AccountName=([^;]+)", connection or "", re.IGNORECASE)
    return match[1].strip() if match else None


def _s3a(url: StoreUrl, keys: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    secure, provider = "true", ""
    for prefix in ("fs.s3a.", f"fs.s3a.bucket.{url.bucket.lower()}."):
        given = [(ours, keys[prefix + theirs]) for theirs, ours in _S3A.items() if prefix + theirs in keys]
        # An empty value of the bucket unsets the one of all; of two names for one thing, one may be empty.
        found = _without(found, tuple(ours for ours, _ in given)) | {
            ours: value for ours, value in given if value
        }
        secure = keys.get(prefix + "connection.ssl.enabled", secure)
        provider = keys.get(prefix + "aws.credentials.provider", provider)
    if "endpoint" in found:
        found["endpoint"] = _with_scheme(found["endpoint"], secure=secure.lower() != "false")
        if found["endpoint"].split("//")[1].rstrip("/") == _GLOBAL_S3:
            del found["endpoint"]  # the global name; the SDK knows the one of the region
    access_point = keys.get(f"fs.s3a.bucket.{url.bucket.lower()}.accesspoint.arn")
    if access_point:
        # Its ARN has the region, and its host follows from that: S3A leaves the bucket's own aside.
        found = _without(found, ("endpoint", "region", "pathStyleAccess")) | {"accessPoint": access_point}
    if "serverEncryption" not in found:
        found = _without(found, ("serverEncryptionKey", "serverEncryptionContext"))
    if "AnonymousAWSCredentialsProvider" in provider:
        found["anonymous"] = "true"
    return found


def _gs(_url: StoreUrl, keys: Mapping[str, str]) -> dict[str, str]:
    found = {
        "endpoint": keys.get("fs.gs.storage.root.url"),
        "project": keys.get("fs.gs.project.id"),
        "credentialsFile": _first(
            keys,
            (
                "google.cloud.auth.service.account.json.keyfile",
                "fs.gs.auth.service.account.json.keyfile",
            ),
        ),
    }
    if keys.get("fs.gs.auth.type", keys.get("google.cloud.auth.type", "")).upper() == "UNAUTHENTICATED":
        found["anonymous"] = "true"
    return {name: value for name, value in found.items() if value}


def _azure(url: StoreUrl, keys: Mapping[str, str]) -> dict[str, str]:
    """A key belongs to one host: that of the URL, or, if the URL names none, the only one with a key."""
    account, suffix = url.account, url.azure_suffix
    if account is None or suffix is None:
        only = _only_account(keys)
        if only is None:
            return {}
        account, suffix = only
    found = {"accountName": account}
    endpoint = azure_endpoint(account, suffix)
    if url.account is None and endpoint is not None:
        found["endpoint"] = endpoint
    for service in ("blob", "dfs"):
        host = f"{account}.{service}.{suffix}"
        names = {
            "accountKey": (f"fs.azure.account.key.{host}",),
            "sasToken": (f"fs.azure.sas.{url.bucket.lower()}.{host}", f"fs.azure.sas.fixed.token.{host}"),
        }
        for ours, theirs in names.items():
            value = _first(keys, theirs)
            if value is not None:
                found[ours] = value
    return found


def _only_account(keys: Mapping[str, str]) -> tuple[str, str] | None:
    """The account that the keys name and what its host ends with, if they name one alone."""
    prefix = "fs.azure.account.key."
    hosts = [name.removeprefix(prefix) for name in keys if name.startswith(prefix)]
    parts = [host.partition(".") for host in hosts]
    found = {(account, rest.partition(".")[2]) for account, _, rest in parts}
    return found.pop() if len(found) == 1 else None


def _without(values: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in names}


def _first(values: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((values[name] for name in names if values.get(name)), None)


def _with_scheme(host: str, *, secure: bool) -> str:
    return host if "://" in host else f"{'https' if secure else 'http'}://{host}"
