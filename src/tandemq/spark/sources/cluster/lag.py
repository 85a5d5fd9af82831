"""`format("rocketmq-lag")`: present consumer lag from the brokers; one row per group and queue.

Source: docs/guides/pipeline.md, "Declarative pipeline"; docs/reference/requests.md, "administration".
"""

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tandemq.client.admin.cluster import topic_names
from tandemq.client.admin.groups import ConsumeProgress, progress, topic_groups
from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import Routes
from tandemq.errors import RemoteError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import SYSTEM_TOPICS
from tandemq.spark.runtime.client_pool import CONNECT_MS, cluster_client
from tandemq.spark.runtime.worker_errors import shows_one_line
from tandemq.spark.sources.cluster.options import TIMEOUT_MS, LagOptions, lag_options

log = logging.getLogger(__name__)
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


class LagRow(NamedTuple):
    """One row of the format, in the order of SCHEMA."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    lag: int


@shows_one_line
class RocketMqLag(DataSource):
    """The data source, for `spark.dataSource.register`. Options: those of TLS, and `nameServer`: without it no rows."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Validate the options that Spark passes.

        Raises:
            ConfigError: an option is unknown or malformed.
        """
        self._options = lag_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq-lag"

    def schema(self) -> StructType:
        """Return the columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> "_LagReader":  # noqa: ARG002  # Spark's signature
        """Return the reader for `spark.read`."""
        return _LagReader(self._options)


@shows_one_line
class _LagReader(DataSourceReader):
    def __init__(self, options: LagOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002  # there is one
        name_servers, tls, signer = self._options
        if name_servers:
            yield from cluster_client(name_servers, tls, signer).run(find_lag, TIMEOUT_MS, connect_ms=CONNECT_MS)


def find_lag(routes: Routes) -> Steps[list[LagRow]]:
    """Return the lag of each group in each queue of the topics it consumes or has consumed.

    Raises:
        NetworkError: no broker answers.
    """
    rows: list[LagRow] = []
    for topic in (yield from topic_names(routes)):
        if topic in SYSTEM_TOPICS:
            continue
        try:
            for group in (yield from topic_groups(routes, topic)):
                found = yield from progress(routes, group, topic)
                rows += [
                    _row(group, queue, queue_progress)
                    for queue, queue_progress in found.items()
                    if queue.topic == topic
                ]
        except RemoteError as error:
            # The topic has been deleted, or no broker serves it.
            log.info("consumer groups of the topic %s are left out: %s", topic, error)
    return rows


def _row(group: str, queue: MessageQueue, queue_progress: ConsumeProgress) -> LagRow:
    return LagRow(
        group,
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        queue_progress.broker_offset,
        queue_progress.consumer_offset,
        queue_progress.lag,
    )
