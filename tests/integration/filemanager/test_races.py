"""Many creators of one file, in several JVMs: exactly one wins."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.filemanager.jvm import class_path
from tests.support.servers.hadoop import s3a_conf, s3a_jars
from tests.support.servers.launch import S3Server

THREADS = 16
ROUNDS = 6


class Racer:
    """A JVM in which 16 threads create the file that it is told to."""

    def __init__(self, jar: Path, directory: str, endpoint: str, log: Path) -> None:
        conf = [f"{name}={value}" for name, value in s3a_conf(endpoint).items()]
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [
                *("java", "-Xmx256m", "-cp", class_path(jar, s3a_jars())),
                *("io.github.pysparkcheckpoint.CreateRace", directory, str(THREADS), *conf),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )

    def start(self, name: str) -> None:
        """Let the threads go."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")

    def answer(self) -> str:
        """Wait for the outcome."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait(timeout=10)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_of_32_threads_in_two_jvms_exactly_one_creates(
    jar: Path, s3_server: S3Server, tmp_path: Path, kind: str
) -> None:
    """The other 31 are told that the file exists; nobody fails in another way."""
    directory = f"file://{tmp_path}/race" if kind == "local" else f"s3a://{s3_server.bucket}/race"
    Path(tmp_path, "race").mkdir()
    racers = [Racer(jar, directory, s3_server.endpoint, tmp_path / f"{n}.log") for n in range(2)]
    try:
        assert [racer.answer() for racer in racers] == ["ready", "ready"]
        for number in range(ROUNDS):
            for racer in racers:
                racer.start(f"{number}.file")
            outcomes = [tuple(map(int, racer.answer().split())) for racer in racers]
            won, lost, failed = (sum(column) for column in zip(*outcomes, strict=True))
            assert (won, lost, failed) == (1, 2 * THREADS - 1, 0), f"round {number}: {outcomes}"
    finally:
        for racer in racers:
            racer.end()
