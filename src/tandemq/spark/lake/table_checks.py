"""Checks of the form of a table, mostly of Delta, before anything is read or written.

Source: docs/guides/pipeline-lakes.md; Delta protocol, "table features".
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tandemq.errors import ConfigError
from tandemq.spark.runtime.local_paths import scheme_of
from tandemq.spark.runtime.location import Location
from tandemq.spark.sources.schema import did_you_mean

MAPPING = "delta.columnMapping.mode"
DELETIONS = "deletionVectors"
_MAPPED = (f"maps column names ({MAPPING}), which is not supported", "copy it into a table without this property")
READABLE = frozenset({DELETIONS, "columnMapping", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Reader features with which files contain exactly the table's rows, apart from the first two, which are checked."""


def check_table(location: Location, table: DeltaTable, wanted: Any) -> None:
    """Refuse a table that is no lake of messages, or that has features which are not read here.

    Raises:
        ConfigError: names the feature, or the first column that is missing, unknown, or of another type.
    """
    metadata = table.metadata()
    if metadata.partition_columns:
        raise ConfigError(
            f"{location} is partitioned by {', '.join(metadata.partition_columns)}; lakes of messages are not",
            hint="write it without partitions; nothing was written",
        )
    check_features(location, table)
    check_schema(location, pa.schema(table.schema().to_arrow()), wanted)


def mapped_names(location: Location) -> ConfigError:
    """Return the error for a table that maps column names."""
    return ConfigError(f"{location} {_MAPPED[0]}; nothing was read or written", hint=_MAPPED[1])


def check_features(
    location: Location, table: DeltaTable, version: int | None = None, *, allows_mapped: bool = False
) -> None:
    """Refuse a table whose files do not contain exactly its rows: jobs read the files themselves.

    Args:
        version: of the table, if it is not the newest.
        allows_mapped: for callers that leave files to delta-rs, which knows mapped column names.
    Raises:
        ConfigError: names the feature, and the command of Delta's own library that removes it.
    """
    features = set(table.protocol().reader_features or ())
    found, hint = "", ""
    is_mapped = "columnMapping" in features or table.metadata().configuration.get(MAPPING, "none") != "none"
    if is_mapped and not allows_mapped:
        found, hint = _MAPPED
    elif DELETIONS in features and any(batch.num_rows for batch in pa.table(table.deletion_vectors()).to_batches()):
        found = "has deletion vectors: its files still have deleted rows"
        hint = f"run REORG TABLE delta.`{location}` APPLY (PURGE) in Spark with Delta's library, then repeat"
    elif features - READABLE:
        name = min(features - READABLE)
        found = f"has the table feature {name}, which is not supported"
        hint = f"ALTER TABLE delta.`{location}` DROP FEATURE {name}, or copy it into another table"
    if found:
        which = str(location) if version is None else f"version {version} of {location}"
        if version is not None:
            hint = "give another version, or read this one with Delta's library"
        raise ConfigError(f"{which} {found}; nothing was read or written", hint=hint)


def check_names(location: Location, names: Sequence[str]) -> None:
    """Refuse a table with files outside of its directory.

    Raises:
        ConfigError: names one.
    """
    outside = next((name for name in names if name.startswith("/") or scheme_of(name) is not None), None)
    if outside is not None:
        raise ConfigError(
            f"{location} is a shallow clone: its file {outside} belongs to another table; nothing was read or written",
            hint="give that table, or copy this one: CREATE TABLE … AS SELECT",
        )


def check_schema(location: object, found: Any, wanted: Any) -> None:
    """Refuse a table with other columns.

    Args:
        location: name of the table in error messages.
        found, wanted: Arrow schemas.
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
