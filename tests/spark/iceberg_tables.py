"""Iceberg tables for tests: a catalogue in pyiceberg's configuration, and what is in a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config

from tandemq.spark.lake.iceberg import IcebergLake
from tandemq.spark.runtime.location import locate

CATALOGUE = "tests"


def configure(monkeypatch: pytest.MonkeyPatch, options: Mapping[str, str]) -> None:
    """Configure the catalogue, in this process and in those that it starts."""
    for name, value in options.items():
        variable = name.upper().replace("-", "_").replace(".", "__")
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOGUE.upper()}__{variable}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def configure_sqlite(monkeypatch: pytest.MonkeyPatch, directory: Path, **options: str) -> None:
    """Configure a catalogue in a file of SQLite."""
    given = {"type": "sql", "uri": f"sqlite:///{directory}/catalogue.db", "warehouse": f"file://{directory}/warehouse"}
    configure(monkeypatch, given | options)


def opened(table: str, *, create: bool = False) -> IcebergLake:
    """Open a table by its name in the catalogue."""
    return IcebergLake(locate(f"iceberg://{CATALOGUE}/{table}", "the lake"), create=create)


def offsets_of(lake: IcebergLake) -> list[int]:
    """Return the log offsets of the rows that pyiceberg reads, ascending."""
    lake.rows()
    found: list[Any] = lake._table.scan(selected_fields=("commitLogOffset",)).to_arrow().column(0).to_pylist()
    return sorted(found)
