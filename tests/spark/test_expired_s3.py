"""Credentials that expire while a command runs: one line, exit code 1, and the repeated command completes the work."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.removal import remove_from_log
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.lake import lease
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.lake.rows import read_files
from tandemq.spark.runtime.location import Location
from tests.spark.lakes import are_same, offsets_in
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, send
from tests.spark.s3 import S3, Expiring, expiring_proxy
from tests.spark.s3 import SECRET as PASSWORD
from tests.spark.test_log_s3 import get_log, put_log
from tests.spark.test_removal import BY_KEY, SECRET, made_log
from tests.spec import spec

DATA = "/part-"


@pytest.fixture(scope="module")
def module_proxy(s3: S3) -> Iterator[Expiring]:
    with expiring_proxy(s3) as proxy:
        yield proxy


@pytest.fixture
def proxy(module_proxy: Expiring) -> Expiring:
    """The proxy, with credentials that are valid at first."""
    module_proxy.renew()
    return module_proxy


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "broker-a")
    made.write_many(200)
    return made


def run(proxy: Expiring, *words: object) -> Any:
    options = [word for name, value in proxy.options.items() for word in ("--storage-option", f"{name}={value}")]
    result = CliRunner().invoke(main, ["spark", *map(str, words), "--json", *options])
    assert PASSWORD not in result.output
    return result


def fails(proxy: Expiring, method: str, text: str, count: int, *words: object) -> str:
    """Run a command whose credentials expire, and renew them; returns the error."""
    proxy.expire(method, text, count)
    failed = run(proxy, *words)
    proxy.renew()
    assert failed.exit_code == 1, failed.output
    (line,) = failed.stderr.splitlines()
    assert "the credentials have expired" in line
    assert "renew them and repeat the command" in line
    assert failed.stdout == ""
    return str(line)


def ends(proxy: Expiring, *words: object) -> Any:
    """Run a command with valid credentials; returns its result."""
    done = run(proxy, *words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def fails_then_ends(proxy: Expiring, method: str, text: str, count: int, *words: object) -> Any:
    """Run a command whose credentials expire, then again with new ones; returns the second result."""
    fails(proxy, method, text, count, *words)
    return ends(proxy, *words)


def archived(spark: SparkSession, proxy: Expiring, writer: LogWriter) -> Location:
    """An archive of the log."""
    lake = proxy.new_lake()
    Archive(ArchiveOptions(store=writer.store, lake=lake)).run(spark)
    return lake


@spec("P01", "P37")
def test_archive_continues_after_its_credentials_expired(
    spark: SparkSession, proxy: Expiring, writer: LogWriter
) -> None:
    lake = proxy.new_lake()
    words = ("archive", writer.store, lake.url, "--batch-bytes", 10_000)
    done = fails_then_ends(proxy, "PUT", DATA, 2, *words)
    assert 0 < done["rows"] < 200
    assert offsets_in(spark, lake) == [one.log_offset for one in writer.made]


@pytest.mark.slow
@spec("P17", "P37")
def test_collect_continues_after_its_credentials_expired(
    spark: SparkSession, proxy: Expiring, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, proxy.new_lake()
    make_topic(names, "Expiring", 2)
    send(names, numbered("Expiring", 0, 60))
    words = ("collect", lake.url, "--namesrv", names, "--subscribe", "Expiring", "--batch-messages", 20)
    done = fails_then_ends(proxy, "PUT", DATA, 1, *words, "--checkpoint", tmp_path / "checkpoint")
    assert 0 < done["rows"] <= 60
    table = DeltaLake(lake)
    rows = read_files(spark, table, table.data_files(), ["body"]).collect()
    assert sorted(int(row.body) for row in rows) == list(range(60))


@pytest.mark.slow
@spec("P05", "P37")
def test_audit_is_repeated_after_its_credentials_expired(s3: S3, proxy: Expiring, writer: LogWriter) -> None:
    place = put_log(s3, writer.store)
    done = fails_then_ends(proxy, "GET", "/commitlog/0", 1, "audit", writer.store, place.url)
    assert (done["diverges_at"], done["bytes_equal"], done["lost"]) == (None, writer.end, [])


@pytest.mark.slow
@spec("P24", "P37")
def test_state_is_repeated_after_its_credentials_expired(
    spark: SparkSession, proxy: Expiring, writer: LogWriter, tmp_path: Path
) -> None:
    lake = archived(spark, proxy, writer)
    words = ("state", lake.url, "T0", "--output", tmp_path / "out")
    assert fails_then_ends(proxy, "GET", DATA, 0, *words)["messages"] == 100
    assert spark.read.parquet(str(tmp_path / "out")).count() == 100


@pytest.mark.slow
@spec("P23", "P37")
def test_expire_is_completed_after_its_credentials_expired(
    spark: SparkSession, proxy: Expiring, writer: LogWriter
) -> None:
    lake = archived(spark, proxy, writer)
    words = ("expire", lake.url, "--older-than", "1d", "--topic", "T0")
    assert fails_then_ends(proxy, "PUT", DATA, 0, *words)["rows"] == 100
    assert offsets_in(spark, lake) == [one.log_offset for one in writer.made if one.topic == "T1"]


@pytest.mark.slow
@spec("P22", "P37")
def test_removal_from_a_lake_is_completed_after_its_credentials_expired(
    spark: SparkSession, proxy: Expiring, tmp_path: Path
) -> None:
    writer, secret = made_log(tmp_path / "broker-a", 120)
    lake = archived(spark, proxy, writer)
    done = fails_then_ends(proxy, "PUT", DATA, 0, "remove", "--lake", lake.url, "--key", SECRET)
    (found,) = done["results"]
    assert (done["complete"], found["messages"], found["foundAfter"]) == (True, len(secret), 0)
    assert offsets_in(spark, lake) == [one.log_offset for one in writer.made]


@pytest.mark.slow
@spec("P22", "P37")
def test_removal_from_log_files_is_completed_after_its_credentials_expired(
    spark: SparkSession, s3: S3, proxy: Expiring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, secret = made_log(tmp_path / "broker-a")
    place = put_log(s3, writer.store)
    words = ("remove", "--log", place.url, "--key", SECRET)
    began_s = int(time.time())
    line = fails(proxy, "PUT", "/commitlog/0", 1, *words)
    until = re.search(r"not before (\d\d:\d\d:\d\d) UTC: until then this run holds the lease", line)
    assert until is not None, line
    possible = range(began_s, int(time.time()) + 2)
    assert until[1] in {time.strftime("%H:%M:%S", time.gmtime(at + lease.HELD_MS // 1000)) for at in possible}
    refused = run(proxy, *words)  # the lease could not be released either
    assert (refused.exit_code, "repeat the command in" in refused.stderr) == (1, True), refused.output
    later = time.time_ns() + (lease.HELD_MS + 1) * 1_000_000
    monkeypatch.setattr("tandemq.spark.lake.lease.time.time_ns", lambda: later)
    done = ends(proxy, *words)
    (found,) = done["results"]
    assert done["complete"]
    assert 0 < found["messages"] < len(secret), "one file was replaced before"
    assert (found["foundAfter"], scrub(spark, place).damages) == (0, [])
    remove_from_log(spark, writer.store, BY_KEY)
    assert are_same(writer.store, get_log(s3, place, tmp_path / "after"))
