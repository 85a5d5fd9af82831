"""Formats of lakes: Delta tables in directories, Iceberg tables in catalogues.

Source: docs/guides/pipeline-lakes.md; decision 0020.
"""

from collections.abc import Mapping

from tandemq.errors import ConfigError
from tandemq.spark.lake.delta import DeltaLake, Lake
from tandemq.spark.runtime.location import ICEBERG, Location, Place, locate


def open_lake(place: Place, *, create: bool = False, options: Mapping[str, str] | None = None) -> Lake:
    """Open a lake, or create an empty one.

    Args:
        place: a path, a URL, the name of an Iceberg table (`iceberg://catalogue/namespace.table`), or a location.
        options: storage options of a URL.
    Raises:
        As `DeltaLake` and `IcebergLake`. ConfigError: the package for Iceberg is not installed.
    """
    found = locate(place, "the lake", options)
    if found.scheme != ICEBERG:
        return DeltaLake(found, create=create)
    try:
        from tandemq.spark.lake.iceberg import IcebergLake  # noqa: PLC0415  # pyiceberg comes with an extra of its own
    except ImportError as error:
        raise ConfigError(f"{found} needs pyiceberg: {error}", hint="pip install 'tandemq[iceberg]'") from error
    return IcebergLake(found, create=create)


def is_lake(place: Location) -> bool:
    """Return whether a location is one of a lake, existing or not if it is the name of a table."""
    return place.scheme == ICEBERG or bool(place.within("_delta_log").names())
