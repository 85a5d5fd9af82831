"""`format("rocketmq-lag")`: how far consumer groups are, as brokers say now; one row per group and queue.

Source: docs/pipeline.md, "Declarative pipeline"; docs/requests.md, "administration".
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tandemq.client.group_admin import groups, progress
from tandemq.client.kit import Kit
from tandemq.client.steps import Steps
from tandemq.errors import ConfigError, RemoteError
from tandemq.spark.asking import asker_of
from tandemq.spark.options import TIMEOUT_MS
from tandemq.spark.schema import did_you_mean

SCHEMA = StructType(
    [
        StructField("group", StringType()),
        StructField("topic", StringType()),
        StructField("brokerName", StringType()),
        StructField("queueId", IntegerType()),
        StructField("brokerOffset", LongType()),
        StructField("consumerOffset", LongType()),
        StructField("lag", LongType()),
    ]
)
Row = tuple[str, str, str, int, int, int, int]


class RocketMqLag(DataSource):
    """The format, for `spark.dataSource.register`. Option: `nameServer`; without it there are no rows."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """As Spark hands them over.

        Raises:
            ConfigError: an option is unknown.
        """
        for name in options:
            if name.lower() != "nameserver":
                raise ConfigError(f"the source has no option {name!r}", hint=did_you_mean(name, ["nameServer"]))
        self._name_servers = options.get("nameServer", "")

    @classmethod
    def name(cls) -> str:
        """What `format` says."""
        return "rocketmq-lag"

    def schema(self) -> StructType:
        """The columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> "_LagReader":  # noqa: ARG002  # Spark's signature
        """For `spark.read`."""
        return _LagReader(self._name_servers)


class _LagReader(DataSourceReader):
    def __init__(self, name_servers: str) -> None:
        self._name_servers = name_servers

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002  # there is one
        if self._name_servers:
            yield from asker_of(self._name_servers).tell(find_lag, TIMEOUT_MS)


def find_lag(kit: Kit) -> Steps[list[Row]]:
    """How far each group is in each queue it has offsets of; groups without any are left out.

    Raises:
        NetworkError: nobody answers.
    """
    rows: list[Row] = []
    for group in (yield from groups(kit)):
        try:
            found = yield from progress(kit, group, None)
        except RemoteError:
            # It consumed nothing yet: no broker knows of offsets.
            continue
        rows += [
            (group, queue.topic, queue.broker_name, queue.queue_id, one.broker_offset, one.consumer_offset,
             one.lag)
            for queue, one in found.items()
        ]  # fmt: skip
    return rows
