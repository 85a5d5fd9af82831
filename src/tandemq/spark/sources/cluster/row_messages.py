"""Rows of the sink as messages, one by one: for rows that `outgoing` cannot encode by columns, and for their errors.

Source: docs/guides/pipeline.md, "The cluster as a sink".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    TimestampType,
)

from tandemq.errors import InvalidMessage, LocalError
from tandemq.model.message import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    REAL_TOPIC,
    SYSTEM_PROPERTIES,
    TAGS,
    Message,
    decode_properties,
)
from tandemq.spark.sources.cluster.options import SinkOptions
from tandemq.spark.sources.cluster.outgoing import DELAYS
from tandemq.spark.sources.schema import HEADERS

LEVEL, TIME = re.compile(r"[0-9]{1,10}"), re.compile(r"[+-]?[0-9]{1,19}")
LEVELS_END, TIMES_END = 1 << 31, 1 << 63
"""Delay levels and times that brokers read."""

COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "body": ((BinaryType, StringType), "message body; `value` is an alias"),
    "topic": ((StringType,), "topic; the option `topic` takes precedence"),
    "key": ((StringType, BinaryType), "keys, separated by spaces"),
    "tags": ((StringType,), "tag"),
    "properties": (
        (StringType, MapType),
        "properties, as stored or as a map; system properties are dropped, but for those of a delay",
    ),
    HEADERS: ((ArrayType,), "properties as an array of key and value, as in Spark's Kafka source"),
    "uniqueKey": ((StringType,), "unique key, if the message has one already"),
    "partition": ((IntegerType, LongType, ShortType), "with `queueBy=partition`: number of the queue; NULL: any"),
    "delayLevel": ((IntegerType, LongType, ShortType), "delay level; 0 or NULL: none"),
    "deliverAt": ((TimestampType,), "time of delivery; NULL: at once"),
}
"""Columns that the sink uses, with types and meaning; other columns are ignored."""


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Return the values of each row by column of COLUMNS."""
    names = ["body" if name == "value" else name for name in batch.schema.names]
    columns = {name: column.to_pylist() for name, column in zip(names, batch.columns, strict=True) if name in COLUMNS}
    for row in range(batch.num_rows):
        yield {name: values[row] for name, values in columns.items()}


def make_message(values: Mapping[str, Any], options: SinkOptions, row: int) -> Message:
    """Return the message of a row.

    Args:
        values: by column of COLUMNS; a property that is NULL counts as absent.
        row: its number in its partition, for messages.
    Raises:
        LocalError: it has no body or topic, a value that no broker accepts, or a header that cannot be a property;
            names the row.
    """
    body, target = values["body"], options.topic or values.get("topic")
    if body is None or not target:
        raise LocalError(f"row {row} of its partition has no {'body' if body is None else 'topic'}")
    given = values.get("properties") or {}
    texts = decode_properties(given) if isinstance(given, str) else dict(given)
    properties = {name: value for name, value in texts.items() if value is not None}
    if options.headers:
        properties |= _properties(values.get(HEADERS) or (), row)
    key = values.get("key")
    keys = key.decode() if isinstance(key, bytes) else key if key is not None else properties.get(KEYS, "")
    tags = values.get("tags")
    delays = requested_delay(properties)
    level = delays.pop(DELAY, "0")
    if values.get("delayLevel") is not None:
        level = str(values["delayLevel"])
    deliver_at = values.get("deliverAt")
    if deliver_at is not None:
        delays = {}
    try:
        if not (LEVEL.fullmatch(level) and int(level) < LEVELS_END):
            raise InvalidMessage(f"the property {DELAY} is {level[:64]!r}, no level", hint="it is a number, from 1 on")
        for name, value in delays.items():
            if not (TIME.fullmatch(value) and abs(int(value)) < TIMES_END):
                raise InvalidMessage(f"the property {name} is {value[:64]!r}, no time", hint="it is a whole number")
        return Message(
            target,
            body.encode() if isinstance(body, str) else body,
            tags if tags is not None else properties.get(TAGS, ""),
            [word for word in keys.split(KEY_SEPARATOR) if word],
            {name: value for name, value in properties.items() if name in delays or name not in SYSTEM_PROPERTIES},
            int(level),
            deliver_at=deliver_at,
        )
    except InvalidMessage as error:
        raise InvalidMessage(f"row {row} of its partition: {error.args[0]}", hint=error.hint) from None


def requested_delay(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties by which a row asks for a delayed delivery. Those of a stored message do not: it was
    delivered, or it waits in a system topic, which REAL_TOPIC shows."""
    return {} if REAL_TOPIC in properties else {name: properties[name] for name in DELAYS if name in properties}


def _properties(headers: Iterable[Mapping[str, Any]], row: int) -> dict[str, str]:
    """Return the properties that the headers of a row become.

    Raises:
        LocalError: a header cannot be a property; names it.
    """
    found: dict[str, str] = {}
    for header in headers:
        name, value = header["key"], header["value"]
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            text = None
        if name is None or text is None:
            raise LocalError(f"row {row} of its partition: the value of header {name!r} is not UTF-8 text")
        if name in found:
            raise LocalError(f"row {row} of its partition has header {name!r} twice", hint="a property has one value")
        found[name] = text
    return found
