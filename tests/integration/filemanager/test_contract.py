"""Spark's contract for checkpoint file managers, on local disk and on S3."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError

from tests.integration.filemanager.jvm import Jvm, Manager, java_error

pytestmark = pytest.mark.promise

EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
ABSENT = "java.io.FileNotFoundException"


def test_a_file_is_invisible_until_it_is_closed(manager: Manager) -> None:
    """Neither exists nor list nor open sees a file that is being written."""
    manager.mkdirs("offsets")
    stream = manager.create("offsets/0")
    stream.write(bytearray(b"half"))
    stream.flush()
    assert not manager.exists("offsets/0")
    assert [name for name in manager.names("offsets") if not name.startswith(".")] == []
    with pytest.raises(Py4JJavaError) as error:
        manager.read("offsets/0")
    assert java_error(error.value) == ABSENT
    stream.write(bytearray(b" and whole"))
    stream.close()
    assert manager.exists("offsets/0")
    assert manager.read("offsets/0") == b"half and whole"


def test_cancelling_leaves_nothing(manager: Manager) -> None:
    """A cancelled stream has no file, and closing it afterwards makes none."""
    manager.mkdirs("state")
    for overwrite in (False, True):
        stream = manager.create("state/1.delta", overwrite=overwrite)
        stream.write(bytearray(b"x" * 100_000))
        stream.cancel()
        stream.close()
        assert not manager.exists("state/1.delta")
        assert manager.names("state") == []


def test_cancelling_leaves_what_was_there_before(manager: Manager) -> None:
    """An overwrite that is cancelled changes nothing."""
    manager.mkdirs("")
    manager.write("7.delta", b"old")
    stream = manager.create("7.delta", overwrite=True)
    stream.write(bytearray(b"new"))
    stream.cancel()
    assert manager.read("7.delta") == b"old"


def test_creating_what_exists_fails_and_keeps_it(manager: Manager) -> None:
    """Without overwrite the second creator is told so, and the first one's bytes stay."""
    manager.mkdirs("")
    manager.write("metadata", b"first")
    with pytest.raises(Py4JJavaError) as error:
        manager.write("metadata", b"second")
    assert java_error(error.value) == EXISTS
    assert manager.read("metadata") == b"first"


def test_of_two_open_streams_the_first_to_close_wins(manager: Manager) -> None:
    """What counts is the moment of closing, not of opening."""
    manager.mkdirs("commits")
    early, late = manager.create("commits/3"), manager.create("commits/3")
    early.write(bytearray(b"opened first"))
    late.write(bytearray(b"closed first"))
    late.close()
    with pytest.raises(Py4JJavaError) as error:
        early.close()
    assert java_error(error.value) == EXISTS
    assert manager.read("commits/3") == b"closed first"


def test_overwriting_replaces_the_file(manager: Manager) -> None:
    """With overwrite there is always exactly one of the written contents."""
    manager.mkdirs("")
    for content in (b"one", b"two, longer", b"3"):
        manager.write("5.delta", content, overwrite=True)
        assert manager.read("5.delta") == content


def test_closing_twice_is_closing_once(manager: Manager) -> None:
    """The second close does nothing, even if somebody else has written since."""
    manager.mkdirs("")
    stream = manager.create("1.zip", overwrite=True)
    stream.write(bytearray(b"mine"))
    stream.close()
    manager.write("1.zip", b"theirs", overwrite=True)
    stream.close()
    stream.cancel()
    assert manager.read("1.zip") == b"theirs"


def test_an_empty_file_is_a_file(manager: Manager) -> None:
    """Nothing written is still a file."""
    manager.mkdirs("")
    manager.write("2.delta", b"")
    assert manager.exists("2.delta")
    assert manager.read("2.delta") == b""


def test_nested_paths_need_no_directories_of_their_own(manager: Manager) -> None:
    """mkdirs makes all parents; a file far below makes its directories exist."""
    manager.mkdirs("state/0/3/left-keyToNumValues")
    for directory in ("state", "state/0", "state/0/3", "state/0/3/left-keyToNumValues"):
        assert manager.exists(directory)
    assert manager.names("state/0/3/left-keyToNumValues") == []
    manager.write("state/0/3/left-keyToNumValues/1.delta", b"x", overwrite=True)
    assert manager.names("state") == ["0"]
    assert manager.names("state/0/3/left-keyToNumValues") == ["1.delta"]


def test_a_directory_that_was_made_is_listed_in_its_parent(manager: Manager) -> None:
    """What Spark's own CheckpointFileManagerTests asks of every manager, in its order."""
    assert not manager.exists("dir/subdir/subsubdir")
    manager.mkdirs("dir/subdir/subsubdir")
    assert manager.exists("dir/subdir/subsubdir")
    manager.mkdirs("dir/subdir/subsubdir")
    assert manager.names() == ["dir"]
    assert manager.names("dir") == ["subdir"]
    (status,) = manager.java.list(manager.path(""))
    assert status.isDirectory()
    manager.write("dir/subdir/subsubdir/file", b"x")
    manager.mkdirs("dir/subdir/beside")
    assert sorted(manager.names("dir/subdir")) == ["beside", "subsubdir"]
    assert manager.names("dir") == ["subdir"]
    manager.delete("dir/subdir/beside")
    assert manager.names("dir/subdir") == ["subsubdir"]


