"""`format("rocketmq")`: messages of a cluster as rows, and rows as messages, over the remoting protocol.

    options ─► layout (queues, members) ─► positions ─► ranges ─► tasks ─► reader ─► decode ─► Arrow batches
    batch: startingOffsets to endingOffsets, narrowed by filters            streaming: from offset log to offset log

Source: docs/guides/pipeline.md; Spark's Kafka source for conventions.
"""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from tandemq.errors import ConfigError
from tandemq.spark.runtime.versions import adapt_reader
from tandemq.spark.runtime.worker_errors import shows_one_line
from tandemq.spark.sources.cluster.batch_reader import BatchReader, FilteredBatchReader
from tandemq.spark.sources.cluster.options import column_options, sink_options, source_options
from tandemq.spark.sources.cluster.sink import BatchWriter, StreamWriter
from tandemq.spark.sources.cluster.stream_reader import StreamReader
from tandemq.spark.sources.schema import message_schema


@shows_one_line
class RocketMQDataSource(DataSource):
    """The data source, for `spark.dataSource.register`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Keep the options that Spark passes; readers and writers validate them."""
        self.options = options

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return the default columns."""
        columns = column_options(self.options)
        return message_schema(
            kafka=columns.kafka,
            map_properties=columns.map_properties,
            details=columns.details,
            headers=columns.headers,
        )

    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader for `spark.read`."""
        options = source_options(self.options, streaming=False)
        return (FilteredBatchReader if options.pushes_down else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader for `spark.readStream`."""
        return adapt_reader(lambda: StreamReader(source_options(self.options, streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer for `df.write`."""
        if overwrite:
            raise ConfigError("messages cannot be overwritten", hint='write with mode("append")')
        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Return the writer for `df.writeStream`."""
        if overwrite:
            raise ConfigError("messages cannot be overwritten", hint='write with outputMode("append")')
        return StreamWriter(sink_options(self.options), schema)
