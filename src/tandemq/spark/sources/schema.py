"""The columns of a message in Spark: those of every source, and those that only the log can tell.

    MESSAGE   key body topic tags brokerName queueId queueOffset commitLogOffset bornTimestamp storeTimestamp bornHost
              reconsumeTimes properties
    DETAIL    epoch verdict size flag sysFlag bodyCrc storeHost preparedTransactionOffset
    KAFKA     key value topic partition offset timestamp timestampType

`verdict` is NULL for a sound record; for bytes that are none it says why, and `body` holds these bytes as they lie.

Source: docs/guides/pipeline.md, "Columns"; Spark's Kafka connector for the names of `schema=kafka`.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from pyspark.sql.types import (
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
    "key": (StringType(), "the keys the producer gave, separated by spaces, NULL without"),
    "body": (BinaryType(), "the message"),
    "topic": (StringType(), "its topic"),
    "tags": (StringType(), "its tag, NULL without"),
    "brokerName": (StringType(), "the broker group that stored it"),
    "queueId": (IntegerType(), "its queue"),
    "queueOffset": (LongType(), "its number in the queue"),
    "commitLogOffset": (LongType(), "byte position of its record in the group's commit log"),
    "bornTimestamp": (TimestampType(), "when the producer sent it, by the producer's clock"),
    "storeTimestamp": (TimestampType(), "when the broker stored it, by the broker's clock"),
    "bornHost": (StringType(), "the producer's address, ip:port"),
    "reconsumeTimes": (IntegerType(), "how often it was delivered in vain"),
    "properties": (StringType(), "all its properties as stored, name 0x01 value 0x02"),
}
"""What every source tells."""

DETAIL: dict[str, tuple[DataType, str]] = {
    "epoch": (LongType(), "generation of the group's log that the record belongs to, 0 where there is none"),
    "verdict": (StringType(), "NULL for a sound record, else what is wrong with the bytes in `body`"),
    "size": (IntegerType(), "bytes of the record, or of what is none"),
    "flag": (IntegerType(), "the producer's flag"),
    "sysFlag": (IntegerType(), "the record's system flags"),
    "bodyCrc": (IntegerType(), "CRC-32 of the stored body, 31 bits"),
    "storeHost": (StringType(), "the broker's address, ip:port"),
    "preparedTransactionOffset": (LongType(), "of a transaction's half message, else 0"),
}
"""What the log tells in addition, for those who ask."""

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

KAFKA_SOURCES = {
    "key": "key",
    "value": "body",
    "topic": "topic",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "bornTimestamp",
}
"""Which column of MESSAGE each of Kafka's is."""


def message_schema(*, kafka: bool = False, map_properties: bool = False, details: bool = False) -> StructType:
    """The columns of a source.

    Args:
        kafka: Kafka's names and types; the others are not used then.
        map_properties: `properties` as a map of strings instead of the stored string.
        details: also the columns of DETAIL.
    """
    if kafka:
        return StructType([StructField(name, kind) for name, kind in KAFKA.items()])
    columns = {name: kind for name, (kind, _) in (MESSAGE | (DETAIL if details else {})).items()}
    if map_properties:
        columns["properties"] = MapType(StringType(), StringType())
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_columns(asked: StructType, offered: StructType, what: str) -> list[str]:
    """The names of the columns asked for.

    Raises:
        ConfigError: one of them is not offered, or has another type; names the nearest right one.
    """
    kinds = {field.name: field.dataType for field in offered}
    for field in asked:
        if field.name not in kinds:
            raise ConfigError(
                f"{what} has no column {field.name!r}",
                hint=did_you_mean(field.name, kinds) or f"it has {', '.join(kinds)}",
            )
        if _plain(field.dataType) != _plain(kinds[field.name]):
            raise ConfigError(
                f"column {field.name!r} of {what} is {kinds[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    return [field.name for field in asked]


def _plain(kind: DataType) -> str:
    return kind.simpleString()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, "" if none is near."""
    lower = {word.lower(): word for word in known}
    found: Sequence[str] = get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[found[0]]!r}?" if found else ""
