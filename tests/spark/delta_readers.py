"""Reads a Delta or an Iceberg table with DuckDB or Polars, in an environment that has these and not ours: rows as JSON.

Bytes are shown as hexadecimal digits, times as microseconds.
"""

import importlib
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

EPOCH_S = 1_000_000


def of_duckdb(table: str) -> list[dict[str, Any]]:
    """Return the rows, read by DuckDB's extension for Delta."""
    import duckdb  # type: ignore[import-not-found]
    import duckdb_extension_delta  # type: ignore[import-not-found]

    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.load_extension(str(extension))
    found = connection.execute("SELECT * FROM delta_scan(?)", [table])
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def of_duckdb_from_iceberg(table: str) -> list[dict[str, Any]]:
    """Return the rows, read by DuckDB's extension for Iceberg from a REST catalogue: URL#namespace.table."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in ("avro", "httpfs", "iceberg"):
        package = importlib.import_module(f"duckdb_extension_{name}")
        (extension,) = Path(str(package.__file__)).parent.rglob(f"{name}.duckdb_extension")
        connection.load_extension(str(extension))
    url, _, name = table.partition("#")
    connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")
    found = connection.execute(f"SELECT * FROM lake.{name}")
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def of_polars_from_iceberg(table: str) -> list[dict[str, Any]]:
    """Return the rows, read by Polars from a metadata file."""
    import polars as pl  # type: ignore[import-not-found]

    rows: list[dict[str, Any]] = pl.scan_iceberg(table).collect().to_dicts()
    return rows


def of_polars(table: str) -> list[dict[str, Any]]:
    """Return the rows, read lazily by Polars."""
    import polars as pl

    rows: list[dict[str, Any]] = pl.scan_delta(table).collect().to_dicts()
    return rows


def shown(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return round(value.timestamp() * EPOCH_S)
    return value


if __name__ == "__main__":
    reader, path = sys.argv[1:3]
    readers = {
        "duckdb": of_duckdb,
        "duckdb-iceberg": of_duckdb_from_iceberg,
        "polars": of_polars,
        "polars-iceberg": of_polars_from_iceberg,
    }
    for one in readers[reader](path):
        print(json.dumps({name: shown(value) for name, value in one.items()}))
