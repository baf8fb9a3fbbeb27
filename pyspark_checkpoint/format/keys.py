"""Every name that goes to a store, built and parsed in pairs.

Numbers are zero padded to ten digits and refused above, so that names sort as numbers do.
Names that users choose (operators, sinks, savepoints) are checked here and nowhere else.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError, RefusedError

MAX_NUMBER = 9_999_999_999
MAX_NAME_BYTES = 120
LATEST_KEY = "_latest"
CONTROL_KEY = "_control"
MANIFESTS_PREFIX = "manifests/"
CHECKPOINTS_PREFIX = "checkpoints/"
DATA_KEYS_PREFIX = "keys/"

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_NUMBER = r"[0-9]{10}"
_MANIFEST = re.compile(rf"manifests/manifest-({_NUMBER})\.json\Z")
_SEAL = re.compile(rf"manifests/manifest-({_NUMBER})\.seal\.json\Z")
_STATUS = re.compile(
    rf"manifests/manifest-({_NUMBER})\.(.+)\.(committed|failed-[0-9]{{1,9}})\.json\Z", re.S
)
_ATTEMPT = re.compile(rf"checkpoints/({_NUMBER})-({_UUID})/(.+)\Z", re.DOTALL)
_GIVEN_UP = re.compile(rf"checkpoints/({_NUMBER})-{_UUID}/given-up\.json\Z")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_DATA_KEY = re.compile(r"keys/([0-9a-f-]{8,64})\.json\Z")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """One attempt to make checkpoint ``number``: fresh each time, so that none overwrites another."""

    number: int
    uuid: str

    def __str__(self) -> str:
        return f"{pad(self.number)}-{self.uuid}"

    @staticmethod
    def parse(text: str) -> CheckpointId:
        """Read back what ``str`` gave."""
        match = re.fullmatch(rf"({_NUMBER})-({_UUID})", text)
        if match is None:
            raise FormatError(f"not a checkpoint id: {text[:80]!r}")
        return CheckpointId(int(match[1]), match[2])


@dataclass(frozen=True, slots=True)
class StatusKey:
    """What the name of a sink's status record says. ``failure`` is None for a committed sink."""

    number: int
    sink: str
    failure: int | None


class CheckpointPaths:
    """The names of one checkpoint's objects, relative to the store's root."""

    @staticmethod
    def checkpoint_dir(attempt: CheckpointId) -> str:
        """The prefix that all artifacts of an attempt share."""
        return f"{CHECKPOINTS_PREFIX}{attempt}/"

    @staticmethod
    def snapshot(attempt: CheckpointId, operator: str, partition: int) -> str:
        """Where a partition's snapshot goes."""
        return CheckpointPaths._artifact(attempt, operator, partition, "snap")

    @staticmethod
    def delta(attempt: CheckpointId, operator: str, partition: int) -> str:
        """Where a partition's delta goes."""
        return CheckpointPaths._artifact(attempt, operator, partition, "delta")

    @staticmethod
    def pack(attempt: CheckpointId, index: int) -> str:
        """Where the pack ``index`` of an attempt goes."""
        return f"{CheckpointPaths.checkpoint_dir(attempt)}pack-{_index(index)}.pack"

    @staticmethod
    def settled(attempt: CheckpointId, sha256: str) -> str:
        """Where a list of settled parts with this digest goes."""
        return f"{CheckpointPaths.checkpoint_dir(attempt)}list-{sha256}.json"

    @staticmethod
    def state(attempt: CheckpointId) -> str:
        """Where an attempt's state sidecar goes."""
        return f"{CheckpointPaths.checkpoint_dir(attempt)}state.bin"

    @staticmethod
    def file(attempt: CheckpointId, index: int) -> str:
        """Where an artifact goes that has an object of its own and is not the only one of its partition."""
        return f"{CheckpointPaths.checkpoint_dir(attempt)}file-{_index(index)}.bin"

    @staticmethod
    def given_up(attempt: CheckpointId) -> str:
        """Where a run says which objects, staged for the attempt's number, it will never publish."""
        return f"{CheckpointPaths.checkpoint_dir(attempt)}given-up.json"

    @staticmethod
    def manifest(number: int) -> str:
        """Where manifest ``number`` is: see ``manifest_key``."""
        return manifest_key(number)

    @staticmethod
    def latest_pointer() -> str:
        """Where the hint to the newest manifest is."""
        return LATEST_KEY

    @staticmethod
    def _artifact(attempt: CheckpointId, operator: str, partition: int, suffix: str) -> str:
        directory = CheckpointPaths.checkpoint_dir(attempt)
        folder = f"{directory}operators/{check_name(operator, 'operator')}"
        return f"{folder}/partition-{_index(partition)}.{suffix}"


def manifest_key(number: int) -> str:
    """Where manifest ``number`` is."""
    return f"{MANIFESTS_PREFIX}manifest-{pad(number)}.json"


