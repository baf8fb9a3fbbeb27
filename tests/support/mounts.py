"""Mount points without privileges: a mount namespace of one process, which ends with it."""

from __future__ import annotations

import functools
import subprocess

_RUN = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
IN_NAMESPACE = {
    "tmpfs": [*_RUN, 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh"],
    "bind": [*_RUN, 'mount --bind "$1" "$1" && shift && exec "$@"', "sh"],
}
"""What runs a command with something mounted at a directory: followed by the directory and the command."""


@functools.cache
def need_namespaces() -> None:
    """Fail with one clear line where users may not make mount namespaces: a skipped test proves nothing."""
    try:
        command = [*IN_NAMESPACE["tmpfs"], "/mnt", "true"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        raise AssertionError(f"unshare cannot be started ({error.strerror}): install util-linux") from None
    assert told.returncode == 0, (
        "this machine does not let its users make mount namespaces: allow unprivileged user namespaces, or "
        f"run as root with CAP_SYS_ADMIN. unshare said: {told.stderr.strip()}"
    )
