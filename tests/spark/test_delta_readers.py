"""DuckDB and Polars read what our jobs and `Upsert` write, in the versions of requirements-readers.lock."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.lake.delta import DeltaLake
from tests.interop.grpc_clients import installed
from tests.spark import delta_readers
from tests.spark.delta_readers import shown
from tests.spark.installed import ROOT
from tests.spark.logs import LogWriter
from tests.spark.test_upsert import upsert
from tests.spec import spec


def read(reader: str, table: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a table, sorted."""
    lock = ROOT / "requirements-readers.lock"
    install = ["{}/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--require-hashes", "-r", str(lock)]
    directory = installed("delta-readers", [lock], [sys.executable, "-m", "venv", "{}"], install)
    words = [str(directory / "bin" / "python"), str(Path(delta_readers.__file__)), reader, str(table)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return in_order([json.loads(line) for line in done.stdout.splitlines()])


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def own(table: Path) -> list[dict[str, Any]]:
    """Return the rows as delta-rs reads them in our environment."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    times = [field.name for field in rows.schema if pa.types.is_timestamp(field.type)]
    assert all(rows.schema.field(name).type.tz == "UTC" for name in times)
    return in_order([{name: shown(value) for name, value in row.items()} for row in rows.to_pylist()])


@spec("P42")
@pytest.mark.timeout(900)
def test_readers_of_others_get_the_rows_of_our_tables(spark: SparkSession, tmp_path: Path) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    for count in (400, 300):
        writer.write_many(count)
        Archive(ArchiveOptions(store=writer.store, lake=lake)).run(spark)
    expected = own(lake)
    assert [row["body"] for row in sorted(expected, key=lambda row: row["commitLogOffset"])] == [
        made.body.hex() for made in writer.made
    ]
    merged = tmp_path / "merged"
    upsert(merged, [("a", 1, 1), ("b", 2, 1)], 0)
    upsert(merged, [("a", 5, 2)], 1)
    for reader in ("duckdb", "polars"):
        assert read(reader, lake) == expected
        assert read(reader, merged) == own(merged)
    assert DeltaLake(lake).compact()["filesRemoved"] > 1
    for reader in ("duckdb", "polars"):
        assert read(reader, lake) == expected