def parse_manifest_key(key: str) -> int | None:
    """The number of a manifest's key; None for every other key."""
    match = _MANIFEST.match(key)
    return int(match[1]) if match else None


def seal_key(number: int) -> str:
    """Where the seal of manifest ``number`` is."""
    return f"{MANIFESTS_PREFIX}manifest-{pad(number)}.seal.json"


def parse_seal_key(key: str) -> int | None:
    """The number of a seal's key; None for every other key."""
    match = _SEAL.match(key)
    return int(match[1]) if match else None


def committed_key(number: int, sink: str) -> str:
    """Where the record is that ``sink`` has committed checkpoint ``number``."""
    return f"{MANIFESTS_PREFIX}manifest-{pad(number)}.{check_name(sink, 'sink')}.committed.json"


def failed_key(number: int, sink: str, failure: int) -> str:
    """Where the record of a sink's failure number ``failure`` is."""
    if not 0 <= failure <= 999_999_999:
        raise FormatError(f"not a failure number: {failure}")
    return f"{MANIFESTS_PREFIX}manifest-{pad(number)}.{check_name(sink, 'sink')}.failed-{failure}.json"


def parse_status_key(key: str) -> StatusKey | None:
    """What the key of a status record says; None for every other key."""
    match = _STATUS.match(key)
    if match is None:
        return None
    failure = None if match[3] == "committed" else int(match[3].removeprefix("failed-"))
    if failure is not None and match[3] != f"failed-{failure}":
        return None
    return StatusKey(int(match[1]), match[2], failure)


def parse_attempt_key(key: str) -> tuple[CheckpointId, str] | None:
    """The attempt that an artifact's key belongs to and the rest of the key; None for every other key."""
    match = _ATTEMPT.match(key)
    return (CheckpointId(int(match[1]), match[2]), match[3]) if match else None


def number_of(path: str) -> int:
    """The number of the checkpoint that an artifact was staged for."""
    parsed = parse_attempt_key(path)
    if parsed is None:
        raise FormatError(f"{path[:200]!r} is not an artifact of a store")
    return parsed[0].number


def parse_given_up_key(key: str) -> int | None:
    """The number of a record of what was given up; None for every other key."""
    match = _GIVEN_UP.match(key)
    return int(match[1]) if match else None


def data_key_key(data_key_id: str) -> str:
    """Where a wrapped data key is."""
    key = f"{DATA_KEYS_PREFIX}{data_key_id}.json"
    if _DATA_KEY.match(key) is None:
        raise FormatError(f"not a data key id: {data_key_id[:80]!r}")
    return key


def parse_data_key_key(key: str) -> str | None:
    """The id of a wrapped data key's key; None for every other key."""
    match = _DATA_KEY.match(key)
    return match[1] if match else None


def check_artifact_path(path: str) -> str:
    """Return a path read from a manifest if it names an artifact inside the store, else refuse it."""
    parsed = parse_attempt_key(path)
    if parsed is None or any(part in ("", ".", "..") for part in parsed[1].split("/")) or "\\" in path:
        raise FormatError(f"a manifest names {path[:200]!r}, which is not an artifact of its store")
    if _CONTROL_CHARACTER.search(path):
        raise FormatError(f"a manifest names a path with a control character: {path[:200]!r}")
    return path


def check_name(name: str, what: str) -> str:
    """Return a name that a user chose if it can be part of a key on every store, else refuse it."""
    if type(name) is not str:
        raise RefusedError(f"{what} name {name!r} is not a text", hint="choose a name of letters")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise RefusedError(
            f"{what} name {name!r} is not valid unicode",
            hint=f"choose 1 to {MAX_NAME_BYTES} bytes of text without slashes and control characters",
        ) from None
    problem = None
    if size == 0 or size > MAX_NAME_BYTES:
        problem = f"has {size} bytes"
    elif "/" in name or "\\" in name:
        problem = "has a slash"
    elif any(unicodedata.category(c) == "Cc" for c in name):
        problem = "has a control character"
    elif name in (".", "..") or name.endswith((".", " ")) or name.startswith(" "):
        problem = "begins or ends with a space, or ends with a dot"
    if problem:
        raise RefusedError(
            f"{what} name {name[:80]!r} {problem}",
            hint=f"choose 1 to {MAX_NAME_BYTES} bytes without slashes and control characters",
        )
    return name


def pad(number: int) -> str:
    """A checkpoint number as it stands in names."""
    if not 0 <= number <= MAX_NUMBER:
        raise FormatError(f"not a checkpoint number: {number}")
    return f"{number:010d}"


def _index(value: int) -> str:
    if not 0 <= value <= 99_999_999:
        raise FormatError(f"not a partition or pack number: {value}")
    return f"{value:05d}"
