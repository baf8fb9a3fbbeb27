"""A run: one start of a query, which claims a store and then commits checkpoint after checkpoint.

What a run knows between two commits is its id and the head; both fit in a message, so that another
process of the same run (Spark re-forks its Python workers) goes on where this one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import (
    CheckpointError,
    FencedError,
    OutcomeUnknown,
    RefusedError,
    StaleAttempt,
    StoreError,
)
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.envelope import Mac, sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind, QueryInfo
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.history import publish, rules
from pyspark_checkpoint.history.control import ensure_control
from pyspark_checkpoint.history.head import Head, find_head, head_from_bytes
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.seal import carry_records
from pyspark_checkpoint.store.base import ObjectStore

_NOTHING: frozenset[str] = frozenset()
CLAIM_ROUNDS = 10
"""How often a claim that others were faster than is tried again."""

HeadCheck = Callable[[Head], None]
"""Raises if this head must not be taken over."""

OnSend = Callable[[], None]
"""Told that a manifest is on its way: from then on it may land, whatever is heard of it."""

OnCommit = Callable[[], None]
"""Told that a manifest is durable and counts, before the hint to it moves."""


class Run:
    """Commits for one run id. Not for two threads at once; a fenced run refuses everything for good."""

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        instance_id: str = "",
        query: QueryInfo | None = None,
        cipher: Cipher | None = None,
        claimed: bool = False,
        adopt_query: bool = False,
        settle_seconds: float = publish.SETTLE_SECONDS,
    ) -> None:
        """``claimed`` says that this run has claimed the store before, in another process.

        ``adopt_query`` lets it go on with the history of another query, because the user said so.
        """
        if not run_id:
            raise RefusedError("a run needs an id", hint="give Spark's runId, or one made by the clock")
        self.store = store
        self.run_id = run_id
        self.instance_id = instance_id
        self.query = query or QueryInfo()
        self.clock = clock
        self.cipher = cipher
        self._adopt_query = adopt_query
        self._settle_seconds = settle_seconds
        self._store_id: str | None = None
        self._head: Head | None = None
        self._fence: FencedError | None = None
        self._begun = claimed
        self._asked_generation: int | None = None

    @property
    def head(self) -> Head | None:
        """The head as this run last saw it; None before the first look and for an empty store."""
        return self._head

    @property
    def store_id(self) -> str | None:
        """The store's id, once it is known. Together with the head's bytes it makes ``resume`` cheap."""
        return self._store_id

    @property
    def mac(self) -> Mac | None:
        """What authenticates manifests in an encrypted store."""
        return None if self.cipher is None else self.cipher.mac

    @property
    def _key_id(self) -> str | None:
        return None if self.cipher is None else self.cipher.key_id

    def resume(self, control: Control, head_data: bytes | None, head_number: int = 0) -> None:
        """Go on from what another process of this run knew; costs no request.

        A head that is no longer the head is noticed at the next commit, as by any stalled writer.
        """
        self._store_id = control.store_id
        self._head = None
        if head_data is not None:
            self._head = head_from_bytes(head_data, head_number, control, mac=self.mac)
            self._begun = self._begun or self._head.manifest.run_id == self.run_id

    def refresh(self) -> Head | None:
        """Find the head again; makes the control record of a store that is new. Claims nothing."""
        self._refuse_if_fenced()
        if self._store_id is None:
            self._store_id = ensure_control(self.store, self.clock).control.store_id
        head = find_head(self.store, cached=self._head, mac=self.mac, store_id=self._store_id)
        self._check_takeover(head)
        self._head = head
        return head

    def adopt(self, head: Head) -> None:
        """Take ``head`` for the head as found by the caller; a rollback does, if it is damaged."""
        self._refuse_if_fenced()
        self._store_id, self._head = head.control.store_id, head

    def claim(self, check: HeadCheck | None = None) -> CheckpointManifest | None:
        """Rule 6: take the store over by a manifest that names what its parent names, and return it.

        From then on every other run is fenced at its next commit. A store whose head is already this
        run's is claimed already. In an empty store there is nothing to take over: None, and the first
        commit is the claim.

        The run before may still commit, and be faster: then its new head is claimed. ``check`` is asked
        about every head before it is claimed; what it raises is raised. ``StaleAttempt`` if others have
        been faster ``CLAIM_ROUNDS`` times: nothing is lost, and claiming may be tried again.
        """
        head = self.refresh()
        for _ in range(CLAIM_ROUNDS):
            if head is None:
                return None
            if head.manifest.run_id == self.run_id:
                self._carry_again(head.manifest)
                return head.manifest
            if check is not None:
                check(head)
            try:
                claimed = self._publish(self._claim_draft(head), self.attempt(), ManifestKind.CLAIM)
            except StaleAttempt:
                head = self._head
                continue
            carry_records(self.store, head.manifest, claimed, self.clock, mac=self.mac)
            return claimed
        raise StaleAttempt(
            f"gave up claiming after {CLAIM_ROUNDS} commits of other runs",
            hint="claim again; if they go on, stop the other driver",
        )

    def _carry_again(self, claimed: CheckpointManifest) -> None:
        """A claim of ours that died before it had carried everything over is finished."""
        if claimed.kind is ManifestKind.CLAIM:
            parent = find_checkpoint(self.store, claimed.parent_id, mac=self.mac)
            if parent is not None:
                carry_records(self.store, parent.manifest, claimed, self.clock, mac=self.mac)

    def attempt(self) -> CheckpointId:
        """A fresh place to stage the next checkpoint in. It can be published under that number only."""
        self._refuse_if_fenced()
        self._know_head()
        rules.check_encryption(self._head, self._key_id)
        return CheckpointId(rules.next_number(self._head), self.clock.uuid7())

    def publish(
        self,
        draft: CheckpointManifest,
        attempt: CheckpointId,
        on_send: OnSend | None = None,
        on_commit: OnCommit | None = None,
    ) -> CheckpointManifest:
        """Commit what was staged for ``attempt`` and return the manifest as it is in the store.

        The draft brings the content; number, parent, generation, run, nonce and time are stamped here.
        An epoch that the head already has is replaced, or, if the head is this run's and says the
        same, nothing is written and the head is returned. ``StaleAttempt``: plan again; also if another
        run was faster, and this one has never published.
        ``FencedError``: stop. ``OutcomeUnknown``: it may be committed; publish nothing else before
        ``refresh`` has shown the head. ``on_send`` is called right before the manifest is sent: what is
        refused without that can never land. ``on_commit`` is called as soon as it is known that the
        manifest is ours and not below the floor (rule 5); what is left is the hint, which nothing needs.
        """
        self._refuse_if_fenced()
        self._know_head()
        head = self._head
        draft = self._with_identity(draft, head)
        rules.check_epoch(draft)
        if not self._adopt_query:
            rules.check_query(draft, head)
        kind = rules.choose_kind(draft, head)
        if head is not None and rules.says_the_same(draft, head, self.run_id):
            return self._confirm_head(head)
        return self._publish(draft, attempt, kind, on_send=on_send, on_commit=on_commit)

    def publish_rollback(
        self, target: CheckpointManifest, attempt: CheckpointId, held: Set[str]
    ) -> CheckpointManifest:
        """Commit the content of ``target`` again; ``held`` are its objects, which the caller has pinned."""
        self._refuse_if_fenced()
        self._know_head()
        draft = replace(self._with_identity(target, self._head), rollback_of=target.checkpoint_id)
        return self._publish(draft, attempt, ManifestKind.ROLLBACK, held=held)

    def _publish(
        self,
        draft: CheckpointManifest,
        attempt: CheckpointId,
        kind: ManifestKind,
        *,
        held: Set[str] = _NOTHING,
        on_send: OnSend | None = None,
        on_commit: OnCommit | None = None,
    ) -> CheckpointManifest:
        """Send the manifest. Rule 4: whatever becomes of it, nothing that was staged is deleted here.

        It may still land, or be named by the run that took over. What nobody comes to name is found by
        ``cleanup_orphans`` once the number is taken.
        """
        head, nonce = self._head, self.clock.nonce()
        self._check_attempt(attempt)
        if kind is not ManifestKind.ROLLBACK:  # going back on purpose is how a loss is accepted
            rules.check_nothing_lost(head)
        rules.check_encryption(head, draft.encryption_key_id)
        rules.check_user_names(draft)
        rules.check_names(draft, attempt.number, head, held)
        manifest = rules.stamp(
            draft,
            attempt,
            head,
            kind=kind,
            run_id=self.run_id,
            nonce=nonce,
            now_ms=self.clock.now_ms(),
        )
        data = encode_manifest(manifest, mac=self.mac)
        rules.check_content(manifest)
        if self._asked_generation is None:
            self._asked_generation = manifest.generation
        if on_send is not None:
            on_send()
        try:
            self._create(attempt.number, data, nonce)
            control = self._check_floor(attempt.number)
        except FencedError as error:
            raise self._loser_of(attempt.number, error) from None
        except StaleAttempt:
            self.refresh()
            raise
        self._begun = True
        self._head = Head(manifest, sha256_hex(data), control, data)
        if on_commit is not None:
            on_commit()
        publish.move_latest(self.store, attempt.number)
        return manifest

    def _loser_of(self, number: int, error: FencedError) -> CheckpointError:
        """Rule 3: who loses a number is fenced, but for a run that has never published: it looks again.

        Nobody has taken that one over, as the head proves, which names the runs before it. It lost to a
        run that it was about to take over itself, and that went on as usual.
        """
        if self._begun:
            self._fence = error
            return error
        self.refresh()
        return rules.lost_number(number, error)

    def _create(self, number: int, data: bytes, nonce: str) -> None:
        publish.create_manifest(
            self.store,
            number,
            data,
            nonce=nonce,
            run_id=self.run_id,
            clock=self.clock,
            settle_seconds=self._settle_seconds,
        )

    def _check_floor(self, number: int) -> Control:
        """Rule 5. The manifest is there by now: whoever cannot be told so must not take it for refused."""
        try:
            return publish.check_floor(self.store, number, self._known_store_id())
        except StoreError as error:
            raise OutcomeUnknown(
                f"checkpoint {number} is written, but whether it still counts could not be read: "
                f"{error.message}",
                key=error.key,
                hint="refresh, and look at the head, before anything else is published",
            ) from error

    def _confirm_head(self, head: Head) -> CheckpointManifest:
        """Rule 7: "nothing to write" is true only while the head is still the head."""
        now = self.refresh()
        if now is None or now.sha256 != head.sha256:
            raise StaleAttempt("this run has gone on meanwhile", hint="plan again")
        return now.manifest

    def _check_takeover(self, head: Head | None) -> None:
        """Rule 6: a run that has begun and finds another run's later head was taken over, for good.

        Also known by the head itself, which names the runs before it: a process of this run that
        remembers nothing, or does not know what became of its commit, must not take the store back from
        the run that took over.
        """
        if head is None:
            return
        if head.manifest.run_id == self.run_id:
            self._begun = True
            return
        later = self._head is None or head.number > self._head.number
        asked = self._asked_generation
        unproven = asked is not None and rules.forgets_runs_since(head, asked)
        if rules.was_taken_over(head, self.run_id) or (self._begun and later) or unproven:
            self._fence = rules.fenced_by(head.number, head.manifest)
            raise self._fence

    def _with_identity(self, draft: CheckpointManifest, head: Head | None) -> CheckpointManifest:
        query = draft.query if draft.query != QueryInfo() else self.query
        if not query.id and head is not None:
            query = replace(query, id=head.manifest.query.id)
        return replace(
            draft,
            query=query,
            instance_id=self.instance_id or draft.instance_id,
            encryption_key_id=self._key_id,
            rollback_of=None,
        )

    def _claim_draft(self, head: Head) -> CheckpointManifest:
        query = self.query if self.query != QueryInfo() else head.manifest.query
        draft = self._with_identity(replace(head.manifest, query=query), head)
        rules.check_query(draft, head)
        return draft

    def _check_attempt(self, attempt: CheckpointId) -> None:
        number = rules.next_number(self._head)
        if attempt.number < number:
            raise StaleAttempt(
                f"what was staged for checkpoint {attempt.number} cannot be published as {number}",
                hint="plan and stage again",
            )
        if attempt.number > number:
            raise RefusedError(
                f"checkpoint {attempt.number} would leave a gap: the next one is {number}",
                hint="publish what was staged for attempt()",
            )

    def _know_head(self) -> None:
        if self._store_id is None:
            self.refresh()

    def _known_store_id(self) -> str:
        if self._store_id is None:
            raise AssertionError("the store's id is known from the first look at the head")
        return self._store_id

    def _refuse_if_fenced(self) -> None:
        if self._fence is not None:
            raise self._fence
