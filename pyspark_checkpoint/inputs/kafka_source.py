"""Kafka: a topic's partition has what comes after an offset if its earliest offset is not beyond that.

Retention, ``delete-records`` and a topic that was made anew take records away. The checkpoint knows topics
and offsets and not the brokers: the caller names them by the options with which Spark's source reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_checkpoint.errors import MissingExtra, SettingsError
from pyspark_checkpoint.inputs.offset_reader import InputState

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, OffsetSpec

TIMEOUT_SECONDS = 20.0
BOOTSTRAP = "kafka.bootstrap.servers"
_PREFIX = "kafka."
_NAMED = 5

Partition = tuple[str, int]
Range = tuple[int, int]


def decide_kafka(
    offsets: Mapping[Partition, int], ranges: Mapping[Partition, Range | None]
) -> tuple[InputState, str]:
    """Compare where a query stands with the earliest and the latest offset of each partition.

    ``None`` for a partition that the broker does not know. Spark's own marks for "earliest" and "latest"
    are negative, and need nothing.
    """
    gone = []
    for (topic, number), offset in sorted(offsets.items()):
        found, name = ranges.get((topic, number)), f"{topic}-{number}"
        if found is None:
            gone.append(f"partition {name} is not there any more")
        elif offset >= 0 and found[0] > offset:
            gone.append(
                f"{name} begins at {found[0]}, and {found[0] - offset} records from {offset} are gone"
            )
        elif found[1] < offset:
            gone.append(f"{name} ends at {found[1]}, before {offset}: the topic was made anew")
    if gone:
        more = f"; and {len(gone) - _NAMED} more partitions" if len(gone) > _NAMED else ""
        return InputState.LOST, "; ".join(gone[:_NAMED]) + more
    return InputState.KEPT, f"all {len(offsets)} partitions have what comes after the checkpoint"


def ask_kafka(offsets: Mapping[Partition, int], options: Mapping[str, str]) -> tuple[InputState, str]:
    """Ask the brokers that ``kafka.bootstrap.servers`` of a source's options names.

    Raises:
        MissingExtra: The client is not installed.
        SettingsError: An option is none of the client's.
    """
    settings = {
        name.removeprefix(_PREFIX): text for name, text in options.items() if name.startswith(_PREFIX)
    }
    if BOOTSTRAP not in options:
        return (
            InputState.UNKNOWN,
            f"nobody has said where the brokers are: give the source option {BOOTSTRAP}",
        )
    try:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an optional extra
        from confluent_kafka.admin import AdminClient, OffsetSpec  # noqa: PLC0415
    except ImportError:
        raise MissingExtra(
            "a Kafka source is asked through the package confluent-kafka, which is not installed",
            hint="pip install 'pyspark-checkpoint[kafka]'",
        ) from None
    try:
        admin = AdminClient({**settings, "log_level": 0}, logger=None)
    except (KafkaException, ValueError, TypeError):
        raise SettingsError(
            "the Kafka client does not take the source options "
            + ", ".join(sorted(_PREFIX + name for name in settings)),
            hint="name them as librdkafka does, such as kafka.sasl.username",
        ) from None
    try:
        first = _ask(admin, offsets, OffsetSpec.earliest())
        last = _ask(admin, offsets, OffsetSpec.latest())
    except KafkaException as error:
        return InputState.UNKNOWN, f"the brokers do not answer ({_code(error)})"
    ranges: dict[Partition, Range | None] = {}
    for at in offsets:
        low, high = first[at], last[at]
        ranges[at] = None if low is None or high is None else (low, high)
    return decide_kafka(offsets, ranges)


def _ask(
    admin: AdminClient, partitions: Mapping[Partition, int], spec: OffsetSpec
) -> dict[Partition, int | None]:
    """One offset of each partition; None for one that there is not."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition  # noqa: PLC0415

    wanted = {TopicPartition(*at): spec for at in partitions}
    found: dict[Partition, int | None] = {}
    for at, answer in admin.list_offsets(wanted, request_timeout=TIMEOUT_SECONDS).items():
        try:
            found[at.topic, at.partition] = answer.result(TIMEOUT_SECONDS * 2).offset
        except KafkaException as error:
            if error.args[0].code() not in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._UNKNOWN_PARTITION,
                KafkaError._UNKNOWN_TOPIC,
                KafkaError._NOENT,
            ):
                raise
            found[at.topic, at.partition] = None
    return found


def _code(error: Exception) -> str:
    inner = error.args[0] if error.args else error
    return str(inner.name()) if hasattr(inner, "name") else type(error).__name__
