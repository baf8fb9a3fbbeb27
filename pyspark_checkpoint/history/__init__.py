"""One linear history of verified checkpoints in an object store: where store and format meet.

A checkpoint is a manifest, and what it names. To commit one, a run

1. finds the head (``head``): the hint, then the numbers above it, then the control record (``control``);
2. stages artifacts under names that only this attempt uses (``staging``), which nobody can see yet;
3. creates manifest ``head + 1``, which names them and its parent (``run``, ``publish``). The create is
   the commit: one writer gets the number, and all others are fenced or look again (``rules``, one
   function each);
4. reads the floor again, and only then believes that it has committed; moves the hint.

Readers see what is at or above the floor, and pinned checkpoints below it (``lookup``). Retention raises
the floor first, then reads the live set, then deletes what nothing live names (``retention``,
``deletion``); whatever a crash leaves is found later (``orphans``). What becomes known after the commit
lies beside the manifest, create-only (``seal``, ``sink_status``). ``checkpoint_store.CheckpointStore`` is
the way in.
"""
