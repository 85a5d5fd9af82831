"""Removal of messages by key: nothing of them is left in lakes and logs, which stay valid and contiguous."""

import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import StoreLocked
from tandemq.model.message import KEYS, Message, SysFlag
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs import removal
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.audit import audit
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.removal import remove_from_lake, remove_from_log
from tandemq.spark.jobs.replay import replay_to_store, replay_to_topic
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.jobs.selection import Selection
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.sources.log.files import LogFiles
from tests.spark.logs import HOST_V6, LogWriter
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec

SECRET = "customer-4711"
BY_KEY = Selection(keys=(SECRET,))


def properties(number: int, *, is_secret: bool) -> bytes:
    keys = f"k{number} {SECRET} z" if is_secret else f"k{number} {SECRET}0"
    return f"KEYS\x01{keys}\x02TAGS\x01t{number % 3}\x02UNIQ_KEY\x01{number:032X}\x02".encode()


def made_log(store: Path, count: int = 400) -> tuple[LogWriter, list[int]]:
    """A log of several files; returns it and the numbers of the messages to remove."""
    writer = LogWriter(store)
    secret = [number for number in range(count) if number % 40 in (3, 4)]
    for number in range(count):
        body = f"the body of {number}, {SECRET if number in secret else 'x'} ".encode() * 9
        kind = number % 4
        writer.write(
            zlib.compress(body) if kind == 1 else body,
            sys_flag=int(SysFlag.COMPRESSED) if kind == 1 else 0,
            properties=properties(number, is_secret=number in secret),
            born_host=HOST_V6 if kind == 2 else b"\x7f\0\0\1\0\0\x2a\x9f",
            is_java=number % 5 == 0,
        )
    return writer, secret


def holding(directory: Path, value: str = f"{SECRET} ") -> list[str]:
    """Files below a directory that contain a value, also in compressed columns."""
    found = []
    for path in directory.rglob("*"):
        if path.suffix == ".parquet" and not path.name.startswith("."):
            data = str(pq.read_table(path).to_pylist()).encode()
        else:
            data = path.read_bytes() if path.is_file() else b""
        if value.encode() in data:
            found.append(path.name)
    return found


def archive(spark: SparkSession, store: Path, lake: Path) -> None:
    Archive(ArchiveOptions(store=store, lake=lake, broker_name="broker-a")).run(spark)


@spec("P22")
def test_messages_are_removed_from_lake_and_log_which_stay_equal(spark: SparkSession, tmp_path: Path) -> None:
    lake, original, store = tmp_path / "lake", tmp_path / "original", tmp_path / "broker-a"
    writer, secret = made_log(store)
    archive(spark, store, lake)
    table = DeltaLake(lake)
    table.compact()
    shutil.copytree(store, original)
    for dry_run in (remove_from_lake, remove_from_log):
        assert dry_run(spark, lake if dry_run is remove_from_lake else store, BY_KEY, dry_run=True).messages == 20
    assert holding(lake)
    assert holding(store)
    from_lake = remove_from_lake(spark, lake, BY_KEY)
    from_log = remove_from_log(spark, store, BY_KEY)
    for done in (from_lake, from_log):
        assert (done.messages, done.found_after, done.is_complete) == (20, 0, True)
        assert sum(done.topics.values()) == 20
    assert not holding(lake)
    assert not holding(store)
    # The log is sound, the same as that of the lake, and differs from another replica in the removed records only.
    checked = scrub(spark, store)
    assert (checked.records, checked.removed, checked.damages) == (380, 20, [])
    replay_to_store(spark, lake, "broker-a", tmp_path / "again", segment_bytes=writer.segment_bytes)
    assert not audit(spark, store, tmp_path / "again").differences
    compared = audit(spark, original, store)
    assert (compared.counts["removed"], compared.diverges_at) == (20, None)
    assert [one["commitLogOffset"] for one in compared.differences] == [writer.made[at].log_offset for at in secret]
    built = rebuild(spark, RebuildOptions(store=store, output=tmp_path / "built", slots=100, entries=2000))
    assert built.entries == 400
    assert built.keys == 3 * 380
    rows = spark.read.format("rocketmq-log").load(str(store))
    assert rows.count() == 380
    # Repeated, nothing is left to do; an archive of the removed log adds the same rows to a new lake.
    again = remove_from_lake(spark, lake, BY_KEY), remove_from_log(spark, store, BY_KEY)
    assert [(done.messages, done.is_complete) for done in again] == [(0, True), (0, True)]
    writer.write_many(10)
    archive(spark, store, lake)
    archive(spark, store, tmp_path / "other")
    names = ("commitLogOffset", "topic", "queueOffset", "size", "body")
    both = [spark.read.parquet(*DeltaLake(path).data_files()).select(*names) for path in (lake, tmp_path / "other")]
    assert both[0].exceptAll(both[1]).count() == both[1].exceptAll(both[0]).count() == 0
    assert both[0].count() == 410


