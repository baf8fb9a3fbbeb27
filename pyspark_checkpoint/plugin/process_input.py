"""What the driver plugin tells its Python processes, one line of JSON on standard input; how they log."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TextIO

import orjson

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.plugin.plugin_settings import (
    PluginSettings,
    parse_plugin_settings,
    unknown_settings,
)

SAFE_PATH = "PYTHONSAFEPATH"
"""Set by the plugin for this process alone: nothing is imported from the directory it is started in."""


@dataclass(frozen=True, slots=True)
class PluginInput:
    """The confs, which may hold secrets, and where the jar is on the driver."""

    app: str
    jar: str
    confs: Mapping[str, str] = field(repr=False)

    def settings(self) -> PluginSettings:
        """The confs, checked."""
        return parse_plugin_settings(self.confs, self.app)


def begin_process(stream: TextIO, *, has_driver: bool = True) -> PluginInput:
    """Become a process of the driver's, and read what it says. Log lines begin with their level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    package = logging.getLogger("pyspark_checkpoint")
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    # Programs that this process starts, an SDK's helper for credentials, import as they always do.
    os.environ.pop(SAFE_PATH, None)
    if has_driver:
        leave_signals_to_driver()
    given = read_plugin_input(stream)
    if has_driver:
        end_with_driver(stream)
    for sentence in unknown_settings(given.confs):
        package.warning("%s", sentence)
    return given


def read_plugin_input(stream: TextIO) -> PluginInput:
    """Read the first line; the plugin leaves the stream open as long as the driver lives."""
    try:
        fields = orjson.loads(stream.readline())
    except orjson.JSONDecodeError:
        raise SettingsError(
            "this is started by the driver plugin", hint="set spark.plugins, or use ckpt restore"
        ) from None
    confs = {str(name): str(value) for name, value in fields.items()}
    return PluginInput(confs.pop("app", ""), confs.pop("jar", ""), confs)


def end_with_driver(stream: TextIO) -> None:
    """End this process when the driver is gone, whatever it died of: only it holds the pipe's other end."""
    threading.Thread(target=_watch, args=(stream.fileno(),), daemon=True).start()


def _watch(pipe: int) -> None:
    # Not through the stream: its lock would be held when the interpreter ends.
    while os.read(pipe, 4096):
        pass
    os._exit(3)


def leave_signals_to_driver() -> None:
    """Ignore what a terminal or a service manager sends to all processes of an application at once.

    The driver gets it too, and decides: if it ends, the pipe says so, after the last checkpoints.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
