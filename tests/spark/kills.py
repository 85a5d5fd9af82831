"""Kills drivers of the archive one after another, and counts the rows of the table at the end."""

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.lake.formats import open_lake
from tests.spark.archiver import BATCH_BYTES
from tests.spark.logs import LogWriter

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 800
KILLS = 24
RECORDS = 200
"""Records written before each driver starts."""
MOMENT_S = 10.0
"""Approximate lifetime of a driver, from its first query on."""


@dataclass(slots=True)
class Killed:
    """Number of killed drivers by kind, and of records missing or duplicated."""

    kinds: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    duplicated: int = 0


def kill(store: Path, lake: Path | str, when: str, number: float) -> int:
    """Run a driver that archives until it kills itself; returns its exit code, 0 if it finished before that."""
    words = [sys.executable, "-m", "tests.spark.archiver", str(store), str(lake), when, str(number)]
    with subprocess.Popen(words, cwd=ROOT, start_new_session=True) as process:
        return process.wait(SECONDS_MAX)


def count(spark: SparkSession, writer: LogWriter, lake: Path | str) -> Killed:
    """Archive the rest, and compare the table with the log, record by record."""
    Archive(ArchiveOptions(store=writer.store, lake=lake, bytes_max=BATCH_BYTES)).run(spark)
    rows = spark.read.parquet(*open_lake(lake).data_files()).select("commitLogOffset").collect()
    held = Counter(row.commitLogOffset for row in rows)
    wanted = {made.log_offset for made in writer.made}
    assert held.keys() <= wanted, "the table has records that the log has not"
    return Killed(records=len(wanted), lost=len(wanted - held.keys()), duplicated=sum(held.values()) - len(held))


def kill_many(
    spark: SparkSession,
    root: Path,
    kills: int = KILLS,
    report: Callable[[Counter[str]], None] = lambda _: None,
    *,
    lake: str | None = None,
    whens: Sequence[str] = ("time", "commit"),
) -> Killed:
    """Kill drivers, by turns at a random moment, between the table's commit and Spark's, and before the first one, then
    count.

    Args:
        report: called after each of them.
        lake: by default a directory.
        whens: the turns, as `tests.spark.archiver` names them.
    """
    dice = random.Random(7)
    writer, lake = LogWriter(root / "broker-a"), lake or str(root / "lake")
    kinds: Counter[str] = Counter()
    number = 0
    while kinds.total() < kills:
        writer.write_many(RECORDS)
        when = whens[number % len(whens)]
        moment = dice.uniform(0.0, MOMENT_S) if when == "time" else dice.randrange(2)
        code = kill(writer.store, lake, when, moment)
        assert code in (0, -signal.SIGKILL), f"a driver ended with {code}"
        kinds[when] += code != 0
        number += 1
        report(kinds)
    found = count(spark, writer, lake)
    found.kinds = kinds
    return found
