"""``StateBackendConfig``: where state lives, chosen by one value that can be read from a mapping.

Three kinds: ``in_process`` (gone with the process), ``local`` (a directory), ``object_store`` (any URL that
``open_object_store`` takes). Everything is checked when the value is made; what this package does not
do, such as discovery by gossip, is refused there, never accepted and ignored.

A store has one history and one writer at a time. Instances that each write their own share of the vnodes
therefore need a URL each; instances that only read may share one.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.format.keys import check_name
from pyspark_checkpoint.format.manifest import DEFAULT_VNODE_COUNT, MAX_VNODE_COUNT
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import plain_options
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.store.url import parse_store_url

DEFAULT_INSTANCE_ID = "local"
E = TypeVar("E", bound=enum.Enum)


class Backend(enum.Enum):
    """The tag of the union: which kind of backend."""

    IN_PROCESS = "in_process"
    LOCAL = "local"
    OBJECT_STORE = "object_store"


class DiscoveryMode(enum.Enum):
    """How instances find each other. Only the static form is built."""

    STATIC = "static"
    GOSSIP = "gossip"


_FIELDS = {
    Backend.IN_PROCESS: frozenset({"vnode_capacity"}),
    Backend.LOCAL: frozenset({"path", "instance_id", "vnode_capacity", "vnodes"}),
    Backend.OBJECT_STORE: frozenset(
        {
            "url",
            "instance_id",
            "vnode_capacity",
            "vnodes",
            "merger_instance",
            "discovery",
            "seed_peers",
            "options",
        }
    ),
}
_NEEDED = {Backend.LOCAL: ("path",), Backend.OBJECT_STORE: ("url", "instance_id")}


@dataclass(frozen=True, slots=True)
class StateBackendConfig:
    """Which backend, and everything it needs. Equal values mean the same backend; never half-filled.

    Make one with ``in_process``, ``local``, ``object_store`` or ``from_mapping``. ``vnodes`` is this
    instance's static share; None means all. ``merger_instance`` names the instance that reads all shares.
    """

    backend: Backend = Backend.IN_PROCESS
    path: Path | None = None
    url: str | None = None
    instance_id: str = DEFAULT_INSTANCE_ID
    vnode_capacity: int = DEFAULT_VNODE_COUNT
    vnodes: tuple[int, ...] | None = None
    merger_instance: str | None = None
    discovery: DiscoveryMode = DiscoveryMode.STATIC
    seed_peers: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store, which may hold credentials: not in the repr."""

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_vnodes(self)
        _check_discovery(self)

    @staticmethod
    def in_process() -> StateBackendConfig:
        """State in this process's memory: for tests and embedded use. The default."""
        return StateBackendConfig()

    @staticmethod
    def local(path: str | Path) -> StateBackendConfig:
        """Durable state in a directory of this machine."""
        return StateBackendConfig(Backend.LOCAL, path=Path(path))

    @staticmethod
    def object_store(url: str, instance_id: str) -> StateBackendConfig:
        """Durable state at a URL; ``instance_id`` is written into every manifest."""
        return StateBackendConfig(Backend.OBJECT_STORE, url=url, instance_id=instance_id)

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> StateBackendConfig:
        """Read a tagged union such as ``{"backend": "object_store", "url": ..., "instance_id": ...}``.

        A key that the backend does not have is an error that names the nearest one it has.
        """
        backend = _parse_enum(Backend, values.get("backend"), "backend")
        given = {name: value for name, value in values.items() if name != "backend"}
        for name in given:
            if name not in _FIELDS[backend]:
                raise _unknown(name, backend)
        missing = [name for name in _NEEDED.get(backend, ()) if name not in given]
        if missing:
            raise SettingsError(
                f"the backend {backend.value} needs {' and '.join(missing)}", hint="add what is missing"
            )
        return StateBackendConfig(backend, **_parse_values(given))

    def to_mapping(self) -> dict[str, Any]:
        """The mapping that ``from_mapping`` reads back to an equal value."""
        found: dict[str, Any] = {"backend": self.backend.value}
        for name in sorted(_FIELDS[self.backend]):
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                found[name] = _plain(value)
        return found

    def with_instance_id(self, instance_id: str) -> StateBackendConfig:
        """The same backend for another instance."""
        return replace(self, instance_id=instance_id)

    def with_vnode_capacity(self, vnode_capacity: int) -> StateBackendConfig:
        """The same backend, sized for another number of vnodes."""
        return replace(self, vnode_capacity=vnode_capacity)

    def with_vnodes(self, vnodes: Iterable[int] | None) -> StateBackendConfig:
        """The same backend with a static share of the vnodes; None means all."""
        return replace(self, vnodes=None if vnodes is None else tuple(vnodes))

    def with_merger_instance(self, merger_instance: str | None) -> StateBackendConfig:
        """The same backend, naming the instance that reads the shares of all."""
        return replace(self, merger_instance=merger_instance)

    def with_discovery(
        self, discovery: DiscoveryMode, seed_peers: Iterable[str] = ()
    ) -> StateBackendConfig:
        """The same backend with another way to find instances; only the static one is built."""
        return replace(self, discovery=discovery, seed_peers=tuple(seed_peers))

    def with_options(self, options: Mapping[str, str]) -> StateBackendConfig:
        """The same backend with options of its object store."""
        return replace(self, options=dict(options))

    def is_durable(self) -> bool:
        """Whether state survives the end of this process."""
        return self.store_url is not None and parse_store_url(self.store_url).scheme != "memory"

    @property
    def is_merger(self) -> bool:
        """Whether this instance is the one that reads the shares of all."""
        return self.merger_instance is not None and self.merger_instance == self.instance_id

    @property
    def store_url(self) -> str | None:
        """The URL of the store; None for the in-process backend."""
        return self.path.absolute().as_uri() if self.path is not None else self.url

    def local_storage_dir(self) -> Path | None:
        """The directory that holds durable state; None for backends that are not on a file system."""
        if self.store_url is None:
            return None
        where = parse_store_url(self.store_url)
        return Path(where.path) if where.scheme == "file" else None

    def build_object_store(self) -> ObjectStore | None:
        """Open the object store alone, to keep other things beside the state; None in process."""
        if self.store_url is None:
            return None
        return open_object_store(self.store_url, plain_options(self.options))

    def build(
        self, *, run_id: str | None = None, max_retained: int | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> CheckpointStore:
        """Open the history of checkpoints, restricted to this instance's share. Nothing is sent yet."""
        if self.store_url is None:
            return CheckpointStore(
                MemoryStore(clock=clock),
                run_id=run_id,
                max_retained=max_retained,
                vnode_count=self.vnode_capacity,
                clock=clock,
            )
        return CheckpointStore.open(
            self.store_url,
            self.options,
            run_id=run_id,
            instance_id=self.instance_id,
            max_retained=max_retained,
            vnode_count=self.vnode_capacity,
            vnodes=None if self.vnodes is None else frozenset(self.vnodes),
            clock=clock,
        )


_DEFAULTS: Mapping[str, Any] = {
    item.name: {} if item.name == "options" else item.default for item in fields(StateBackendConfig)
}


def _check_fields(config: StateBackendConfig) -> None:
    for name, default in _DEFAULTS.items():
        allowed = name == "backend" or name in _FIELDS[config.backend]
        if not allowed and getattr(config, name) != default:
            raise _unknown(name, config.backend)
    for name in _NEEDED.get(config.backend, ()):
        if not getattr(config, name):
            raise SettingsError(
                f"the backend {config.backend.value} needs {name}", hint="add what is missing"
            )
    if config.url is not None:
        parse_store_url(config.url)
    _check_instance(config.instance_id, "instance")
    if config.merger_instance is not None:
        _check_instance(config.merger_instance, "merger instance")


def _check_instance(name: str, what: str) -> None:
    try:
        check_name(name, what)
    except RefusedError as error:
        raise SettingsError(error.message, hint=error.hint) from None


def _check_vnodes(config: StateBackendConfig) -> None:
    capacity = config.vnode_capacity
    if type(capacity) is not int or not 1 <= capacity <= MAX_VNODE_COUNT:
        raise SettingsError(f"vnode_capacity is {capacity!r}", hint=f"a number from 1 to {MAX_VNODE_COUNT}")
    if config.vnodes is None:
        return
    if any(type(vnode) is not int or not 0 <= vnode < capacity for vnode in config.vnodes):
        raise SettingsError(
            f"vnodes must be numbers from 0 to {capacity - 1}", hint="leave them out to mean all"
        )
    if not config.vnodes or len(set(config.vnodes)) != len(config.vnodes):
        raise SettingsError("vnodes is empty, or has a number twice", hint="leave it out to mean all")
    object.__setattr__(config, "vnodes", tuple(sorted(config.vnodes)))


def _check_discovery(config: StateBackendConfig) -> None:
    if config.discovery is not DiscoveryMode.STATIC:
        raise SettingsError(
            f"discovery by {config.discovery.value} is not built",
            hint="use static discovery: give each instance its vnodes",
        )
    if config.seed_peers:
        raise SettingsError(
            "seed_peers are for discovery by gossip, which is not built",
            hint="leave seed_peers empty, and give each instance its vnodes",
        )


def _unknown(name: str, backend: Backend) -> SettingsError:
    near = difflib.get_close_matches(str(name), _FIELDS[backend], 1)
    return SettingsError(
        f"the backend {backend.value} has no setting {name!r}",
        hint=f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(_FIELDS[backend]))}",
    )


