"""Checks of the form of a Delta table, before anything is read or written.

Source: docs/guides/pipeline-lakes.md; Delta protocol, "reader features".
"""

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tandemq.errors import ConfigError
from tandemq.spark.runtime.location import Location
from tandemq.spark.sources.schema import did_you_mean

MAPPING = "delta.columnMapping.mode"


def check_table(location: Location, table: DeltaTable, wanted: Any) -> None:
    """Refuse a table that is no lake of messages, or that has features which are not read here.

    Raises:
        ConfigError: names the feature, or the first column that is missing, unknown, or of another type.
    """
    metadata, features = table.metadata(), set(table.protocol().reader_features or ())
    if metadata.partition_columns:
        raise ConfigError(
            f"{location} is partitioned by {', '.join(metadata.partition_columns)}; lakes of messages are not",
            hint="write it without partitions; nothing was written",
        )
    if "columnMapping" in features or metadata.configuration.get(MAPPING, "none") != "none":
        raise ConfigError(
            f"{location} maps column names ({MAPPING}), which is not supported; nothing was written",
            hint="copy it into a table without this property",
        )
    _check_schema(location, pa.schema(table.schema().to_arrow()), wanted)


def _check_schema(location: Location, found: Any, wanted: Any) -> None:
    """Refuse a table with other columns.

    Raises:
        ConfigError: names the first column that is missing, unknown, or of another type.
    """
    kinds = {field.name: field.type for field in found}
    for field in wanted:
        kind = kinds.get(field.name)
        if kind is None:
            raise ConfigError(
                f"{location} is a table without the column {field.name!r}",
                hint=did_you_mean(field.name, kinds) or "it is not a lake of messages; nothing was written",
            )
        if not _is_same_type(kind, field.type):
            raise ConfigError(
                f"{location}: column {field.name!r} is {kind}, {field.type} is needed; nothing was written"
            )
    unknown = [name for name in kinds if name not in wanted.names]
    if unknown:
        raise ConfigError(
            f"{location} is a table with a column {unknown[0]!r} that no message has; nothing was written"
        )


def _is_same_type(found: Any, wanted: Any) -> bool:
    """Return whether two Arrow types map to one Delta type: offset sizes and views do not matter."""
    for kinds in (
        (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    ):
        if any(kind(wanted) for kind in kinds):
            return any(kind(found) for kind in kinds)
    return bool(found == wanted)
