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
def has_namespaces() -> bool:
    """Whether this machine lets its users make mount namespaces."""
    try:
        command = [*IN_NAMESPACE["tmpfs"], "/mnt", "true"]
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except OSError:
        return False
    return done.returncode == 0
