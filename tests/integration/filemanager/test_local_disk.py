"""The manager on a local disk: one file and nothing beside it, which Spark's own manager reads."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from tests.integration.filemanager.jvm import Jvm, Manager, java_error
from tests.integration.filemanager.test_contract import EXISTS


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory."""
    return tmp_path / "location"


@pytest.fixture
def ours(jvm: Jvm, disk: Path) -> Manager:
    """Our manager for it."""
    manager = jvm.manager(f"file://{disk}")
    manager.mkdirs("")
    return manager


@pytest.fixture
def sparks(jvm: Jvm, disk: Path) -> Manager:
    """The manager that Spark takes for it."""
    return jvm.spark_manager(f"file://{disk}")


def names(disk: Path) -> list[str]:
    """Everything in a directory, hidden or not."""
    return sorted(path.name for path in disk.iterdir())


def refuse(manager: Manager, name: str) -> None:
    """Create what exists."""
    with pytest.raises(Py4JJavaError) as error:
        manager.write(name, b"second")
    assert java_error(error.value) == EXISTS


def test_nothing_but_the_file_is_there(ours: Manager, disk: Path) -> None:
    """No file of checksums, and no temporary one after a close, a cancel or a refusal."""
    ours.write("0", b"first")
    ours.write("1.delta", b"one", overwrite=True)
    ours.write("1.delta", b"two", overwrite=True)
    refuse(ours, "0")
    ours.create("2.delta", overwrite=True).cancel()
    assert names(disk) == ["0", "1.delta"]
    assert (disk / "0").read_bytes() == b"first"
    assert (disk / "1.delta").stat().st_nlink == 1


def test_a_writer_that_dies_leaves_only_a_hidden_name(ours: Manager, sparks: Manager, disk: Path) -> None:
    """What was never closed is neither listed as a file of Spark's nor in the way of the next writer."""
    abandoned = ours.create("5")
    abandoned.write(bytearray(b"half"))
    assert [name for name in names(disk) if not name.startswith(".")] == []
    assert not sparks.exists("5")
    ours.write("5", b"whole")
    assert sparks.read("5") == b"whole"


def test_either_manager_goes_on_with_the_others_files(ours: Manager, sparks: Manager) -> None:
    """A location changes hands as often as one likes: what one made, the other reads, refuses, replaces."""
    for first, second in ((ours, sparks), (sparks, ours)):
        name = "7.delta" if first is ours else "8.delta"
        first.write(name, b"the first one's", overwrite=True)
        assert second.read(name) == b"the first one's"
        refuse(second, name)
        assert first.read(name) == b"the first one's"
        second.write(name, b"replaced, and longer", overwrite=True)
        assert first.read(name) == second.read(name) == b"replaced, and longer"
        first.write(name, b"again", overwrite=True)
        assert first.read(name) == second.read(name) == b"again"


def test_checksums_of_an_earlier_file_are_not_taken_for_the_new_ones(
    jvm: Jvm, ours: Manager, sparks: Manager, disk: Path
) -> None:
    """A file that a tool of Hadoop's wrote is replaced, or was removed without what lies beside it."""
    for name, overwrite in (("8.delta", True), ("9", False)):
        jvm.write_with_checksums(f"file://{disk}/{name}", b"old")
        if not overwrite:
            (disk / name).unlink()
        ours.write(name, b"something else", overwrite=overwrite)
        assert not (disk / f".{name}.crc").exists()
        assert sparks.read(name) == ours.read(name) == b"something else"


def test_a_refused_create_leaves_the_checksums_of_what_is_there(
    jvm: Jvm, ours: Manager, disk: Path
) -> None:
    """Hadoop goes on to guard what it has written."""
    jvm.write_with_checksums(f"file://{disk}/3", b"guarded")
    before = (disk / ".3.crc").read_bytes()
    refuse(ours, "3")
    assert (disk / ".3.crc").read_bytes() == before


def test_a_disk_without_links_is_written_as_spark_does(jvm: Jvm, disk: Path) -> None:
    """Creating still refuses what exists, and nothing is left beside."""
    root = f"file://{disk}"
    manager = Manager(jvm, root, jvm.access.failingLinks(root, "Operation not permitted", jvm.conf()))
    manager.mkdirs("")
    manager.write("4", b"first")
    assert manager.read("4") == b"first"
    refuse(manager, "4")
    assert manager.read("4") == b"first"
    assert [name for name in names(disk) if not name.endswith(".crc")] == ["4"]


