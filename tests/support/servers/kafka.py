"""A Kafka broker on loopback: one node without ZooKeeper, from the jars of ``make test-ecosystem``."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.announced import check_announced
from tests.support.servers.hadoop import ROOT
from tests.support.servers.process import LOOPBACK, accepts, running

JARS = ROOT / ".tools" / "ecosystem" / "broker-jars"
START_SECONDS = 90.0
_ASK_SECONDS = 30.0
_CLUSTER_ID = "Y2twdC10ZXN0LWJyb2tlcg"


@dataclass(frozen=True)
class KafkaServer:
    """A broker that runs."""

    port: int
    pid: int

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return f"{LOOPBACK}:{self.port}"

    def make_topic(self, topic: str, partitions: int = 2) -> None:
        """Make an empty topic."""
        admin = self._admin()  # what it was asked is given up once it is gone
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_ASK_SECONDS)

    def delete_topic(self, topic: str) -> None:
        """Remove a topic."""
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(_ASK_SECONDS)

    def produce(self, topic: str, numbers: Sequence[int], partitions: int = 2) -> None:
        """One record for each number, which is its value in decimal, in turns over the partitions."""
        producer, failed = self.producer(), list[object]()
        for number in numbers:
            producer.produce(
                topic,
                str(number).encode(),
                partition=number % partitions,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(_ASK_SECONDS) == 0
        assert failed == []

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Delete the records before an offset of each partition, as retention does."""
        before = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        admin = self._admin()
        for done in admin.delete_records(before).values():
            done.result(_ASK_SECONDS)

    def producer(self) -> Producer:
        """A producer whose records are where they belong once ``flush`` returns."""
        return Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 1})

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})


@contextlib.contextmanager
def kafka() -> Iterator[KafkaServer]:
    """Run a broker; it and its data are gone at the end, however that comes."""
    with running("kafka", _argv, ports=2) as (process, ports):
        process.wait_ready(lambda: accepts(ports[0]), START_SECONDS)
        yield KafkaServer(ports[0], process.pid)


def _argv(home: Path, ports: Sequence[int]) -> Sequence[str]:
    broker, controller = ports
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{broker},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{broker}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": home / "data",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
    }
    config = home / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
    check_announced("spark")
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(config)],
        check=True,
        capture_output=True,
        timeout=START_SECONDS,
    )
    return [*java, "kafka.Kafka", str(config)]
