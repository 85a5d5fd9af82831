"""Lakes in Iceberg with a real catalogue server: each record once, whatever is killed, the driver or the catalogue."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError, LocalError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.replay import replay_to_store
from tandemq.spark.jobs.stats import gather
from tandemq.spark.lake import catalogue as calls
from tandemq.spark.lake.delta import DataFile
from tandemq.spark.lake.iceberg import IcebergLake
from tandemq.spark.runtime.session import open_session
from tests.interop.java import JavaJars
from tests.interop.rest_catalogue import VERSION, RestCatalogue
from tests.spark.delta_readers import shown
from tests.spark.iceberg_tables import CATALOGUE, configure, offsets_of, opened
from tests.spark.installed import installed
from tests.spark.kills import ROOT, count, kill, kill_many
from tests.spark.lakes import WRITERS, Died, are_same, die
from tests.spark.logs import LogWriter
from tests.spark.short import SHORT
from tests.spark.test_delta_readers import in_order, read
from tests.spec import spec

SECRET = "hidden-of-the-catalogue"
FILE = DataFile("part-x.parquet", 1, 1, '{"numRecords": 1}')
KILLS = 12
LATER = "TIMESTAMP '2100-01-01 00:00:00'"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogue]:
    with RestCatalogue(tmp_path_factory.mktemp("catalogue")) as server:
        yield server


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session, _ = open_session("interop", master="local[2]", settings=SHORT)
    yield session
    session.stop()


@pytest.fixture
def table(server: RestCatalogue, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Name of a table that does not exist yet."""
    user = {"credential": f"tandemq:{SECRET}", "oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}
    configure(monkeypatch, {"type": "rest", "uri": server.url} | user)
    return f"messages.{request.node.name}"


def url_of(table: str) -> str:
    return f"iceberg://{CATALOGUE}/{table}"


@spec("P46")
def test_drivers_killed_around_the_commit_lose_and_duplicate_nothing(
    spark: SparkSession, table: str, tmp_path: Path
) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(500)
    held = 0
    for when, number in (("files", 1), ("commit", 1)):
        assert kill(writer.store, url_of(table), when, number) == -signal.SIGKILL
        rows = opened(table).rows()
        assert held < rows < 500
        held = rows
    lake = opened(table)
    written = len(list(lake.location.path.glob("*.parquet")))
    assert written > len(lake.data_files())
    found = count(spark, writer, url_of(table))
    assert (found.records, found.lost, found.duplicated) == (500, 0, 0)
    assert offsets_of(lake) == [made.log_offset for made in writer.made]


@spec("P46")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_kills_at_random_and_around_the_commit_lose_and_duplicate_nothing(
    spark: SparkSession, table: str, tmp_path: Path
) -> None:
    found = kill_many(spark, tmp_path, KILLS, lake=url_of(table), whens=("time", "commit", "files"))
    assert found.kinds.total() == KILLS
    assert min(found.kinds[when] for when in ("time", "commit", "files")) > 0
    assert (found.lost, found.duplicated) == (0, 0)


@spec("P46")
def test_repeated_batch_is_in_the_table_once_and_jobs_read_it(spark: SparkSession, table: str, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(200)
    options = ArchiveOptions(store=writer.store, lake=url_of(table), bytes_max=30_000)
    with pytest.raises(Exception, match="Died") as caught:
        Archive(options, after_commit=die).run(spark)
    assert Died.__name__ in str(caught.value)
    assert 0 < opened(table).rows() < 200
    assert Archive(options).run(spark).end == writer.end
    lake = opened(table)
    made = [one.log_offset for one in writer.made]
    assert offsets_of(lake) == made
    files = len(lake.data_files())
    assert lake.compact() == {"filesAdded": 1, "filesRemoved": files}
    assert len([name for name in lake.vacuum(0) if name.startswith("part-")]) == files
    assert offsets_of(lake) == made
    assert sum(row["messages"] for row in gather(spark, url_of(table)).topics) == 200
    replay_to_store(spark, url_of(table), "broker-a", tmp_path / "restored", segment_bytes=writer.segment_bytes)
    assert are_same(writer.store, tmp_path / "restored")


@spec("P46")
def test_pyiceberg_duckdb_and_polars_read_the_rows(
    spark: SparkSession, server: RestCatalogue, table: str, tmp_path: Path
) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    for number in (150, 100):
        writer.write_many(number)
        Archive(ArchiveOptions(store=writer.store, lake=url_of(table))).run(spark)
    for _ in range(2):
        lake = opened(table)
        rows = lake._table.scan().to_arrow().to_pylist()
        expected = in_order([{name: shown(value) for name, value in row.items()} for row in rows])
        assert sorted(row["body"] for row in expected) == sorted(made.body.hex() for made in writer.made)
        assert read("duckdb-iceberg", f"{server.url}#{table}") == expected
        assert read("polars-iceberg", str(lake._table.metadata_location)) == expected
        lake.compact()


@contextmanager
def library(server: RestCatalogue) -> Iterator[Callable[[str], list[list[Any]]]]:
    """A driver with Iceberg's own library for Spark; yields what runs a statement on it."""
    jars = ",".join(str(jar) for jar in JavaJars.resolve("iceberg-spark", VERSION).glob("iceberg-*.jar"))
    environment = os.environ | {"PYTHONPATH": f"{installed('4.1')}:{ROOT}"}
    words = [sys.executable, "-m", "tests.spark.on_iceberg", jars, server.url]
    with subprocess.Popen(
        words, env=environment, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        to_driver, from_driver = process.stdin, process.stdout
        assert to_driver is not None and from_driver is not None

        def run(statement: str) -> list[list[Any]]:
            print(statement, file=to_driver, flush=True)
            rows: list[list[Any]] = json.loads(from_driver.readline())
            return rows

        yield run
        to_driver.close()
        assert process.wait(60) == 0


@spec("P46")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tables_are_exchanged_with_the_library_of_iceberg(
    spark: SparkSession, server: RestCatalogue, table: str, tmp_path: Path
) -> None:
    writer, name = LogWriter(tmp_path / "broker-a"), f"lake.{table}"

    def archive(number: int) -> None:
        writer.write_many(number)
        options = ArchiveOptions(store=writer.store, lake=url_of(table), bytes_max=40_000)
        assert Archive(options).run(spark).rows == number

    with library(server) as run:

        def check(start: int) -> None:
            found = run(f"SELECT commitLogOffset, hex(body) FROM {name} ORDER BY 1")
            made = [[one.log_offset, one.body.hex().upper()] for one in writer.made[start:]]
            assert found == made
            assert offsets_of(opened(table)) == [row[0] for row in made]

        archive(300)
        check(0)
        middle = writer.made[200]
        where = f"WHERE commitLogOffset >= {middle.log_offset}"
        assert run(f"SELECT count(*), min(unix_millis(storeTimestamp)) FROM {name} {where}")[0][0] == 100

        run(f"DELETE FROM {name} WHERE commitLogOffset < {writer.made[100].log_offset}")
        archive(50)
        check(100)
        run(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
        run(f"CALL lake.system.expire_snapshots(table => '{table}', older_than => {LATER}, retain_last => 1)")
        assert len(opened(table)._table.snapshots()) == 1
        archive(50)
        check(100)

        run(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
        run(f"DELETE FROM {name} WHERE commitLogOffset = {writer.made[100].log_offset}")
        for job in (lambda: gather(spark, url_of(table)), lambda: opened(table).compact()):
            with pytest.raises(ConfigError, match=r"has delete files.*rewrite_data_files"):
                job()
        archive(50)
        wanted = "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
        run(f"CALL lake.system.rewrite_data_files(table => '{table}', options => {wanted})")
        check(101)
        archive(50)
        assert opened(table).compact()["filesRemoved"] > 1
        check(101)


@spec("P46")
def test_concurrent_commits_are_all_added_unless_they_have_one_mark(table: str) -> None:
    opened(table, create=True)

    def commit(lake: IcebergLake, name: str) -> bool:
        try:
            lake.commit([FILE], {name: 1})
        except LocalError as error:
            if "another writer has committed" not in str(error):
                raise
            return False
        return True

    for same in (True, False):
        lakes = [opened(table) for _ in range(WRITERS)]
        names = ["mark" if same else f"mark-{number}" for number in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            done = list(pool.map(commit, lakes, names))
        assert sum(done) == (1 if same else WRITERS)
        assert all(opened(table).mark(name) == 1 for name in names)
    assert len(opened(table)._table.snapshots()) == 1 + WRITERS
    assert opened(table)._table.current_snapshot().summary["total-records"] == str(1 + WRITERS)


@spec("P46")
def test_two_archives_share_a_table(table: str, tmp_path: Path) -> None:
    writers = [LogWriter(tmp_path / name) for name in ("broker-a", "broker-b")]
    running = []
    for writer in writers:
        writer.write_many(300)
        words = [sys.executable, "-m", "tests.spark.archiver", str(writer.store), url_of(table)]
        running.append(subprocess.Popen(words, cwd=ROOT))
    assert [process.wait(600) for process in running] == [0, 0]
    made = [one.log_offset for writer in writers for one in writer.made]
    assert offsets_of(opened(table)) == sorted(made)
    snapshots = opened(table)._table.snapshots()
    owners = [sorted(name for name in one.summary.additional_properties if "archive" in name) for one in snapshots]
    assert max(map(len, owners)) == 2


@spec("P46")
def test_archive_waits_for_a_catalogue_that_was_killed(
    spark: SparkSession, server: RestCatalogue, table: str, tmp_path: Path
) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(400)
    restarts: list[threading.Thread] = []

    def kill_catalogue(batch: int) -> None:
        if batch in (0, 2):
            server.kill()
            restarts.append(threading.Thread(target=server.start))
            restarts[-1].start()

    options = ArchiveOptions(store=writer.store, lake=url_of(table), bytes_max=20_000)
    done = Archive(options, after_commit=kill_catalogue).run(spark)
    for thread in restarts:
        thread.join()
    assert (done.rows, len(restarts)) == (400, 2)
    assert offsets_of(opened(table)) == [made.log_offset for made in writer.made]


@spec("P46")
def test_commit_that_the_catalogue_makes_after_its_client_gave_up_is_found(
    server: RestCatalogue, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = opened(table, create=True)
    lake.commit([], {"mark": 0})
    monkeypatch.setattr(calls, "REQUEST_S", 1.0)
    lake = opened(table)
    lake.mark("mark")

    messages: list[str] = []

    class Thaw(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            if "does not respond" in messages[-1]:
                server.sigcont()

    handler = Thaw()
    logging.getLogger("tandemq.spark.lake").addHandler(handler)
    try:
        server.sigstop()
        lake.commit([FILE], {"mark": 1})
    finally:
        server.sigcont()
        logging.getLogger("tandemq.spark.lake").removeHandler(handler)
    assert ["outcome of a commit" in messages[0], "does not respond" in messages[1]] == [True, True]
    assert (lake.mark("mark"), lake.rows()) == (1, 1)
    assert [one.summary["total-records"] for one in lake._table.snapshots()] == ["0", "1"]
    lake.commit([DataFile("part-y.parquet", 1, 1, FILE.stats)], {"mark": 2})
    assert lake.rows() == 2


@spec("P46")
def test_error_of_a_catalogue_that_stays_away_has_one_line_and_no_secret(
    spark: SparkSession, server: RestCatalogue, table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calls, "AWAY_S", 1.0)
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(100)
    options = ArchiveOptions(store=writer.store, lake=url_of(table), bytes_max=20_000)
    with pytest.raises(Exception, match="the catalogue does not respond") as caught:
        Archive(options, after_commit=lambda _: server.kill()).run(spark)
    with pytest.raises(LocalError, match="the catalogue does not respond") as refused:
        opened(table)
    words = [sys.executable, "-m", "tandemq", "spark", "compact", url_of(table), "--json"]
    monkeypatch.setenv("TANDEMQ_UNUSED", "1")
    server.start()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == opened(table).rows()
    assert "\n" not in str(refused.value)
    shown: list[Any] = [caught.value, refused.value, done.stdout, done.stderr]
    shown += [spark.sparkContext.getConf().getAll(), opened(table)._table.metadata.model_dump_json()]
    assert not [one for one in shown if SECRET in str(one)]
    assert Archive(options).run(spark).end == writer.end
    assert offsets_of(opened(table)) == [made.log_offset for made in writer.made]
