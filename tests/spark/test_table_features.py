"""Tables whose files do not contain exactly their rows: refused by every job, also if they become so meanwhile."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tandemq.errors import ConfigError
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.sources.log.parquet_writer import lake_schema
from tests.spark.test_lake import ROWS, held, made_lake
from tests.spec import spec

VECTOR = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 44,
    "cardinality": 6,
}
"""Six rows of a file, in the form of the Delta protocol (its example)."""


FILE = {"partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}


def log_file(lake: DeltaLake, version: int) -> Path:
    return lake.path / "_delta_log" / f"{version:020d}.json"


def append(lake: DeltaLake, *actions: dict[str, Any]) -> int:
    """Commit some actions as another tool; returns the version."""
    version = DeltaTable(str(lake.path)).version() + 1
    log_file(lake, version).write_text("\n".join(map(json.dumps, actions)))
    return version


def protocol(*features: str) -> dict[str, Any]:
    names = list(features)
    return {
        "protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}
    }


def mapped_columns(path: Path) -> list[dict[str, Any]]:
    """Actions that map the columns of a table, as `delta.columnMapping.mode = name` does."""
    first = (path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    (metadata,) = [one["metaData"] for one in map(json.loads, first) if "metaData" in one]
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    settings = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(schema["fields"]))}
    metadata |= {"schemaString": json.dumps(schema), "configuration": settings}
    return [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}]


def delete_rows(lake: DeltaLake) -> tuple[dict[str, Any], int]:
    """Delete six rows of a file by a deletion vector; returns the action that added the file, and the version."""
    newest = DeltaTable(str(lake.path)).version()
    (add,) = [one["add"] for one in map(json.loads, log_file(lake, newest).read_text().splitlines()) if "add" in one]
    remove = {"path": add["path"], "deletionTimestamp": add["modificationTime"], "dataChange": True}
    version = append(lake, protocol("deletionVectors"), {"remove": remove}, {"add": add | {"deletionVector": VECTOR}})
    return add, version


@spec("P36")
def test_table_with_deletion_vectors_is_refused_until_they_are_purged(tmp_path: Path) -> None:
    lake = made_lake(tmp_path / "lake")
    files = lake.data_files()
    before = DeltaTable(str(lake.path)).version()
    add, version = delete_rows(lake)
    jobs = (
        lambda: DeltaLake(lake.path),
        lake.data_files,
        lake.compact,
        lambda: lake.vacuum(0),
        lambda: lake.mark("batch"),
        lambda: lake.data_files_within(0, 1 << 40),
    )
    for job in jobs:
        with pytest.raises(ConfigError, match="has deletion vectors: its files still have deleted rows") as refused:
            job()
        assert f"run REORG TABLE delta.`{lake.path}` APPLY (PURGE)" in str(refused.value)
    assert DeltaTable(str(lake.path)).version() == version
    with pytest.raises(ConfigError, match=f"version {version} of .* has deletion vectors.*give another version"):
        lake.data_files_of(version)
    assert sorted(lake.data_files_of(before)) == sorted(files)
    gone = {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True, "deletionVector": VECTOR}}
    append(lake, gone, {"add": add})  # a purge; the rows of the file do not matter here
    assert len(held(DeltaLake(lake.path))) == len(held(lake)) == ROWS
    assert lake.compact()["filesAdded"] == 1


@spec("P36")
def test_table_with_an_unknown_feature_is_refused(tmp_path: Path) -> None:
    lake = made_lake(tmp_path / "lake")
    version = append(lake, protocol("typeWidening"))
    for job in (lambda: DeltaLake(lake.path), lake.data_files, lake.compact):
        with pytest.raises(ConfigError, match="has the table feature typeWidening, which is not supported") as refused:
            job()
        assert "DROP FEATURE typeWidening" in str(refused.value)
    assert DeltaTable(str(lake.path)).version() == version


@spec("P36")
def test_tables_with_partitions_or_mapped_columns_are_refused(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([], schema=lake_schema())
    write_deltalake(str(tmp_path / "partitioned"), rows, partition_by=["topic", "queueId"])
    with pytest.raises(ConfigError, match=r"is partitioned by topic, queueId.*write it without partitions"):
        DeltaLake(tmp_path / "partitioned")
    lake = made_lake(tmp_path / "lake")
    version = append(lake, *mapped_columns(lake.path))
    for job in (lambda: DeltaLake(lake.path), lake.data_files, lake.compact, lake.old_files, lake.sizes):
        with pytest.raises(ConfigError, match=r"maps column names \(delta.columnMapping.mode\).*copy it into a table"):
            job()
    assert DeltaTable(str(lake.path)).version() == version


@spec("P36")
@pytest.mark.parametrize("outside", ["s3://bucket/other/part-0.parquet", "file:/data/other/part-0.parquet", "/data/p"])
def test_shallow_clone_is_refused(tmp_path: Path, outside: str) -> None:
    lake = made_lake(tmp_path / "lake")
    version = append(lake, {"add": FILE | {"path": outside}})
    for job in (lake.data_files, lake.compact, lambda: lake.data_files_of(version)):
        with pytest.raises(ConfigError, match=f"is a shallow clone: its file {outside} belongs to another table"):
            job()
    assert DeltaTable(str(lake.path)).version() == version


def test_features_that_leave_rows_in_files_are_read(tmp_path: Path) -> None:
    lake = made_lake(tmp_path / "lake")
    append(lake, protocol("deletionVectors", "timestampNtz", "v2Checkpoint"))
    assert len(held(lake)) == ROWS
    assert lake.compact()["filesAdded"] == 1
    assert len(held(DeltaLake(lake.path))) == ROWS