def test_a_directory_is_listed_until_it_is_deleted(manager: Manager) -> None:
    """Also before there is a file in it, and no more after it was deleted."""
    manager.mkdirs("state/0/3")
    manager.mkdirs("state/1")
    assert sorted(manager.names("state")) == ["0", "1"]
    assert manager.names("state/0") == ["3"]
    (status,) = manager.java.list(manager.path("state/0"))
    assert status.isDirectory()
    manager.write("state/0/3/1.delta", b"x", overwrite=True)
    assert manager.names("state/0") == ["3"]
    manager.delete("state/1")
    assert manager.names("state") == ["0"]


def test_a_listing_has_names_sizes_and_kinds_and_obeys_the_filter(manager: Manager) -> None:
    """Files and directories are told apart, and listed in the order of their names."""
    manager.mkdirs("offsets")
    for number in (0, 1, 10, 2, 9):
        manager.write(f"offsets/{number}", b"x" * number)
    manager.mkdirs("offsets/sub")
    manager.write("offsets/sub/file", b"x")
    listed = sorted(
        (status.getPath().getName(), status.isFile(), status.getLen() if status.isFile() else 0)
        for status in manager.java.list(manager.path("offsets"))
    )
    assert listed == [
        ("0", True, 0),
        ("1", True, 1),
        ("10", True, 10),
        ("2", True, 2),
        ("9", True, 9),
        ("sub", False, 0),
    ]


def test_listing_what_does_not_exist_fails(manager: Manager) -> None:
    """A directory that nobody made is not an empty one."""
    with pytest.raises(Py4JJavaError) as error:
        manager.names("never-made")
    assert java_error(error.value) == ABSENT
    assert not manager.exists("never-made")


def test_deleting_removes_files_and_whole_directories(manager: Manager) -> None:
    """Afterwards nothing of it exists, is listed or can be opened; deleting again is no error."""
    manager.mkdirs("offsets")
    manager.mkdirs("state/0/0")
    manager.write("offsets/0", b"x")
    manager.write("offsets/1", b"x")
    manager.write("state/0/0/1.delta", b"x", overwrite=True)
    for _ in range(2):
        manager.delete("offsets/0")
        assert not manager.exists("offsets/0")
        assert manager.names("offsets") == ["1"]
        manager.delete("state")
        assert not manager.exists("state/0/0/1.delta")
        if manager.root.startswith("file:"):  # SeaweedFS goes on to list a prefix that has no object
            assert not manager.exists("state")
    with pytest.raises(Py4JJavaError) as error:
        manager.read("offsets/0")
    assert java_error(error.value) == ABSENT


def test_a_deleted_file_can_be_created_again(manager: Manager) -> None:
    """A delete never takes away what was created after it, with and without overwrite."""
    manager.mkdirs("")
    for overwrite in (False, True):
        manager.write("4.delta", b"old", overwrite=True)
        manager.delete("4.delta")
        manager.write("4.delta", b"new", overwrite=overwrite)
        assert manager.read("4.delta") == b"new"
        manager.delete("4.delta")


def test_a_large_file_arrives_whole(jvm: Jvm, root: str) -> None:
    """More than fits into the memory of the streams, written in pieces of odd sizes."""
    manager = jvm.manager(root, {"ckpt.fileManager.memoryBytes": "1m"})
    manager.mkdirs("")
    piece = bytes(range(256)) * 999
    stream = manager.create("9.snapshot", overwrite=True)
    for _ in range(40):
        stream.write(bytearray(piece))
    stream.close()
    assert manager.read("9.snapshot") == piece * 40
    assert jvm.access.reservedBytes() == 0


def test_names_may_have_any_letters(jvm: Jvm, root: str) -> None:
    """Locations are named by people: blanks, signs that addresses escape, letters of any language."""
    manager = jvm.manager(f"{root}/my query=1 + 100%20é ü#2")
    manager.mkdirs("offsets")
    manager.mkdirs("state/0")
    manager.write("offsets/0", b"x")
    manager.write("state/0/1.delta", b"y", overwrite=True)
    with pytest.raises(Py4JJavaError) as error:
        manager.write("offsets/0", b"z")
    assert java_error(error.value) == EXISTS
    assert manager.names("offsets") == ["0"]
    assert manager.read("state/0/1.delta") == b"y"
    manager.delete("offsets/0")
    assert not manager.exists("offsets/0")


def test_of_many_overwriters_one_wins_whole(manager: Manager) -> None:
    """Each file is one writer's, never a mixture, and nobody fails."""
    manager.mkdirs("")
    contents = [bytes([number]) * 300_000 for number in range(8)]

    def write(content: bytes) -> str:
        try:
            manager.write("3.delta", content, overwrite=True)
        except Py4JJavaError as error:
            return java_error(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        failures = [failure for failure in pool.map(write, contents) if failure]
    assert manager.read("3.delta") in contents
    assert failures == []


def test_the_checkpoint_directory_is_qualified(manager: Manager) -> None:
    """Spark stores the answer; it has a scheme."""
    assert manager.java.createCheckpointDirectory().toUri().getScheme() in ("file", "s3a")
    assert manager.exists("")


def test_only_the_local_disk_is_local(manager: Manager) -> None:
    """Spark warns about local locations on a cluster."""
    assert manager.java.isLocal() == manager.root.startswith("file:")
