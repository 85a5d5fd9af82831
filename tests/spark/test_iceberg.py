"""Lakes in Iceberg, with a catalogue in SQLite: marks, maintenance, jobs, errors, S3."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError, LocalError, StoreLocked, TandemError
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions, position_mark
from tandemq.spark.jobs.collect import Collect, CollectOptions
from tandemq.spark.jobs.removal import remove_from_lake
from tandemq.spark.jobs.replay import replay_to_store
from tandemq.spark.jobs.retention import expire
from tandemq.spark.jobs.selection import Selection
from tandemq.spark.jobs.state import topic_state
from tandemq.spark.jobs.stats import gather
from tandemq.spark.lake import compaction, iceberg
from tandemq.spark.lake.delta import DataFile
from tandemq.spark.lake.formats import open_lake
from tandemq.spark.lake.iceberg import IcebergLake
from tandemq.spark.lake.upsert import Upsert
from tandemq.spark.runtime.location import locate
from tandemq.spark.sources.log.files import open_log
from tandemq.spark.sources.log.options import read_options
from tandemq.spark.sources.log.parquet_writer import lake_schema, write_ranges
from tandemq.spark.sources.log.ranges import split
from tests.spark.iceberg_tables import CATALOGUE, configure_sqlite, offsets_of, opened
from tests.spark.lakes import are_same
from tests.spark.logs import BORN_MS, LogWriter
from tests.spark.messages import make_topic, numbered, send
from tests.spark.s3 import BUCKET, S3, SECRET
from tests.spec import spec

TABLE = "messages.orders"
URL = f"iceberg://{CATALOGUE}/{TABLE}"
ROWS = 500
USER = "me:very-hidden" + "@"


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configure_sqlite(monkeypatch, tmp_path)


def filled(path: Path) -> IcebergLake:
    """A lake with some small files, one commit each."""
    writer = LogWriter(path / "broker-a")
    writer.write_many(ROWS)
    lake = opened(TABLE, create=True)
    files = open_log(writer.store)
    options = read_options({"path": str(writer.store), "writeTo": lake.location.url})
    for number, wanted in enumerate(split(files, 0, writer.end, 20_000)):
        (row,) = write_ranges(files, options, [wanted], lambda *lost: pytest.fail(str(lost))).to_pylist()
        lake.commit([DataFile(row["file"], row["rows"], row["bytes"], row["stats"])], {"batch": number})
    return lake


def theirs(lake: IcebergLake) -> Any:
    """Return the table as another program has it."""
    lake.rows()
    return opened(TABLE)._table


@spec("P46")
def test_marks_are_found_behind_commits_of_others_and_after_their_snapshots_have_expired(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    last = lake.mark("batch")
    assert last is not None and last > 2
    lake.commit([], {"other": 7})
    assert (lake.mark("batch"), lake.mark("other"), lake.mark("none")) == (last, 7, None)
    table = theirs(lake)
    for log_offset in offsets_of(lake)[:2]:
        table.delete(f"commitLogOffset = {log_offset}")
        table.append(table.scan().to_arrow().slice(0, 1))
    assert len(table.snapshots()) > last + 2
    assert (opened(TABLE).mark("batch"), opened(TABLE).mark("other")) == (last, 7)
    current = table.current_snapshot().snapshot_id
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(table.snapshots()) == 1
    assert not [name for name in table.current_snapshot().summary.additional_properties if "tandemq" in name]
    assert (opened(TABLE).mark("batch"), opened(TABLE).mark("other")) == (last, 7)
    lake.commit([], {"batch": last + 1})
    assert (opened(TABLE).mark("batch"), opened(TABLE).mark("other")) == (last + 1, 7)


@spec("P46")
def test_marks_of_a_rolled_back_table_are_those_of_the_older_snapshot(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    table = theirs(lake)
    third = sorted(table.snapshots(), key=lambda one: one.sequence_number)[2]
    table.manage_snapshots().rollback_to_snapshot(third.snapshot_id).commit()
    assert lake.mark("batch") == 2
    assert lake.rows() == int(third.summary["total-records"])


@spec("P46")
def test_table_rolled_back_to_a_snapshot_whose_marks_are_unknown_is_refused(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    table = theirs(lake)
    table.delete(f"commitLogOffset = {offsets_of(lake)[0]}")
    foreign = table.current_snapshot().snapshot_id
    lake.commit([], {"batch": 100})
    table.refresh()
    assert lake.mark("batch") == 100
    table.manage_snapshots().rollback_to_snapshot(foreign).commit()
    assert lake.mark("batch") not in (None, 100)
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != foreign]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    with pytest.raises(LocalError, match="rolled back to a snapshot of another writer"):
        lake.mark("batch")


@spec("P46")
def test_of_two_compactions_at_once_one_is_refused_and_nothing_is_duplicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, other = filled(tmp_path), opened(TABLE)
    before, files = offsets_of(lake), len(lake.data_files())
    assert (len(before), files > 3) == (ROWS, True)
    merge = compaction.merge_files

    def merged_later(*arguments: Any) -> Any:
        monkeypatch.setattr(iceberg, "merge_files", merge)
        with pytest.raises(StoreLocked, match="by another process"):
            lake.compact()
        return merge(*arguments)

    monkeypatch.setattr(iceberg, "merge_files", merged_later)
    assert other.compact() == {"filesAdded": 1, "filesRemoved": files}
    new = other.mark("tandemq-compact")
    with pytest.raises(StoreLocked, match="compacted or changed by another process"):
        lake._exchange([lake.name_of(lake.data_files()[0])], [], 0)
    with pytest.raises(StoreLocked, match="compacted or changed by another process"):
        lake.replace(["/gone/part-1.parquet"], [])
    assert (lake.mark("tandemq-compact"), lake.mark("batch"), offsets_of(lake)) == (new, files - 1, before)


@spec("P46")
def test_files_are_deleted_when_no_snapshot_has_them_and_not_before(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    files = {Path(path).name for path in lake.data_files()}
    held = offsets_of(lake)
    before = lake._table.current_snapshot().snapshot_id
    lake.compact()
    stray = lake.location.path / "part-stray.parquet"
    stray.write_bytes(b"left by a killed task")
    assert lake.vacuum(1) == []
    assert len(lake.data_files_of(before)) == len(files)
    assert set(lake.vacuum(0, dry_run=True)) == set(lake.vacuum(0)) == files | {stray.name}
    assert {path.name for path in lake.location.path.glob("*.parquet")} == {
        Path(path).name for path in lake.data_files()
    }
    assert offsets_of(lake) == held
    with pytest.raises(ConfigError, match=f"has no snapshot {before}"):
        lake.data_files_of(before)
    metadata = lake.location.path.parent / "metadata"
    avro = len(list(metadata.glob("*.avro")))
    for path in metadata.glob("*.avro"):
        os.utime(path, (0, 0))
    assert all(name.startswith("metadata/") for name in lake.vacuum(0))
    assert len(list(metadata.glob("*.avro"))) < avro
    assert offsets_of(opened(TABLE)) == held


@spec("P46")
def test_compaction_keeps_few_snapshots_and_those_that_have_replaced_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "SNAPSHOTS_KEPT", 3)
    lake = filled(tmp_path)
    before, files = lake._table.current_snapshot().snapshot_id, lake.data_files()
    assert len(files) > 5
    lake.compact()
    changed = lake._table.current_snapshot().snapshot_id
    for number in range(9):
        lake.commit([], {"batch": 100 + number})
        if number % 4 == 0:
            assert lake.compact()["filesRemoved"] == 0
    kept = [one.snapshot_id for one in lake._snapshots()]
    assert (len(kept), kept[-2:]) == (5, [changed, before])
    assert lake.vacuum(1) == []
    assert lake.data_files_of(before) == files
    assert len([name for name in lake.vacuum(0) if name.startswith("part-")]) == len(files)
    assert (lake.rows(), lake.mark("batch"), len(lake._snapshots())) == (ROWS, 108, 1)


@spec("P46")
def test_jobs_work_on_a_table(spark: SparkSession, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(300)
    done = Archive(ArchiveOptions(store=writer.store, lake=URL, bytes_max=40_000)).run(spark)
    lake = open_lake(URL)
    assert done.version == lake._table.current_snapshot().snapshot_id  # type: ignore[attr-defined]
    assert (done.rows, lake.mark(position_mark("broker-a"))) == (300, writer.end)
    assert sum(row["messages"] for row in gather(spark, URL).topics) == 300
    assert topic_state(spark, URL, ["T0"]).count() == 150
    assert len(lake.data_files_within(0, 1)) == 1
    assert expire(spark, URL, BORN_MS + 1_000).rows == 100
    assert topic_state(spark, URL, ["T0"], version=done.version).count() == 150
    kept = [one.log_offset for one in writer.made[100:]]
    assert offsets_of(opened(TABLE)) == kept
    writer.write_many(50)
    assert Archive(ArchiveOptions(store=writer.store, lake=URL)).run(spark).rows == 50
    before = lake.identity(), offsets_of(opened(TABLE))
    with pytest.raises(ConfigError, match=r"messages are removed from Delta lakes only.*DELETE FROM"):
        remove_from_lake(spark, URL, Selection(keys=("k150",)))
    with pytest.raises(ConfigError, match="only Delta tables are upserted"):
        Upsert(URL, ["key"])
    with pytest.raises(ConfigError, match=r"is an Iceberg table.*a directory or the URL"):
        Archive(ArchiveOptions(store=URL, lake=tmp_path / "lake"))
    assert (lake.identity(), offsets_of(opened(TABLE))) == before


@spec("P46")
def test_messages_of_a_cluster_are_collected_once(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 2)
    send(names, numbered("Orders", 0, 50))
    options = CollectOptions(
        source={"nameServer": names, "subscribe": "Orders", "maxOffsetsPerTrigger": "20"}, lake=URL
    )

    def die(batch: int) -> None:
        if batch:
            raise RuntimeError("Died")

    with pytest.raises(Exception, match="Died"):
        Collect(options, after_commit=die).run(spark)
    assert 0 < opened(TABLE).rows() < 50
    Collect(options).run(spark)
    found = opened(TABLE)
    rows = pa.concat_tables([pq.read_table(path, columns=["body"]) for path in found.data_files()])
    assert sorted(int(body) for body in rows.column(0).to_pylist()) == list(range(50))
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(1)
    with pytest.raises(ConfigError, match="holds messages collected"):
        Archive(ArchiveOptions(store=writer.store, lake=URL))


@spec("P46")
def test_commands_take_the_name_of_a_table(tmp_path: Path) -> None:
    lake = filled(tmp_path)

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tandemq", "spark", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    done = run("compact", URL, "--json")
    assert json.loads(done.stdout) == {
        "filesAdded": 1,
        "filesRemoved": len(lake.data_files_of(_last(lake))),
        "files": 1,
        "rows": ROWS,
    }
    done = run("vacuum", URL, "--hours", "0", "--json")
    assert len(json.loads(done.stdout)["files"]) > 3
    for table, code, text in (
        (f"iceberg://{CATALOGUE}/messages.none", 2, "iceberg://tests/messages.none does not exist"),
        ("iceberg://elsewhere/a.b", 2, "has no catalogue 'elsewhere'"),
        ("iceberg://tests/orders", 2, "names no Iceberg table"),
        (f"iceberg://{USER}tests/a.b", 2, "names no Iceberg table"),
    ):
        done = run("compact", table)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
        assert "very-hidden" not in done.stderr and "Traceback" not in done.stderr


def _last(lake: IcebergLake) -> int:
    return int(lake._table.current_snapshot().snapshot_id)


@spec("P46")
def test_other_tables_are_refused_and_unchanged(tmp_path: Path) -> None:
    catalog = opened("messages.orders", create=True)._catalogue._catalog
    columns = lake_schema()
    catalog.create_table("messages.less", columns.remove(0))
    catalog.create_table("messages.more", columns.append(pa.field("extra", pa.string())))
    parted = catalog.create_table("messages.parted", columns)
    with parted.update_spec() as update:
        update.add_identity("topic")
    for name, text in (("less", "'key'"), ("more", "'extra' that no message has"), ("parted", "is partitioned")):
        with pytest.raises(ConfigError, match=text):
            opened(f"messages.{name}", create=True)
        assert catalog.load_table(f"messages.{name}").current_snapshot() is None
    lake, table = opened(TABLE), catalog.load_table(TABLE)
    with table.update_schema() as change:
        change.add_column("late", table.schema().find_type("topic"))
    with pytest.raises(ConfigError, match="'late' that no message has"):
        lake.mark("x")


@spec("P46")
def test_batch_that_another_writer_has_committed_is_refused(tmp_path: Path) -> None:
    one, other = opened(TABLE, create=True), opened(TABLE)
    one.commit([], {"batch": 1})
    assert other.mark("batch") == 1
    one.commit([], {"batch": 2})
    with pytest.raises(LocalError, match="another writer has committed meanwhile; nothing was added"):
        other.commit([], {"batch": 2})
    other.commit([], {"else": 1})
    assert (one.mark("batch"), one.mark("else")) == (2, 1)


@spec("P46")
def test_table_in_s3_is_written_with_the_credentials_of_its_catalogue_which_are_shown_nowhere(
    spark: SparkSession, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {
        "s3.endpoint": s3.options["aws_endpoint_url"],
        "s3.access-key-id": "key",
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }
    configure_sqlite(monkeypatch, tmp_path, **options, warehouse=f"s3://{BUCKET}/{tmp_path.name}-{os.getpid()}")
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(100)
    job = Archive(ArchiveOptions(store=writer.store, lake=URL, bytes_max=20_000, checkpoint=tmp_path / "checkpoint"))
    query = job.start(spark)
    query.awaitTermination()
    lake = opened(TABLE)
    assert lake.location.url.startswith("s3://")
    assert offsets_of(lake) == [made.log_offset for made in writer.made]
    assert lake.compact()["filesAdded"] == 1
    assert len(lake.vacuum(0)) > 1
    assert sum(row["messages"] for row in gather(spark, URL).topics) == 100
    replay_to_store(spark, URL, "broker-a", tmp_path / "restored", segment_bytes=writer.segment_bytes)
    assert are_same(writer.store, tmp_path / "restored")
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOGUE.upper()}__S3__ACCESS_KEY_ID", "other")
    shown = [str(query.recentProgress), str(query._jsq.explainInternal(True)), repr(lake.location), repr(job._options)]
    shown += [str(one) for one in spark.sparkContext.getConf().getAll()]
    shown += [opened(TABLE)._table.metadata.model_dump_json(), *capfd.readouterr()]
    assert not [text for text in shown if SECRET in text]
    kept = [one.read_bytes() for one in (tmp_path / "checkpoint").rglob("*") if one.is_file()]
    assert kept and not [body for body in kept if SECRET.encode() in body]


def test_missing_package_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tandemq.spark.lake.iceberg", None)
    with pytest.raises(ConfigError, match=r"needs pyiceberg.*pip install 'tandemq\[iceberg\]'"):
        open_lake(URL)


@spec("P46")
def test_errors_of_the_catalogue_have_one_line_without_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemq.spark.lake.catalogue.AWAY_S", 0.0)
    uri = f"postgresql+psycopg://{USER}127.0.0.1:1/lakes"
    for options in (
        {"uri": uri},
        {
            "type": "rest",
            "uri": f"http://{USER}127.0.0.1:1",
            "credential": "me:very-hidden",
            "oauth2-server-uri": "http://127.0.0.1:1/tokens",
        },
    ):
        configure_sqlite(monkeypatch, tmp_path, **options)
        with pytest.raises(TandemError) as caught:
            opened(TABLE)
        assert "the catalogue does not respond" in str(caught.value)
        assert "\n" not in str(caught.value) and "very-hidden" not in str(caught.value)
    assert locate(URL, "the lake", {"aws_secret_access_key": SECRET}).url == URL
    assert SECRET not in repr(locate(URL, "the lake", {"aws_secret_access_key": SECRET}))
