"""The genuine history, kept beside the store by watching every effect, and what must always hold.

Nothing here calls the code under test except to decode bytes. A manifest is history when its create
takes effect as the number after the newest one; whatever else lands on a manifest's key is not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    manifest_key,
    parse_attempt_key,
    parse_manifest_key,
    parse_seal_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_codec import decode_manifest
from pyspark_checkpoint.format.records import Control, decode_control, decode_seal
from tests.protocol.simulation.process import Event


class Violation(Exception):
    """Something happened that must never happen."""


@functools.lru_cache(maxsize=20_000)
def manifest_of(data: bytes) -> CheckpointManifest:
    """Decode a manifest once; bytes are what they are."""
    return decode_manifest(data, "manifest")


@functools.lru_cache(maxsize=20_000)
def paths_of(data: bytes) -> frozenset[str]:
    """The objects that a manifest names."""
    return manifest_of(data).paths()


@functools.lru_cache(maxsize=20_000)
def control_of(data: bytes) -> Control:
    """Decode a control record once."""
    return decode_control(data)


@functools.lru_cache(maxsize=20_000)
def digest_of(data: bytes) -> str:
    """Digest bytes once."""
    return sha256_hex(data)


@dataclass(frozen=True, slots=True)
class Truth:
    """What really happened so far. Frozen: every effect gives the next truth."""

    history: tuple[bytes, ...] = ()
    acknowledged: frozenset[tuple[str, int]] = frozenset()
    """Savepoints that somebody was told exist: name and number."""
    withdrawn: frozenset[str] = frozenset()
    """Names whose removal somebody has begun; they promise nothing any more."""
    marks: tuple[int, ...] = ()
    """For each actor the head at the moment it began its present question."""
    fenced: frozenset[str] = frozenset()
    """Runs that were told that they are fenced."""

    @property
    def head(self) -> int:
        """The number of the newest manifest; 0 before the first."""
        return len(self.history)

    def manifest(self, number: int) -> CheckpointManifest:
        """The genuine manifest ``number``, also when it is long gone from the store."""
        return manifest_of(self.history[number - 1])

    def newest_of_epoch(self, epoch: int) -> int:
        """The newest number that carries ``epoch``; 0 if there is none."""
        for number in range(self.head, 0, -1):
            if self.manifest(number).epoch == epoch:
                return number
        return 0

    # --- effects ---------------------------------------------------------------------------------

    def after_write(
        self, key: str, before: bytes | None, after: bytes | None, objects: Mapping[str, bytes]
    ) -> Truth:
        """The truth after ``key`` went from ``before`` to ``after``; ``objects`` is what is there now."""
        truth = self
        if key == CONTROL_KEY:
            _check_control_step(before, after)
        elif (number := parse_manifest_key(key)) is not None:
            truth = self._after_manifest(number, before, after, objects)
        elif before is not None and after is not None and parse_attempt_key(key):
            raise Violation(f"OVERWRITTEN: artifact {key}")
        elif after is not None and (number := parse_seal_key(key)) is not None:
            self._check_seal(number, before, after)
        truth.check(objects)
        return truth

    def _after_manifest(
        self, number: int, before: bytes | None, after: bytes | None, objects: Mapping[str, bytes]
    ) -> Truth:
        if after is None:
            return self
        if before is not None:
            self._check_tombstone(number, after, objects)
            return self
        if number > self.head + 1:
            raise Violation(f"GAP: manifest {number} created while the head is {self.head}")
        if number <= self.head:
            return self
        self._check_next(manifest_of(after))
        return replace(self, history=(*self.history, after))

    def _check_next(self, new: CheckpointManifest) -> None:
        where = f"manifest {new.checkpoint_id} of run {new.run_id}"
        if new.checkpoint_id != self.head + 1:
            raise Violation(f"NUMBER: {where} stands under number {self.head + 1}")
        if new.run_id in self.fenced:
            raise Violation(f"FENCE: {where}, which was told that it is fenced, is history")
        if not self.history:
            return
        parent = self.manifest(self.head)
        if new.parent_id != self.head or new.parent_sha256 != digest_of(self.history[-1]):
            raise Violation(f"LINEAR: {where} does not follow the head")
        if new.epoch < parent.epoch and new.kind is not ManifestKind.ROLLBACK:
            raise Violation(f"EPOCH: {where} goes from epoch {parent.epoch} down to {new.epoch}")
        if new.kind is ManifestKind.EPOCH and new.epoch == parent.epoch and parent.operators:
            raise Violation(f"DUPLICATED: {where} commits epoch {new.epoch} a second time")
        if new.kind is ManifestKind.REPLACEMENT and new.epoch != parent.epoch:
            raise Violation(f"REPLACED: {where} replaces epoch {new.epoch}, the head's is {parent.epoch}")
        if new.kind is ManifestKind.CLAIM and new.operators != parent.operators:
            raise Violation(f"CLAIM: {where} names something else than its parent")
        if new.run_id == parent.run_id:
            if new.generation != parent.generation:
                raise Violation(f"GENERATION: {where} changes its own generation")
            return
        if new.generation <= parent.generation:
            raise Violation(f"GENERATION: {where} took over without raising it")
        if any(manifest_of(data).run_id == new.run_id for data in self.history):
            raise Violation(f"FENCE: {where} came back after run {parent.run_id}")

    def _check_tombstone(self, number: int, after: bytes, objects: Mapping[str, bytes]) -> None:
        control = control_of(objects[CONTROL_KEY])
        if number < control.floor and number not in control.pinned_numbers():
            return
        tombstone = manifest_of(after)
        if number > self.head or tombstone.kind is not ManifestKind.TOMBSTONE:
            raise Violation(f"OVERWRITTEN: manifest {number}")
        if tombstone.deleted_sha256 != digest_of(self.history[number - 1]):
            raise Violation(f"OVERWRITTEN: manifest {number} by a tombstone of something else")
        if number not in control.deleted:
            raise Violation(f"OVERWRITTEN: manifest {number} became a tombstone that nobody announced")

    def _check_seal(self, number: int, before: bytes | None, after: bytes) -> None:
        if before is not None:
            raise Violation(f"OVERWRITTEN: the seal of {number}")
        nonce = decode_seal(after, "seal").commit_nonce
        if number > self.head or self.manifest(number).commit_nonce != nonce:
            raise Violation(f"SEAL: checkpoint {number} is sealed as something that is not history")

    # --- what must hold --------------------------------------------------------------------------

    def check(self, objects: Mapping[str, bytes]) -> None:
        """Raise ``Violation`` unless everything that the store promises is there."""
        if CONTROL_KEY not in objects:
            if self.history:
                raise Violation("CONTROL: _control is gone")
            return
        control = control_of(objects[CONTROL_KEY])
        self._check_control(control)
        for number in range(control.floor, self.head + 1):
            self._check_number(number, control, objects)
        for number in control.pinned_numbers():
            if number < control.floor:
                self._check_number(number, control, objects)

    def _check_control(self, control: Control) -> None:
        if control.floor > max(self.head, 1):
            raise Violation(f"FLOOR: {control.floor} is above the head {self.head}")
        if control.swept > control.floor:
            raise Violation(f"SWEPT: {control.swept} is above the floor {control.floor}")
        for name, pin in control.pins.items():
            if pin.number > self.head or digest_of(self.history[pin.number - 1]) != pin.sha256:
                raise Violation(f"PIN: {name} pins {pin.number}, which is not history")
            if pin.number in control.deleted:
                raise Violation(f"PIN: {name} pins {pin.number}, which is deleted")
        if self.head in control.deleted:
            raise Violation(f"DELETED: the head {self.head}")
        for name, number in self.acknowledged:
            if name not in control.pins or control.pins[name].number != number:
                raise Violation(f"SAVEPOINT: {name} of {number} was acknowledged and is not pinned")

    def _check_number(self, number: int, control: Control, objects: Mapping[str, bytes]) -> None:
        genuine = self.history[number - 1]
        found = objects.get(manifest_key(number))
        where = f"manifest {number} (floor {control.floor}, head {self.head}, pins {sorted(control.pins)})"
        if found is None:
            raise Violation(f"HOLE: {where} is missing")
        if number in control.deleted:
            return
        if found != genuine:
            raise Violation(f"HOLE: {where} is another one")
        for path in paths_of(genuine):
            if path not in objects:
                raise Violation(f"HOLE: {where} names {path}, which is gone")

    # --- beliefs ---------------------------------------------------------------------------------

    def after_event(self, actor: int, event: Event) -> Truth:
        """The truth after an actor was told something; a false belief is a violation."""
        match event.what, event.detail:
            case "began", _:
                marks = (*self.marks[:actor], self.head, *self.marks[actor + 1 :])
                return replace(self, marks=marks)
            case "committed", (number, nonce):
                self._check_genuine("BELIEF", actor, number, nonce)
            case "noop", (number, nonce):
                self._check_genuine("BELIEF", actor, number, nonce)
                self._check_fresh("BELIEF", actor, number)
            case "head", (number, nonce):
                self._check_genuine("READER", actor, number, nonce)
                self._check_fresh("READER", actor, number)
            case "empty", _:
                if self.marks[actor]:
                    raise Violation(
                        f"READER: actor {actor} found nothing; the head was {self.marks[actor]}"
                    )
            case "read", (number, nonce):
                self._check_genuine("READER", actor, number, nonce)
            case "epoch", (epoch, number, nonce):
                self._check_genuine("READER", actor, number, nonce)
                if self.manifest(number).epoch != epoch:
                    raise Violation(f"READER: actor {actor} asked for epoch {epoch} and got another")
            case "pinned", (name, number):
                if name not in self.withdrawn:
                    return replace(self, acknowledged=self.acknowledged | {(name, number)})
            case "unpinning", (name,):
                kept = frozenset(pair for pair in self.acknowledged if pair[0] != name)
                return replace(self, acknowledged=kept, withdrawn=self.withdrawn | {name})
            case "told fenced", (run_id,):
                if all(manifest_of(data).run_id != run_id for data in self.history):
                    raise Violation(f"STUCK: run {run_id} is fenced for good, and nobody took it over")
                return replace(self, fenced=self.fenced | {run_id})
            case "surprised", detail:
                raise Violation(f"SURPRISE: actor {actor} met {detail}")
            case "bad", detail:
                raise Violation(f"BAD: actor {actor}: {detail}")
        return self

    def _check_genuine(self, what: str, actor: int, number: int, nonce: str) -> None:
        if not 1 <= number <= self.head or self.manifest(number).commit_nonce != nonce:
            raise Violation(f"{what}: actor {actor} took {number} {nonce[-4:]} for history, and it is not")

    def _check_fresh(self, what: str, actor: int, number: int) -> None:
        if number < self.marks[actor]:
            raise Violation(
                f"{what}: actor {actor} took {number} for the newest; it was {self.marks[actor]} before"
            )


def _check_control_step(before: bytes | None, after: bytes | None) -> None:
    if before is None:
        return
    if after is None:
        raise Violation("CONTROL: _control was deleted")
    old, new = control_of(before), control_of(after)
    if new.store_id != old.store_id:
        raise Violation("CONTROL: another store_id")
    if new.floor < old.floor or new.counter <= old.counter:
        raise Violation(
            f"CONTROL: floor {old.floor} to {new.floor}, counter {old.counter} to {new.counter}"
        )
