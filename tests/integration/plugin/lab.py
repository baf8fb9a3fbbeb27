"""Applications submitted with ``--packages``, from a repository that holds the jar just built."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from pyspark_checkpoint import CheckpointStore
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.registry.queries import list_queries, root_url
from pyspark_checkpoint.store.open import open_object_store
from tests.support.drivers.inputs import give_turn
from tests.support.drivers.session import SPARK_CONF
from tests.support.jvms import without_spark
from tests.support.servers.hadoop import TEST_JAR
from tests.support.waiting import LIMIT_SECONDS

COORDINATES = "io.github.pyspark-checkpoint:ckpt-spark_2.13:0.1.0"
PLUGIN = "io.github.pysparkcheckpoint.CheckpointPlugin"
JAVA_APP = "io.github.pysparkcheckpoint.TotalsApp"
PYTHON_APP = Path(__file__).with_name("totals_app.py")
WORDS = ("state", "sink", "source", "epoch", "batch", "offset", "manifest")
_MARK = "CKPT_TEST_APPLICATION"

_CONF = {**SPARK_CONF, "spark.log.level": "INFO"}


def bare_python(home: Path) -> Path:
    """A Python that has what the package needs, but not the package: that must come from the jar."""
    if not home.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
        (site,) = (home / "lib").glob("python3*/site-packages")
        (site / "needed.pth").write_text(str(Path(pyspark.__file__).parents[1]))
    return home / "bin" / "python"


def python_without(home: Path, *packages: str) -> Path:
    """A Python that has everything that ours has but these packages, and the package itself."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    (site,) = (home / "lib").glob("python3*/site-packages")
    for entry in Path(pyspark.__file__).parents[1].iterdir():
        name = entry.name.lower()
        if not name.startswith(packages) and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    return home / "bin" / "python"


@dataclass
class Application:
    """One submitted application; ends with the block, whatever happens."""

    process: subprocess.Popen[bytes]
    log_file: Path
    mark: str

    @property
    def log(self) -> str:
        """What the driver has logged so far."""
        return self.log_file.read_text(errors="replace")

    def wait(self, timeout_seconds: float = LIMIT_SECONDS) -> int:
        """Its exit status."""
        return self.process.wait(timeout_seconds)

    def kill(self) -> None:
        """SIGKILL to the driver's JVM alone: nobody tells its children."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)

    def children(self) -> dict[int, str]:
        """Every living process of the application but the driver, with its command line."""
        return {pid: command for pid, command in _processes(self.mark).items() if pid != self.process.pid}


@dataclass(frozen=True)
class Submitter:
    """How applications are submitted: the repository, the Python, and a directory of the driver's own."""

    repository: Path
    private: Path
    python: Path
    spark_home: Path = field(default_factory=lambda: Path(pyspark.__file__).parent)
    user_home: Path | None = None
    """With one, coordinates are resolved as Spark does by itself, in this home's ``.m2`` first."""

    @contextlib.contextmanager
    def submit(
        self,
        home: Path,
        arguments: Sequence[str],
        *,
        conf: Mapping[str, str] | None = None,
        master: str = "local[2]",
        name: str = "totals-app",
        program: str = "spark-submit",
        stdin: bytes | None = None,
        properties: Path | None = None,
    ) -> Iterator[Application]:
        """Submit an application that keeps its files in ``home`` and its checkpoints in ``home/store``.

        With a file of ``properties`` the plugin and its settings are what that file says.
        """
        mark = SYSTEM_CLOCK.uuid7()
        log_file = home / f"driver-{mark}.log"
        # A directory of its own for each run: an old jar of the same version would be taken from it.
        confs = {**_CONF, "spark.jars.ivy": str(self.private / f"ivy-{mark}")}
        if self.user_home is None:
            confs["spark.jars.ivySettings"] = str(self._ivy_settings())
        if properties is None:
            confs |= {"spark.plugins": PLUGIN, "spark.ckpt.url": str(home / "store")}
        confs |= conf or {}
        command = [str(self.spark_home / "bin" / program), "--packages", COORDINATES]
        command += ["--master", master, "--name", name]
        if properties is not None:
            command += ["--properties-file", str(properties)]
        for key, value in confs.items():
            command += ["--conf", f"{key}={value}"]
        with log_file.open("wb") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                env=self._environment(mark),
                cwd=home,
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if stdin is not None and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.flush()
        application = Application(process, log_file, mark)
        try:
            yield application
        except BaseException:
            print(application.log[-6000:])
            raise
        finally:
            if process.stdin is not None:
                process.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)

    def python_app(self, home: Path, pause_seconds: float = 0.0, *, state: str | None = None) -> list[str]:
        """Arguments for the application in Python; with ``state`` it has a table that keeps it, or not."""
        return [str(PYTHON_APP), str(home), str(pause_seconds), *([] if state is None else [state])]

    def java_app(self, home: Path, pause_seconds: float = 0.0) -> list[str]:
        """Arguments for the application in Java."""
        return ["--class", JAVA_APP, str(TEST_JAR), str(home), str(pause_seconds)]

    def _ivy_settings(self) -> Path:
        settings = self.private / "ivysettings.xml"
        settings.write_text(
            '<ivysettings><settings defaultResolver="here"/><resolvers>'
            f'<ibiblio name="here" m2compatible="true" root="file://{self.repository}"/>'
            "</resolvers></ivysettings>"
        )
        return settings

    def _environment(self, mark: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in without_spark(os.environ).items()
            if not name.startswith("PYTHON")
        }
        if self.user_home is not None:
            kept["SPARK_SUBMIT_OPTS"] += f" -Duser.home={self.user_home}"
        return {
            **kept,
            _MARK: mark,
            "SPARK_HOME": str(self.spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "PYTHONWARNINGS": "ignore",
        }


def write_input(home: Path, files: int, words: int = 40) -> None:
    """``files`` files, one for each batch, in the order of their times."""
    (home / "input").mkdir(parents=True)
    for number in range(files):
        path = home / "input" / f"{number:03d}.txt"
        path.write_text("\n".join(WORDS[(number * 3 + word * word) % len(WORDS)] for word in range(words)))
        give_turn(path, number)


def expected_batches(home: Path) -> dict[str, list[str]]:
    """What every batch must have written, computed without Spark."""
    counts: Counter[str] = Counter()
    batches = {}
    for number, path in enumerate(sorted((home / "input").iterdir())):
        words = path.read_text().splitlines()
        counts.update(words)
        batches[f"{number:03d}"] = sorted(f"{word} {counts[word]}" for word in set(words))
    return batches


def found_batches(home: Path) -> dict[str, list[str]]:
    """What every batch has written."""
    found = sorted((home / "results").glob("[0-9]*"))
    return {path.name: path.read_text().splitlines() for path in found}


def newest(home: Path, query: str = "totals") -> CheckpointManifest | None:
    """The newest checkpoint of a query; None while there is none."""
    url = str(home / "store")
    if not (home / "store").exists():
        return None
    for root in list_queries(open_object_store(url)):
        if root.name == query:
            return CheckpointStore.open(root_url(url, root.query_id)).load_latest()
    return None


def epoch(home: Path, query: str = "totals") -> int:
    """The newest checkpointed epoch, -1 while there is none."""
    found = newest(home, query)
    return -1 if found is None else found.epoch


def _processes(mark: str) -> dict[int, str]:
    found = {}
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:  # a zombie has none
                    found[int(entry.name)] = command
    return found
