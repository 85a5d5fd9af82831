"""Upserts of micro-batches: one version of each row, each batch once, and nothing written after an error."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tandemq.errors import ConfigError, LocalError
from tandemq.spark.lake.upsert import Upsert
from tests.spark.test_table_features import mapped_columns
from tests.spec import spec

SCHEMA = pa.schema([("order", pa.string()), ("cents", pa.int64()), ("version", pa.int64())])


class Frame:
    """A micro-batch of a query; counts how often its rows are computed."""

    def __init__(self, rows: list[tuple[Any, ...]], query: str | None = "q", schema: Any = SCHEMA) -> None:
        context = SimpleNamespace(getLocalProperty=lambda _name: query)
        self.sparkSession = SimpleNamespace(sparkContext=context)
        self._rows = pa.table([list(column) for column in zip(*rows, strict=True)] or [[]] * len(schema), schema=schema)
        self.computed = 0

    def toArrow(self) -> Any:
        self.computed += 1
        return self._rows


def upsert(path: Path, rows: list[tuple[Any, ...]], batch: int, query: str | None = "q", **options: Any) -> Frame:
    frame = Frame(rows, query)
    call: Any = Upsert(path, ["order"], **options)
    call(frame, batch)
    return frame


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@spec("P18")
def test_rows_are_inserted_and_replaced_by_key(path: Path) -> None:
    upsert(path, [("a", 1, 1), ("b", 2, 1)], 0)
    upsert(path, [("b", 3, 1), ("c", 4, 1)], 1)
    assert rows_of(path) == [("a", 1, 1), ("b", 3, 1), ("c", 4, 1)]


@spec("P18")
def test_repeated_batch_is_computed_for_its_state_and_not_merged(path: Path) -> None:
    upsert(path, [("a", 1, 1)], 0)
    version = DeltaTable(str(path)).version()
    frame = upsert(path, [("a", 99, 1)], 0)
    assert frame.computed == 1
    assert rows_of(path) == [("a", 1, 1)]
    assert DeltaTable(str(path)).version() == version


@spec("P18")
def test_batches_of_another_checkpoint_are_merged(path: Path) -> None:
    upsert(path, [("a", 1, 1)], 5)
    upsert(path, [("a", 2, 1)], 0, query="new")
    assert rows_of(path) == [("a", 2, 1)]


def test_latest_version_of_a_row_remains_in_any_order(path: Path) -> None:
    upsert(path, [("a", 1, 1), ("a", 3, 3), ("a", 2, 2), ("b", 7, 7)], 0, latest="version")
    assert rows_of(path) == [("a", 3, 3), ("b", 7, 7)]
    upsert(path, [("a", 2, 2), ("b", 8, 8)], 1, latest="version")
    assert rows_of(path) == [("a", 3, 3), ("b", 8, 8)]


def test_row_of_the_table_without_a_version_is_replaced(path: Path) -> None:
    write_deltalake(str(path), pa.table([["a", "b"], [1, 2], [None, 5]], schema=SCHEMA))
    upsert(path, [("a", 2, 2), ("b", 3, 4), ("c", 1, 1)], 0, latest="version")
    assert rows_of(path) == [("a", 2, 2), ("b", 2, 5), ("c", 1, 1)]
    with pytest.raises(LocalError, match="a row has no value in column 'version'"):
        upsert(path, [("a", 3, None)], 1, latest="version")


def test_empty_batch_makes_no_table(path: Path) -> None:
    assert upsert(path, [], 0).computed == 1
    assert not path.exists()


def test_wrong_rows_are_refused_and_nothing_is_written(path: Path) -> None:
    upsert(path, [("a", 1, 1)], 0)
    before = DeltaTable(str(path)).version()
    with pytest.raises(LocalError, match="two rows of a micro-batch have the same order"):
        upsert(path, [("b", 1, 1), ("b", 2, 2)], 1)
    with pytest.raises(LocalError, match="a row has no value in column 'order'"):
        upsert(path, [(None, 1, 1)], 1)
    with pytest.raises(ConfigError, match="the rows have no column 'at'"):
        upsert(path, [("b", 1, 1)], 1, latest="at")
    other: Any = Frame([("b", "1")], schema=pa.schema([("order", pa.string()), ("cents", pa.string())]))
    with pytest.raises(ConfigError, match="differ in column 'cents'"):
        Upsert(path, ["order"])(other, 1)
    assert DeltaTable(str(path)).version() == before


@spec("P36")
def test_rows_are_merged_into_tables_with_partitions_and_with_mapped_columns(path: Path) -> None:
    rows = pa.table([["a", "b"], [1, 2], [1, 1]], schema=SCHEMA)
    write_deltalake(str(path), rows, partition_by=["version"])
    upsert(path, [("a", 2, 2), ("c", 3, 3)], 0)
    assert rows_of(path) == [("a", 2, 2), ("b", 2, 1), ("c", 3, 3)]
    mapped = path.with_name("mapped")
    write_deltalake(str(mapped), rows.slice(0, 0))
    log = mapped / "_delta_log" / f"{1:020d}.json"
    log.write_text("\n".join(map(json.dumps, mapped_columns(mapped))))
    upsert(mapped, [("a", 1, 1), ("b", 1, 1)], 1)
    upsert(mapped, [("b", 2, 2), ("c", 3, 3)], 2)
    (newest, *_) = sorted(mapped.rglob("*.parquet"), key=lambda one: one.stat().st_mtime_ns, reverse=True)
    assert pq.read_schema(newest).names == ["col-1", "col-2", "col-3"]


def test_wrong_use_says_what_to_do(path: Path) -> None:
    with pytest.raises(LocalError, match="no micro-batch of a streaming query"):
        upsert(path, [("a", 1, 1)], 0, query=None)
    with pytest.raises(ConfigError, match="an upsert needs a key"):
        Upsert(path, [])
    with pytest.raises(ConfigError, match="ftp:// is not supported"):
        Upsert("ftp://host/table", ["order"])
