"""The tests that are known to fail here, each with its reason. Everything else must pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Excepted:
    """A test of Spark's that may fail."""

    suite: str
    test: str
    reason: str
    only_as_root: bool = False
    """It fails because root may write everywhere; any other user must pass it."""
    is_race: bool = False
    """It passes now and then, which is not worth a word."""


_ROOT = "takes away the permission to write a directory, which root does not need"

EXCEPTED = (
    Excepted(
        "CheckpointFileManagerSuite",
        "SPARK-52824: CheckpointFileManager.create() throws uncategorized error",
        "expects the error of a session without checkpointFileManagerClass; with any class set, Spark's own"
        " included, the error is ERROR_LOADING_CLASS",
    ),
    Excepted(
        "AsyncProgressTrackingMicroBatchExecutionSuite",
        "bubble up async offset log write errors 2: cannot write offset files due to permissions issue",
        _ROOT,
        only_as_root=True,
    ),
    Excepted(
        "AsyncProgressTrackingMicroBatchExecutionSuite",
        "bubble up async commit log write errors 2: commit file already exists for a batch",
        _ROOT,
        only_as_root=True,
    ),
    *(
        Excepted(
            "TransformWithStateUnsafeRowSuite",
            f"test that introducing TTL after restart fails query (encoding = UnsafeRow) ({changelog})",
            "the query fails as it should, but now and then before the test has begun to expect it",
            is_race=True,
        )
        for changelog in ("with changelog checkpointing", "without changelog checkpointing")
    ),
)


def find_excepted(suite: str, test: str, *, as_root: bool) -> Excepted | None:
    """Why this test may fail, for this user."""
    for excepted in EXCEPTED:
        if (excepted.suite, excepted.test) == (suite, test):
            return None if excepted.only_as_root and not as_root else excepted
    return None