@pytest.mark.parametrize(
    "reason",
    ["Input/output error", "Stale file handle", "Disk quota exceeded", "No space left on device"],
)
def test_a_link_that_fails_is_not_taken_for_a_disk_without_links(jvm: Jvm, disk: Path, reason: str) -> None:
    """Spark's way looks and then renames: a broken disk or server must not lead past the fence."""
    root = f"file://{disk}"
    manager = Manager(jvm, root, jvm.access.failingLinks(root, reason, jvm.conf()))
    manager.mkdirs("")
    with pytest.raises(Py4JJavaError, match=reason):
        manager.write("4", b"first")
    assert names(disk) == []


@pytest.mark.parametrize(
    "reason",
    [
        "Operation not permitted",
        "Operation not supported",
        "Function not implemented",
        "Too many links",
        "Unknown error 524",
        "Unbekannter Fehler 524",
    ],
)
def test_every_word_for_a_disk_without_links_is_known(jvm: Jvm, disk: Path, reason: str) -> None:
    """File systems answer by different errors; each means that no file there can have two names."""
    root = f"file://{disk}"
    manager = Manager(jvm, root, jvm.access.failingLinks(root, reason, jvm.conf()))
    manager.mkdirs("")
    manager.write("4", b"first")
    refuse(manager, "4")


def test_a_user_can_choose_to_run_where_links_fail_in_words_that_are_not_known(
    jvm: Jvm, disk: Path
) -> None:
    """With allowUnfenced a file is created as Spark does it; what exists is still refused."""
    root = f"file://{disk}"
    conf = jvm.conf({"ckpt.fileManager.allowUnfenced": "true"})
    manager = Manager(jvm, root, jvm.access.failingLinks(root, "Nicht unterstützt", conf))
    manager.mkdirs("")
    manager.write("4", b"first")
    refuse(manager, "4")
    assert manager.read("4") == b"first"


def test_files_that_a_snapshot_names_are_synced_before_it_has_its_name(jvm: Jvm, disk: Path) -> None:
    """Spark copies them past the manager, with checksums beside them; each is synced once."""
    root = f"file://{disk}"
    notes = jvm.array_list()
    manager = Manager(jvm, root, jvm.access.notingSyncs(root, f"{disk}/5.zip", notes, jvm.conf()))
    manager.mkdirs("")
    for name in ("SSTs/000004-a.sst", "logs/000005-b.log"):
        jvm.write_with_checksums(f"{root}/{name}", b"copied")
    manager.write("5.zip", b"names them", overwrite=True)
    files = {"000004-a.sst", ".000004-a.sst.crc", "000005-b.log", ".000005-b.log.crc"}
    assert {*notes} == {*(f"before {name}" for name in {*files, "SSTs", "logs"}), f"after {disk.name}"}
    assert notes[len(notes) - 1] == f"after {disk.name}"
    seen = len(notes)
    jvm.write_with_checksums(f"{root}/SSTs/000006-c.sst", b"copied")
    manager.write("6_a.zip", b"names them", overwrite=True)
    again = ("000006-c.sst", ".000006-c.sst.crc", "SSTs", disk.name)
    assert sorted([*notes][seen:]) == sorted(f"after {name}" for name in again)
    seen = len(notes)
    manager.write("7.changelog", b"names none")
    assert [*notes][seen:] == [f"after {disk.name}"]


def test_a_snapshot_whose_files_cannot_be_synced_is_not_published(jvm: Jvm, disk: Path) -> None:
    """The batch fails; what the snapshot would have replaced stays."""
    root = f"file://{disk}"
    manager = Manager(jvm, root, jvm.access.failingSync(root, "000004-a.sst", jvm.conf()))
    manager.mkdirs("")
    manager.write("5.zip", b"old", overwrite=True)
    jvm.write_with_checksums(f"{root}/SSTs/000004-a.sst", b"copied")
    with pytest.raises(Py4JJavaError, match="Input/output error"):
        manager.write("5.zip", b"new", overwrite=True)
    assert manager.read("5.zip") == b"old"


def test_a_file_that_vanishes_while_it_is_synced_does_not_fail_the_snapshot(jvm: Jvm, disk: Path) -> None:
    """Spark's maintenance purges files meanwhile, and a network file system has its own words for that."""
    root = f"file://{disk}"
    manager = Manager(jvm, root, jvm.access.vanishingAtSync(root, "000004-a.sst", jvm.conf()))
    manager.mkdirs("")
    for name in ("SSTs/000004-a.sst", "SSTs/000005-b.sst"):
        jvm.write_with_checksums(f"{root}/{name}", b"copied")
    manager.write("5.zip", b"names one of them", overwrite=True)
    assert manager.read("5.zip") == b"names one of them"


