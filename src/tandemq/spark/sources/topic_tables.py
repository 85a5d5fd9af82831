"""Tables of SQL over topics: `CREATE TABLE orders USING rocketmq_orders`.

Spark does not pass the options of a table to its queries, and a source in Python has no catalogue. So each table gets a
format of its own, a class that has the options. They are shown nowhere.

    SELECT                 a batch read, as `format("rocketmq")` with the same options
    readStream.table       a stream
    INSERT INTO            the sink, if the options name one topic

Source: docs/guides/pipeline.md, "Tables".
"""

import re
from collections.abc import Mapping, MutableMapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tandemq.errors import ConfigError
from tandemq.spark.sources.cluster.options import SINK, SOURCE, sink_options, source_options
from tandemq.spark.sources.cluster.sink import BatchWriter, StreamWriter
from tandemq.spark.sources.cluster.source import RocketMQDataSource

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_KNOWN = {name.lower(): name for name in SINK | SOURCE}


def add_tables(spark: SparkSession, tables: Mapping[str, Mapping[str, str]]) -> None:
    """Register a format for each table, and create the tables that do not exist.

    Args:
        spark: the session.
        tables: options of source and sink by name of the table, which may have that of its database before it.
    Raises:
        ConfigError: a name is no name of a table, options are invalid, or a table of another format exists.
    """
    for table, options in tables.items():
        if not _NAME.fullmatch(table):
            raise ConfigError(f"{table!r} is no name of a table", hint="write `orders` or `shop.orders`")
        source = table_source(table, options)
        spark.dataSource.register(source)
        if spark.catalog.tableExists(table):
            _check_format(spark, table)
        else:
            spark.sql(f"CREATE TABLE {table} USING {source.name()}")


def table_source(table: str, options: Mapping[str, str]) -> type[RocketMQDataSource]:
    """Return the source of a table's format.

    Raises:
        ConfigError: options are unknown or malformed.
    """
    given = _by_name(options)
    unknown = [name for name in options if name.lower() not in _KNOWN]
    source = {name: text for name, text in given.items() if name in SOURCE}
    sink = {name: text for name, text in given.items() if name in SINK}
    if "topic" not in sink and "subscribe" in source and "," not in source["subscribe"]:
        sink["topic"] = source["subscribe"].strip()
    source_options(source | {name: options[name] for name in unknown}, streaming=False)
    if "topic" in sink:
        sink_options(sink)

    class TableSource(RocketMQDataSource):
        def __init__(self, options: MutableMapping[str, str]) -> None:
            asked = _by_name(options)
            super().__init__(source | {name: text for name, text in asked.items() if name in SOURCE})
            self.sink = sink | {name: text for name, text in asked.items() if name in SINK}

        @classmethod
        def name(cls) -> str:
            return "rocketmq_" + table.lower().replace(".", "_")

        def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
            self.options = self.sink
            return super().writer(schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
            self.options = self.sink
            return super().streamWriter(schema, overwrite)

    return TableSource


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of source and sink by their names; Spark adds others of its own."""
    return {_KNOWN[name.lower()]: text for name, text in options.items() if name.lower() in _KNOWN}


def _check_format(spark: SparkSession, table: str) -> None:
    """Refuse tables of Spark's own formats, and views: Spark names the provider, or no type."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    details = {row.col_name: row.data_type for row in rows}
    if "Provider" in details or "Type" not in details:
        found = f"the format {details['Provider']}" if "Provider" in details else "that of a view"
        raise ConfigError(f"{table} exists, with {found}", hint="choose another name")
