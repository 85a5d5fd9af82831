"""The lake without Spark: its files and their maintenance."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tandemq.errors import StoreLocked
from tandemq.spark.lake.delta import DataFile, DeltaLake
from tandemq.spark.sources.log.files import open_log
from tandemq.spark.sources.log.options import read_options
from tandemq.spark.sources.log.parquet_writer import write_ranges
from tandemq.spark.sources.log.ranges import split
from tests.spark.logs import LogWriter
from tests.spec import spec

ROOT = Path(__file__).resolve().parents[2]
ROWS = 500


def made_lake(path: Path) -> DeltaLake:
    """A lake with some small files."""
    writer = LogWriter(path.parent / "broker-a")
    writer.write_many(ROWS)
    lake = DeltaLake(path, create=True)
    files = open_log(writer.store)
    options = read_options({"path": str(writer.store), "writeTo": str(path)})
    for number, wanted in enumerate(split(files, 0, writer.end, 20_000)):
        (row,) = write_ranges(files, options, [wanted], lambda *lost: pytest.fail(str(lost))).to_pylist()
        lake.commit([DataFile(row["file"], row["rows"], row["bytes"], row["stats"])], {"batch": number})
    return lake


def held(lake: DeltaLake) -> list[int]:
    """Return the log offsets of all rows."""
    tables = [pq.read_table(path, columns=["commitLogOffset"]) for path in lake.data_files()]
    return sorted(offset for table in tables for offset in table.column(0).to_pylist())


@contextmanager
def compaction(lake: DeltaLake) -> Iterator["subprocess.Popen[str]"]:
    """A compaction in another process, which has begun and waits for a line."""
    words = [sys.executable, "-m", "tests.spark.compactor", str(lake.path)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process


@spec("P16")
def test_concurrent_compaction_is_refused_and_duplicates_nothing(tmp_path: Path) -> None:
    lake = made_lake(tmp_path / "lake")
    before, files = held(lake), len(lake.data_files())
    assert (len(before), files > 3) == (ROWS, True)
    with compaction(lake) as other:
        for care in (lake.compact, lambda: lake.vacuum(0)):
            with pytest.raises(StoreLocked, match="by another process; nothing was changed"):
                care()
        other.communicate("go on\n")
    assert other.returncode == 0
    assert held(lake) == before
    assert len(lake.data_files()) == 1
    assert len(lake.vacuum(0)) == files
    assert held(lake) == before


def test_killed_compaction_releases_the_lock(tmp_path: Path) -> None:
    lake = made_lake(tmp_path / "lake")
    with compaction(lake) as other:
        other.kill()
    assert lake.compact()["filesAdded"] == 1
    assert len(held(lake)) == ROWS
