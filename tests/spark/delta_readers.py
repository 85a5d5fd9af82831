"""Reads a Delta table with DuckDB or Polars, in an environment that has these and not ours: rows as JSON.

Bytes are shown as hexadecimal digits, times as microseconds.
"""

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


def of_polars(table: str) -> list[dict[str, Any]]:
    """Return the rows, read lazily by Polars."""
    import polars as pl  # type: ignore[import-not-found]

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
    for one in {"duckdb": of_duckdb, "polars": of_polars}[reader](path):
        print(json.dumps({name: shown(value) for name, value in one.items()}))