def test_files_are_synced_by_a_writer_where_one_may_write(jvm: Jvm, tmp_path: Path) -> None:
    """Some file systems sync nothing for a reader; a directory has only readers."""
    file = tmp_path / "000004-a.sst"
    file.write_bytes(b"copied")
    before = file.stat().st_mtime_ns
    assert jvm.access.isSyncedByAWriter(str(file))
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (b"copied", before)
    assert not jvm.access.isSyncedByAWriter(str(tmp_path))


def test_a_file_that_cannot_be_opened_for_writing_is_synced_by_a_reader(jvm: Jvm, tmp_path: Path) -> None:
    """Nobody may write a program that runs, not even root: it stands for every file that is not ours."""
    program = tmp_path / "program"
    shutil.copy("/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"x")
        assert running.stdout.read(1) == b"x"
        assert not jvm.access.isSyncedByAWriter(str(program))
        running.stdin.close()
    assert running.returncode == 0


def test_a_link_whose_answer_was_lost_is_ours(jvm: Jvm, disk: Path) -> None:
    """A network file system repeats it, and finds the name taken: by the very same file."""
    root = f"file://{disk}"
    manager = Manager(jvm, root, jvm.access.repeatingLinks(root, jvm.conf()))
    manager.mkdirs("")
    manager.write("6", b"mine")
    assert manager.read("6") == b"mine"
    refuse(manager, "6")
    assert names(disk) == ["6"]


@pytest.mark.parametrize(
    ("mask", "file_mode", "directory_mode"), [("022", 0o644, 0o755), ("007", 0o660, 0o770)]
)
def test_permissions_are_those_that_hadoop_would_give(
    jvm: Jvm, disk: Path, mask: str, file_mode: int, directory_mode: int
) -> None:
    """By Hadoop's own setting: several users of one location go on to read what each of them writes."""
    manager = jvm.manager(f"file://{disk}", {"fs.permissions.umask-mode": mask})
    manager.mkdirs("state/0")
    manager.write("state/0/1.delta", b"x", overwrite=True)
    manager.write("state/0/schema", b"x")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (disk / "state" / "0").iterdir()}
    assert modes == {"1.delta": file_mode, "schema": file_mode}
    assert (disk / "state").stat().st_mode & 0o777 == directory_mode


@pytest.mark.parametrize("mask", ["022", "002", "007"])
def test_directories_inherit_their_group_as_with_spark(jvm: Jvm, disk: Path, mask: str) -> None:
    """The setgid bit of a shared directory passes on to what is made below it, whoever makes it."""
    disk.mkdir()
    group = 54321 if os.geteuid() == 0 else os.getegid()
    os.chown(disk, -1, group)
    disk.chmod(0o2775)
    conf = {"fs.permissions.umask-mode": mask}
    managers = {
        "ours": jvm.manager(f"file://{disk}", conf),
        "sparks": jvm.spark_manager(f"file://{disk}", conf),
    }
    for name, manager in managers.items():
        manager.mkdirs(f"{name}/state/0")
        manager.write(f"{name}/state/0/1.delta", b"x", overwrite=True)
    facts = {
        name: [
            (path.stat().st_gid, oct(path.stat().st_mode))
            for path in (disk / name, disk / name / "state" / "0", disk / name / "state" / "0" / "1.delta")
        ]
        for name in managers
    }
    assert facts["ours"] == facts["sparks"]
    assert {gid for gid, _ in facts["ours"]} == {group}
    assert all(int(mode, 8) & stat.S_ISGID for _, mode in facts["ours"][:2])


def test_a_location_may_be_reached_by_a_link(jvm: Jvm, ours: Manager, disk: Path) -> None:
    """A link to a directory is one, for mkdirs and for files below it."""
    linked = disk.with_name("linked")
    linked.symlink_to(disk)
    manager = jvm.manager(f"file://{linked}")
    manager.mkdirs("")
    manager.mkdirs("offsets")
    manager.mkdirs("offsets")
    manager.write("offsets/0", b"x")
    refuse(ours, "offsets/0")
    assert ours.read("offsets/0") == b"x"


def test_a_directory_that_is_missing_is_an_error(ours: Manager) -> None:
    """As with Spark's own manager: nobody but mkdirs makes directories."""
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        ours.write("never-made/0", b"x")