def _parse_enum(kind: type[E], value: object, what: str) -> E:
    if isinstance(value, kind):
        return value
    names = [str(member.value) for member in kind]
    if isinstance(value, str) and value.replace("-", "_") in names:
        return kind(value.replace("-", "_"))
    raise SettingsError(f"{what} is {value!r}", hint=f"it is one of {', '.join(names)}")


def _parse_values(given: Mapping[str, Any]) -> dict[str, Any]:
    parsed = dict(given)
    for name, value in given.items():
        if name == "discovery":
            parsed[name] = _parse_enum(DiscoveryMode, value, name)
        elif name in ("vnodes", "seed_peers") and value is not None:
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise SettingsError(f"{name} is not a list", hint="write it as a list")
            parsed[name] = tuple(value)
        elif name == "path" and isinstance(value, str | Path) and str(value):
            parsed[name] = Path(value)
        elif name == "options" and isinstance(value, Mapping):
            parsed[name] = {str(key): str(option) for key, option in value.items()}
        elif name == "vnode_capacity" or value is None:
            continue
        elif not isinstance(value, str) or name in ("options", "path"):
            raise SettingsError(
                f"{name} has a value of another type", hint="strings, but for lists and options"
            )
    return {name: value for name, value in parsed.items() if value is not None or name == "vnodes"}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
