"""Which suites run, where their classes are, and how long they take alone on two cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SQL = "org.apache.spark.sql"
_LOGS = f"{_SQL}.execution.streaming"
_STATE = f"{_LOGS}.state"
_QUERIES = f"{_SQL}.streaming"
_OURS = "io.github.pysparkcheckpoint.suites"

MANAGER = "manager"
PLUGIN = "plugin"


@dataclass(frozen=True)
class Suite:
    """A suite in one setting: the file manager alone, or the plugin, which sets the manager too."""

    name: str
    package: str
    seconds: int
    is_quick: bool = False
    setting: str = MANAGER

    @property
    def class_name(self) -> str:
        """What scalatest's Runner takes."""
        return f"{self.package}.{self.name}"


S3A_CONTRACT = "S3aContractSuite"

SUITES = (
    # Spark's contract for file managers, held by ours.
    Suite("LocalContractSuite", _OURS, 1, is_quick=True),
    Suite(S3A_CONTRACT, _OURS, 4, is_quick=True),
    # Logs, which are nothing but files of the manager.
    Suite("CheckpointFileManagerSuite", _LOGS, 7, is_quick=True),
    Suite("HDFSMetadataLogSuite", _LOGS, 3, is_quick=True),
    Suite("OffsetSeqLogSuite", _LOGS, 2, is_quick=True),
    Suite("CommitLogSuite", _QUERIES, 1, is_quick=True),
    Suite("CompactibleFileStreamLogSuite", _LOGS, 1, is_quick=True),
    Suite("FileStreamSinkLogSuite", _LOGS, 1, is_quick=True),
    Suite("StreamMetadataSuite", _LOGS, 1, is_quick=True),
    Suite("FileSystemChecksumCheckpointFileManagerSuite", _LOGS, 1, is_quick=True),
    Suite("FileContextChecksumCheckpointFileManagerSuite", _LOGS, 1, is_quick=True),
    # State stores.
    Suite("StateStoreSuite", _STATE, 45, is_quick=True),
    Suite("StateSchemaCompatibilityCheckerSuite", _STATE, 2, is_quick=True),
    Suite("OperatorStateMetadataSuite", _STATE, 55),
    Suite("RocksDBSuite", _STATE, 300),
    Suite("RocksDBStateStoreSuite", _STATE, 180),
    Suite("RocksDBStateStoreIntegrationSuite", _STATE, 60),
    Suite("RocksDBStateStoreCheckpointFormatV2Suite", _STATE, 60),
    Suite("RocksDBCheckpointFailureInjectionSuite", _STATE, 60),
    Suite("RocksDBLineageSuite", _STATE, 4),
    Suite("StateStoreCompatibilitySuite", _STATE, 18),
    # Queries that are stopped and started again.
    Suite("MicroBatchExecutionSuite", _LOGS, 25, is_quick=True),
    Suite("StreamingQueryManagerSuite", _QUERIES, 25),
    Suite("TriggerAvailableNowSuite", _QUERIES, 14),
    Suite("AsyncProgressTrackingMicroBatchExecutionSuite", _LOGS, 45),
    Suite("StreamingQuerySuite", _QUERIES, 100),
    Suite("StreamSuite", _QUERIES, 100),
    Suite("FileStreamSourceSuite", _QUERIES, 120),
    Suite("FileStreamSinkV1Suite", _QUERIES, 60),
    Suite("ForeachBatchSinkSuite", f"{_LOGS}.sources", 23),
    # Stateful operators on both providers.
    Suite("EventTimeWatermarkSuite", _QUERIES, 60),
    Suite("StreamingAggregationSuite", _QUERIES, 100),
    Suite("RocksDBStateStoreStreamingAggregationSuite", _QUERIES, 135),
    Suite("StreamingDeduplicationSuite", _QUERIES, 60),
    Suite("StreamingSessionWindowSuite", _QUERIES, 62),
    Suite("FlatMapGroupsWithStateSuite", _QUERIES, 25),
    Suite("TransformWithValueStateTTLSuite", _QUERIES, 41),
    Suite("TransformWithListStateSuite", _QUERIES, 22),
    Suite("TransformWithStateUnsafeRowSuite", _QUERIES, 84),
    Suite("StreamingInnerJoinSuite", _QUERIES, 240),
    Suite("StreamingOuterJoinSuite", _QUERIES, 240),
    # With the plugin: each query's history is verified afterwards.
    Suite("MicroBatchExecutionSuite", _LOGS, 50, is_quick=True, setting=PLUGIN),
    Suite("StreamingDeduplicationSuite", _QUERIES, 57, setting=PLUGIN),
    Suite("RocksDBStateStoreStreamingAggregationSuite", _QUERIES, 162, setting=PLUGIN),
    Suite("FlatMapGroupsWithStateSuite", _QUERIES, 30, setting=PLUGIN),
)


def choose(names: Sequence[str], *, quick: bool) -> list[Suite]:
    """The suites of these names in every setting; without names all, or the quick ones."""
    known = {suite.name for suite in SUITES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"no suite of that name: {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    if names:
        return [suite for suite in SUITES if suite.name in names]
    return [suite for suite in SUITES if suite.is_quick or not quick]


def deal(suites: Sequence[Suite], lanes: int) -> list[list[Suite]]:
    """Suites for each JVM: of one setting, in ``lanes`` shares of about the same time, longest first."""
    shares: list[list[Suite]] = []
    for setting in (MANAGER, PLUGIN):
        of_setting = [suite for suite in suites if suite.setting == setting]
        bins: list[list[Suite]] = [[] for _ in range(lanes)]
        for suite in sorted(of_setting, key=lambda suite: -suite.seconds):
            min(bins, key=_seconds).append(suite)
        shares += [sorted(share, key=of_setting.index) for share in bins if share]
    return sorted(shares, key=lambda share: -_seconds(share))


def _seconds(suites: Sequence[Suite]) -> int:
    return sum(suite.seconds for suite in suites)