@spec("P22")
def test_stopped_removal_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, secret = made_log(tmp_path / "broker-a", 100)
    real = removal._finish_note

    def torn(files: LogFiles, start: int) -> None:
        if Path(files.path(start) + removal.NOTE).exists():
            with writer.path(start).open("r+b") as file:  # half of a record is written when the process dies
                file.seek(writer.made[secret[0]].log_offset + 20)
                file.write(bytes(60))
            raise InterruptedError
        real(files, start)

    monkeypatch.setattr(removal, "_finish_note", torn)
    with pytest.raises(InterruptedError):
        remove_from_log(spark, writer.store, BY_KEY)
    monkeypatch.setattr(removal, "_finish_note", real)
    assert remove_from_log(spark, writer.store, BY_KEY).found_after == 0
    checked = scrub(spark, writer.store)
    assert (checked.removed, checked.damages) == (len(secret), [])
    assert not list(writer.store.rglob("*" + removal.NOTE))
    assert not holding(writer.store)


@spec("P22")
def test_command_reports_what_is_left_without_naming_the_values(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is not None
    writer, secret = made_log(tmp_path / "broker-a", 100)
    harmed = writer.made[secret[0]]
    writer.zero(harmed.log_offset, harmed.log_offset + 60)
    page = tmp_path / "report.json"
    words = ["spark", "remove", "--log", str(writer.store), "--key", SECRET, "--report", str(page)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 3, result.output
    assert f"left: damaged bytes at {harmed.log_offset}" in result.stdout
    assert "not reached:" in result.stdout
    report = json.loads(page.read_text())
    (found,) = report["results"]
    assert (report["complete"], found["messages"], found["foundAfter"]) == (False, len(secret) - 1, 0)
    assert SECRET not in page.read_text()
    for more, says in (([], "nothing is selected"), (["--key", "a b"], "is several keys")):
        result = CliRunner().invoke(main, ["spark", "remove", "--log", str(writer.store), *more])
        assert (result.exit_code, says in result.stderr) == (2, True), result.output


@spec("P22")
def test_broker_serves_a_log_with_removed_messages(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, broker = tandemq_broker.name_servers, tandemq_broker.broker()
    make_topic(names, "Orders", 1)
    send(
        names, [*numbered("Orders", 0, 5), Message("Orders", b"secret", "t", [SECRET, "x"]), *numbered("Orders", 6, 9)]
    )
    archive(spark, broker.store, tmp_path / "lake")
    broker.kill()
    assert remove_from_log(spark, broker.store, BY_KEY).found_after == 0
    broker.start()
    tandemq_broker.wait_until(broker.is_registered)
    source = spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders", propertiesAs="map")
    rows = source.load().orderBy("queueOffset").collect()
    assert [bytes(row.body) for row in rows if "REMOVED" not in row.properties] == [
        b"%d" % number for number in range(9) if number != 5
    ]
    assert (rows[5].properties["REMOVED"], set(bytes(rows[5].body)) <= {0}, KEYS in rows[5].properties) == (
        "1",
        True,
        False,
    )
    remove_from_lake(spark, tmp_path / "lake", BY_KEY)
    make_topic(names, "Again", 1)
    assert replay_to_topic(spark, tmp_path / "lake", {"nameServer": names, "topic": "Again"}).rows == 8


def test_log_of_a_running_broker_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    writer, _ = made_log(tmp_path / "broker-a", 10)
    words = "import sys; from pathlib import Path; from tandemq.real.disk import RealDisk; "
    words += f"RealDisk(Path({str(writer.store)!r})).lock(); print('locked', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked, match="another process is using"):
            remove_from_log(spark, writer.store, BY_KEY)
        other.communicate("")
    assert remove_from_log(spark, writer.store, BY_KEY).messages == 2
    assert not (writer.store / "abort").exists()


def test_selection_is_exact() -> None:
    texts = [
        "KEYS\x01a b\x02",
        "KEYS\x01ab\x02",
        "UNIQ_KEY\x01a\x02",
        "who\x01a\x02",
        "KEYS\x01a\x02RETRY_TOPIC\x01T\x02",
        "",
    ]
    topics = ["T", "T", "T", "T", "%RETRY%g", "T"]
    batch = pa.RecordBatch.from_pydict({"topic": topics, "properties": texts, "verdict": pa.nulls(6, pa.string())})

    def found(**given: object) -> list[int]:
        mask = Selection(**given).matches(batch).to_pylist()  # type: ignore[arg-type]
        return [at for at, one in enumerate(mask) if one]

    assert found(keys=("a",)) == [0, 4]
    assert found(keys=("a",), topics=("U",)) == []
    assert found(keys=("a",), topics=("T",)) == [0, 4]
    assert found(unique_keys=("a",)) == [2]
    assert found(properties=(("who", "a"),)) == [3]
    assert found(keys=("b",), properties=(("who", "a"),)) == [0, 3]
