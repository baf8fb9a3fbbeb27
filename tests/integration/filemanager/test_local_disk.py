"""The manager on a local disk: one file and nothing beside it, which Spark's own manager reads.

Disks that fail, or have no links, are in ``LocalFileManagerTest.java``.
"""

from __future__ import annotations

import os
import stat
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
