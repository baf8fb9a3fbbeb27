"""What only a directory can do wrong: order of syncs, full disks, permissions, leftovers, locks."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import AlreadyExists, Conflict, Denied, Invalid, OutcomeUnknown, Unavailable
from pyspark_checkpoint.store.local import local_files
from pyspark_checkpoint.store.local.local_files import RESERVED, STALE_SECONDS
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.contract.racer import race_count, run_threads


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, linked and renamed, in order; everything still happens."""
    seen: list[str] = []

    def watch(module: Any, name: str, describe: Callable[..., str]) -> None:
        real = getattr(module, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            seen.append(describe(*args))
            return result

        monkeypatch.setattr(module, name, watched)

    def synced(fd: int) -> str:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        return "sync file" if RESERVED in path.parts else f"sync {path.name}/"

    watch(os, "fsync", synced)
    watch(os, "link", lambda *_: "link")
    watch(Path, "rename", lambda *_: "rename")
    return seen


def test_a_create_is_durable_before_it_succeeds(tmp_path: Path, steps: list[str]) -> None:
    """New parents are synced, then the file, and only then its name, and its directory after that."""
    store = LocalStore(tmp_path / "root")
    store.put("a/b/k", b"x", if_absent=True)
    assert steps[-2:] == ["link", "sync b/"]
    before = steps[: steps.index("link")]
    assert "sync file" in before
    for parent in (f"sync {tmp_path.name}/", "sync root/", "sync a/"):
        assert parent in before
    steps.clear()
    store.put("a/b/k2", b"x", if_absent=True)
    assert steps == ["sync file", "link", "sync b/"]


def test_a_replacement_is_durable_before_it_succeeds(tmp_path: Path, steps: list[str]) -> None:
    """The file, then the rename, then the directory."""
    store = LocalStore(tmp_path)
    version = store.put("k", b"x")
    steps.clear()
    store.put("k", b"y", if_match=version)
    store.put("k", b"z")
    assert steps == ["sync file", "rename", f"sync {tmp_path.name}/"] * 2


def test_a_directory_that_cannot_be_synced_leaves_it_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is visible but perhaps not durable: that is neither success nor failure."""
    store = LocalStore(tmp_path)
    store.put("d/first", b"x")
    real = os.fsync

    def fails_for_d(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "d":
            raise OSError(errno.EIO, "I/O error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fails_for_d)
    with pytest.raises(OutcomeUnknown):
        store.put("d/second", b"x", if_absent=True)


def test_a_link_that_was_ours_is_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request whose answer was lost, and then says EEXIST about our own link."""
    real = os.link

    def links_and_fails(source: Any, target: Any) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    store = LocalStore(tmp_path)
    store.put("taken", b"theirs")
    monkeypatch.setattr(os, "link", links_and_fails)
    version = store.put("k", b"ours", if_absent=True)
    assert store.head("k").version == version
    with pytest.raises(AlreadyExists):
        store.put("taken", b"ours", if_absent=True)
    assert store.get("taken") == b"theirs"


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A write beyond the limit of the process is refused by the kernel: Unavailable, and no leftovers."""
    store = LocalStore(tmp_path)
    store.put("k", b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        for key in ("k", "new/k"):
            with pytest.raises(Unavailable) as caught:
                store.put(key, bytes(300_000))
            assert "free some space" in str(caught.value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_below(tmp_path) == ["k"]
    assert store.get("k") == b"before"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_for_the_name_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The file fits but its directory entry does not: no object, no file, no new directory."""
    store = LocalStore(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(Unavailable):
        store.put("new/k", b"x", if_absent=True)
    assert files_below(tmp_path) == []
    assert not (tmp_path / "new").exists()


@pytest.fixture
def shared_root() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="ckpt-shared-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def as_nobody(work: Callable[[], None]) -> int:
    """Run in a child that is not root; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001 - a child of a fork must never return into pytest
        os.write(2, f"child failed: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def test_reading_needs_no_permission_to_write(shared_root: Path) -> None:
    """On a directory that may only be read, reads and listings work and writes are Denied."""
    root = shared_root / "root"
    LocalStore(root).put("a/k", b"x")
    for directory in (root / "a", root / RESERVED, root):
        directory.chmod(0o555)

    def work() -> None:
        store = LocalStore(root)
        assert store.get("a/k") == b"x"
        assert [info.key for info in store.list()] == ["a/k"]
        version = store.head("a/k").version
        writes: list[Callable[[], object]] = [
            lambda: store.put("a/k", b"y"),
            lambda: store.put("a/k", b"y", if_match=version),
            lambda: store.put("new", b"y", if_absent=True),
            lambda: store.delete(["a/k"]),
            lambda: store.copy("a/k", "b"),
        ]
        for write in writes:
            with pytest.raises(Denied):
                write()

    assert as_nobody(work) == 0
    assert LocalStore(root).get("a/k") == b"x"
    for directory in (root / "a", root / RESERVED, root):
        directory.chmod(0o755)


def test_what_may_not_be_read_is_denied_and_not_absent(shared_root: Path) -> None:
    """A permission error is never "no checkpoint yet"."""
    root = shared_root / "root"
    LocalStore(root).put("a/k", b"x")
    (root / "a").chmod(0o000)

    def work() -> None:
        store = LocalStore(root)
        for read in (store.get, store.head, store.read, lambda _: list(store.list())):
            with pytest.raises(Denied):
                read("a/k")

    assert as_nobody(work) == 0
    (root / "a").chmod(0o755)


def test_lost_and_found_that_may_not_be_read_is_left_out(shared_root: Path) -> None:
    """The root of a file system has such a directory, for root alone. Nobody keeps objects there."""
    root = shared_root / "volume"
    for below in ("", "state/"):
        LocalStore(root).put(f"{below}k", b"x")
        (root / below / "lost+found").mkdir(mode=0o700)

    def work() -> None:
        assert [info.key for info in LocalStore(root).list()] == ["k", "state/k"]
        assert [info.key for info in LocalStore(root).list("state/")] == ["state/k"]

    assert as_nobody(work) == 0


def test_a_root_that_is_a_file_is_invalid_and_not_empty(tmp_path: Path) -> None:
    """Neither reads nor writes take it for an empty store."""
    (tmp_path / "file").write_bytes(b"x")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        store = LocalStore(root)
        for call in (lambda: store.get("k"), lambda: store.head("k"), lambda: store.put("k", b"x")):
            with pytest.raises(Invalid, match="root must be a directory"):
                call()


def test_what_a_killed_process_left_is_swept_after_a_day(tmp_path: Path) -> None:
    """Old unfinished files go with the next put of a new process; young ones may be in use."""
    LocalStore(tmp_path).put("k", b"x")
    old, young, other = (tmp_path / RESERVED / name for name in ("1.tmp", "2.tmp", "other"))
    now = (tmp_path / "k").stat().st_mtime
    for path, age in ((old, STALE_SECONDS + 60), (young, STALE_SECONDS - 60), (other, STALE_SECONDS + 60)):
        path.write_bytes(b"unfinished")
        os.utime(path, (now - age, now - age))
    store = LocalStore(tmp_path)
    assert [info.key for info in store.list()] == ["k"]
    assert old.exists()
    store.put("k2", b"x")
    assert sorted(path.name for path in (tmp_path / RESERVED).iterdir()) == ["2.tmp", "other"]


def test_versions_rise_on_a_clock_that_stands_still(tmp_path: Path) -> None:
    """Every replacement has a version of its own, and the times on disk rise."""
    store = LocalStore(tmp_path, now_ns=lambda: 1_000_000_000_000)
    versions, times = [], []
    for _ in range(50):
        versions.append(store.put("k", b"same"))
        times.append((tmp_path / "k").stat().st_mtime_ns)
    assert len(set(versions)) == 50
    assert times == sorted(set(times))


def test_a_lock_that_is_held_too_long_is_unavailable(tmp_path: Path) -> None:
    """A stopped process that holds an object's lock blocks nobody for ever, and creates not at all."""
    clock = ManualClock(jitter=1.0)
    store = LocalStore(tmp_path, clock=clock)
    version = store.put("k", b"x")
    with (tmp_path / "k").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for call in (
            lambda: store.put("k", b"y"),
            lambda: store.put("k", b"y", if_match=version),
            lambda: store.delete(["k"]),
        ):
            with pytest.raises(Unavailable):
                call()
        assert store.get("k") == b"x"
        store.put("other", b"y", if_absent=True)
    assert sum(clock.slept) > 3 * local_files.LOCK_SECONDS
    store.put("k", b"y", if_match=version)


def test_stores_rooted_at_different_depths_exclude_each_other(tmp_path: Path) -> None:
    """One object seen through two roots still loses no update, and hides the inner reserved directory."""
    outer, inner = LocalStore(tmp_path), LocalStore(tmp_path / "below")
    inner.put("counter", b"0")

    def work(index: int) -> None:
        if index % 2:
            race_count(inner, "counter", threads=1, steps=10)
        else:
            race_count(outer, "below/counter", threads=1, steps=10)

    run_threads(work, 8)
    assert outer.get("below/counter") == b"80"
    assert [info.key for info in outer.list()] == ["below/counter"]


def test_creating_and_deleting_in_one_directory_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The last delete removes the directory; a create at that moment makes it again."""
    store = LocalStore(tmp_path)

    def work(index: int) -> None:
        for step in range(40):
            store.put(f"d/e/{index}", str(step).encode(), if_absent=True)
            store.delete([f"d/e/{index}"])

    run_threads(work, 8)
    assert list(store.list()) == []
    assert not (tmp_path / "d").exists()


def test_directories_that_a_crash_left_empty_do_not_take_a_key(tmp_path: Path) -> None:
    """A killed delete may leave empty directories; a key of that name can still be put."""
    store = LocalStore(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    store.put("a", b"x", if_absent=True)
    assert store.get("a") == b"x"


def test_a_listing_leaves_out_what_is_no_object(tmp_path: Path) -> None:
    """Unfinished files, broken links, pipes and names that no key can have."""
    store = LocalStore(tmp_path)
    store.put("k", b"x")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "ends-with-a-dot.").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_bytes(b"x")
    (tmp_path / RESERVED / "1.tmp").write_bytes(b"x")
    assert [info.key for info in store.list()] == ["k"]
    assert list(store.list(f"{RESERVED}/")) == []


def test_the_reserved_directory_is_no_place_for_keys(tmp_path: Path) -> None:
    """Keys cannot reach unfinished files."""
    store = LocalStore(tmp_path)
    for key in (f"{RESERVED}/k", f"a/{RESERVED}/k", RESERVED):
        with pytest.raises(Invalid):
            store.put(key, b"x")


def test_a_copy_without_the_kernels_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where copy_file_range does not work the bytes are copied all the same; the inode is a new one."""

    def refuses(*_: Any) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    store = LocalStore(tmp_path)
    data = os.urandom(1_000_000)
    store.put("a", data)
    monkeypatch.setattr(os, "copy_file_range", refuses)
    store.copy("a", "b")
    assert store.get("b") == data
    assert (tmp_path / "a").stat().st_ino != (tmp_path / "b").stat().st_ino


def test_a_swap_against_a_replacement_by_hand_is_a_conflict(tmp_path: Path) -> None:
    """Whoever replaces the file with other tools changes its version too."""
    store = LocalStore(tmp_path)
    version = store.put("k", b"one")
    (tmp_path / "new").write_bytes(b"two")
    (tmp_path / "new").rename(tmp_path / "k")
    with pytest.raises(Conflict):
        store.put("k", b"six", if_match=version)
