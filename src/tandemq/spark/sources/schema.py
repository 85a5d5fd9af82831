"""Columns of a message in Spark: those of every source, and additional ones of records read from a store.

    MESSAGE   key body topic tags brokerName queueId queueOffset commitLogOffset bornTimestamp storeTimestamp bornHost
              reconsumeTimes properties
    DETAIL    epoch verdict size flag sysFlag bodyCrc storeHost preparedTransactionOffset
    KAFKA     key value topic partition offset timestamp timestampType

`verdict` is NULL for a sound record. For damaged bytes it describes the damage, and `body` has the bytes unchanged.

Source: docs/guides/pipeline.md, "Columns"; Spark's Kafka connector for the names of `schema=kafka`.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tandemq.errors import ConfigError

MESSAGE: dict[str, tuple[DataType, str]] = {
    "key": (StringType(), "keys set by the producer, separated by spaces; NULL if it has none"),
    "body": (BinaryType(), "message body"),
    "topic": (StringType(), "topic"),
    "tags": (StringType(), "tag; NULL if it has none"),
    "brokerName": (StringType(), "the broker group that stored it"),
    "queueId": (IntegerType(), "queue id"),
    "queueOffset": (LongType(), "offset in the queue"),
    "commitLogOffset": (LongType(), "byte offset of its record in the group's commit log"),
    "bornTimestamp": (TimestampType(), "when the producer sent it, by the producer's clock"),
    "storeTimestamp": (TimestampType(), "when the broker stored it, by the broker's clock"),
    "bornHost": (StringType(), "the producer's address, ip:port"),
    "reconsumeTimes": (IntegerType(), "number of failed deliveries"),
    "properties": (StringType(), "all properties as stored, name 0x01 value 0x02"),
}
"""Columns of every source, with type and meaning."""

DETAIL: dict[str, tuple[DataType, str]] = {
    "epoch": (LongType(), "epoch of the group's log that the record belongs to; 0 if the log has none"),
    "verdict": (StringType(), "NULL for a sound record, else the damage of the bytes in `body`"),
    "size": (IntegerType(), "bytes of the record, or of the damage"),
    "flag": (IntegerType(), "flag set by the producer"),
    "sysFlag": (IntegerType(), "system flags"),
    "bodyCrc": (IntegerType(), "CRC-32 of the stored body, 31 bits"),
    "storeHost": (StringType(), "the broker's address, ip:port"),
    "preparedTransactionOffset": (LongType(), "log offset of the half message of a transaction, else 0"),
}
"""Additional columns of the option `details`."""

KAFKA: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
"""`schema=kafka`: the columns of Spark's Kafka source; partition is the queue, offset the queue offset."""

HEADERS = "headers"
HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""Type of the column of the option `includeHeaders`, as in Spark's Kafka source: the properties that are not
SYSTEM_PROPERTIES; NULL if there are none."""

KAFKA_SOURCES = {
    "key": "key",
    "value": "body",
    "topic": "topic",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "bornTimestamp",
}
"""Columns of MESSAGE with the values of the columns of KAFKA."""


def message_schema(
    *, kafka: bool = False, map_properties: bool = False, details: bool = False, headers: bool = False
) -> StructType:
    """Return the columns of a source.

    Args:
        kafka: the columns of KAFKA; `map_properties` and `details` are ignored then.
        map_properties: `properties` as a map of strings instead of the stored string.
        details: also the columns of DETAIL.
        headers: also the column of HEADERS.
    """
    columns: dict[str, DataType] = dict(KAFKA)
    if not kafka:
        columns = {name: kind for name, (kind, _) in (MESSAGE | (DETAIL if details else {})).items()}
        if map_properties:
            columns["properties"] = MapType(StringType(), StringType())
    if headers:
        columns[HEADERS] = HEADERS_TYPE
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_columns(requested: StructType, offered: StructType, what: str) -> list[str]:
    """Return the names of the requested columns.

    Args:
        what: name of the source in error messages.
    Raises:
        ConfigError: a column is unknown (the hint names a similar one) or has another type.
    """
    kinds = {field.name: field.dataType for field in offered}
    for field in requested:
        if field.name not in kinds:
            raise ConfigError(
                f"{what} has no column {field.name!r}",
                hint=did_you_mean(field.name, kinds) or f"it has {', '.join(kinds)}",
            )
        if field.dataType.simpleString() != kinds[field.name].simpleString():
            raise ConfigError(
                f"column {field.name!r} of {what} is {kinds[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    return [field.name for field in requested]


NO_TABLES = (
    "Spark does not pass the options of a table to queries: use CREATE TEMPORARY VIEW … USING … OPTIONS (…), "
    "or give them in each query: FROM … WITH (…)"
)
"""Hint for CREATE TABLE and for queries of a table."""


def check_no_table(options: Mapping[str, str]) -> None:
    """Refuse the options of CREATE TABLE, which Spark passes twice, the second time with the prefix "option.".

    Raises:
        ConfigError: the options are those of CREATE TABLE.
    """
    if "provider" in options and any(name.lower().startswith("option.") for name in options):
        raise ConfigError("a table with this format cannot be created", hint=NO_TABLES)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is most similar to this one; "" if none is similar."""
    lower = {word.lower(): word for word in known}
    found: Sequence[str] = get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[found[0]]!r}?" if found else ""
