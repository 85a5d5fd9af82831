"""Options of `format("rocketmq-log")`, parsed and validated before any file is opened.

Option names are case-insensitive: Spark passes them in lower case. Source: docs/guides/pipeline.md, "The log as a
source".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tandemq.errors import ConfigError
from tandemq.spark.runtime.location import Location, locate
from tandemq.spark.sources.log.ranges import RANGE_BYTES
from tandemq.spark.sources.schema import NO_TABLES, check_no_table, did_you_mean

OPTIONS = {
    "path": 'the directory, or its URL (docs/guides/pipeline-lakes.md, "Archived log files"); the argument of `load`',
    "brokerName": "value of the column of that name; default: the directory's name",
    "startingOffsets": "`earliest` (the default), a log offset (the first record or damage at or behind it), or in "
    "streams `latest`",
    "endingOffsets": "`latest` (the default), or a log offset; batch only",
    "maxBytesPerTrigger": "maximum bytes of log of one micro-batch; streaming only. Default: no limit",
    "rangeBytes": "bytes of log of one task. Default: 67108864",
    "failOnDataLoss": "whether bytes that are missing, damaged or rewritten fail the query, or are skipped. Default: "
    "`true`",
    "details": "the columns that only stored records have too. Default: `false`",
    "schema": "`kafka`: Kafka's columns",
    "propertiesAs": "`string` (the default), or `map`: the properties as a map, a third slower",
    "verify": "whether checksums are verified. Default: `true`",
    "inflate": "whether compressed bodies are decompressed. Default: `true`",
    "writeTo": "a directory, or a URL (docs/guides/pipeline-lakes.md): tasks write their rows there as Parquet files "
    "and return the files' names (used by the archive). The files have all columns, and bodies as stored: `schema`, "
    "`details`, `propertiesAs` and `inflate` are refused",
}
"""Options, and their meaning as Markdown, for the page docs/reference/spark-options.md."""

PLACES = ("path", "writeTo")
"""Options with a directory or a URL."""
SHAPING = ("schema", "details", "propertiesAs", "inflate")
"""Options that change the form of rows."""
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
EARLIEST = -2
LATEST = -1
RANGE_BYTES_MIN = 1 << 16
DIGITS_MAX = 18
"""Maximum digits of a number of bytes, so that it fits 64 bits."""


class LogPosition(NamedTuple):
    """A position in a broker group's log: the bytes before it belong to `epoch` or an earlier one."""

    log_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Parsed options of a query. Offsets may be EARLIEST or LATEST."""

    path: Location
    broker_name: str | None = None
    start: int = EARLIEST
    end: int = LATEST
    bytes_max: int | None = None
    range_bytes: int = RANGE_BYTES
    fails_on_loss: bool = True
    details: bool = False
    kafka: bool = False
    maps_properties: bool = False
    checks: bool = True
    inflates: bool = True
    write_to: Location | None = None


def read_options(
    given: Mapping[str, str], *, streams: bool | None = None, storage: Mapping[str, Mapping[str, str]] | None = None
) -> LogOptions:
    """Parse the options of a query.

    Args:
        streams: whether the query is a streaming one; None if that is not known yet.
        storage: storage options of the locations in `path` and `writeTo`.
    Raises:
        ConfigError: an option is unknown (names the nearest known one), malformed, or contradicts another.
    """
    names = {name.lower(): name for name in OPTIONS}
    found: dict[str, str] = {}
    check_no_table(given)
    for name, value in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name.lower() not in names:
            hint = did_you_mean(name, OPTIONS) or f"options are {', '.join(OPTIONS)}"
            raise ConfigError(f"rocketmq-log has no option {name!r}", hint=hint)
        found[names[name.lower()]] = value
    if not found.get("path"):
        hint = f'.load("/var/lib/tandemq/store"), or option("path", …); {NO_TABLES}'
        raise ConfigError("rocketmq-log needs a path", hint=hint)
    places = {name: locate(found[name], name, (storage or {}).get(name)) for name in PLACES if name in found}
    start, end = _offset(found, "startingOffsets", EARLIEST), _offset(found, "endingOffsets", LATEST)
    if streams and "endingOffsets" in found:
        raise ConfigError("endingOffsets is for batch queries", hint="a stream ends with trigger(availableNow=True)")
    if streams is False:
        _check_batch(found, start, end)
    kafka = _word(found, "schema", ("", "kafka")) == "kafka"
    details = _flag(found, "details", default=False)
    maps = _word(found, "propertiesAs", ("string", "map")) == "map"
    if kafka and (details or maps):
        raise ConfigError("schema=kafka has Kafka's columns only", hint="leave out details and propertiesAs")
    shaping = [name for name in SHAPING if name in found]
    if "writeTo" in found and shaping:
        raise ConfigError(
            f"writeTo has no use for {' and '.join(shaping)}",
            hint="its files hold all columns, and bodies as stored; leave one of them out",
        )
    return LogOptions(
        path=places["path"],
        broker_name=found.get("brokerName"),
        start=start,
        end=end,
        bytes_max=_number(found, "maxBytesPerTrigger", 1) if "maxBytesPerTrigger" in found else None,
        range_bytes=_number(found, "rangeBytes", RANGE_BYTES_MIN) if "rangeBytes" in found else RANGE_BYTES,
        fails_on_loss=_flag(found, "failOnDataLoss", default=True),
        details=details,
        kafka=kafka,
        maps_properties=maps,
        checks=_flag(found, "verify", default=True),
        inflates=_flag(found, "inflate", default=True),
        write_to=places.get("writeTo"),
    )


def _check_batch(found: Mapping[str, str], start: int, end: int) -> None:
    """Refuse options that make no sense in a batch query."""
    if "maxBytesPerTrigger" in found:
        raise ConfigError("maxBytesPerTrigger is for streaming queries", hint="leave it out")
    if start == LATEST or end == EARLIEST:
        name = "startingOffsets" if start == LATEST else "endingOffsets"
        raise ConfigError(f"{name} is {found[name].strip()}, so a batch query would read nothing")
    if end != LATEST and start > end:
        raise ConfigError(f"startingOffsets is {start}, behind endingOffsets, {end}")


def _word(found: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = found.get(name, known[0]).lower()
    if value not in known:
        hint = did_you_mean(value, known) or f"one of {', '.join(word for word in known if word)}"
        raise ConfigError(f"{name}={found[name]!r} is not known", hint=hint)
    return value


def _flag(found: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _word({name: found.get(name, str(default))}, name, ("true", "false")) == "true"


def _number(found: Mapping[str, str], name: str, least: int) -> int:
    text = found[name].strip()
    if not _is_number(text) or int(text) < least:
        raise ConfigError(f"{name}={found[name]!r} is no whole number of at least {least}")
    return int(text)


def _offset(found: Mapping[str, str], name: str, default: int) -> int:
    text = found.get(name, "").strip().lower()
    if not text:
        return default
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if not _is_number(text):
        raise ConfigError(f"{name}={found[name]!r} is neither earliest nor latest nor a log offset")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def position_json(broker_name: str, position: LogPosition) -> dict[str, dict[str, int]]:
    """Return a position in the form that Spark keeps in a checkpoint."""
    return {broker_name: {"offset": position.log_offset, "epoch": position.epoch}}


def parse_position(kept: Mapping[str, Mapping[str, int]], broker_name: str) -> LogPosition:
    """Parse the position that a checkpoint holds.

    Raises:
        ConfigError: the checkpoint belongs to another broker group.
    """
    if broker_name not in kept:
        raise ConfigError(
            f"the checkpoint belongs to {json.dumps(list(kept))}, the log to {broker_name!r}",
            hint="use one checkpoint per log, or set brokerName to its earlier value",
        )
    return LogPosition(int(kept[broker_name]["offset"]), int(kept[broker_name]["epoch"]))
