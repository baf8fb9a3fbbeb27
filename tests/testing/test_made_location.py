"""A made location is one that the package reads as Spark's own."""

from __future__ import annotations

from pathlib import Path

from pyspark_checkpoint.spark_files.logs import decode_commit_log, decode_offset_log, decode_query_id
from pyspark_checkpoint.spark_files.names import parse_state_file
from pyspark_checkpoint.testing.made_location import QUERY_ID, MadeLocation


def test_logs_and_state_files_are_read_as_sparks(tmp_path: Path) -> None:
    """Each batch has offsets, a state file a partition, and a commit."""
    made = MadeLocation(tmp_path, state_bytes=100).commit(0, 1)
    needed = made.needed(1)
    assert decode_query_id(needed["metadata"]) == QUERY_ID
    assert decode_offset_log(needed["offsets/1"], "offsets/1").offsets == ('{"topic":{"0":1}}',)
    decode_commit_log(needed["commits/1"], "commits/1")
    state = [name for name in needed if name.endswith(".delta")]
    assert len(state) == 4 and all(parse_state_file(name) for name in state)


def test_bytes_follow_from_the_seed(tmp_path: Path) -> None:
    """The same ones for the same seed, other ones in each file and for each other seed."""

    def state(name: str, seed: int) -> set[bytes]:
        made = MadeLocation(tmp_path / name, seed=seed, state_bytes=50).commit(0, 1)
        return {data for path, data in made.needed(1).items() if path.endswith(".delta")}

    assert len(state("a", 1)) == 4
    assert state("a", 1) == state("b", 1)
    assert not state("b", 1) & state("c", 2)
