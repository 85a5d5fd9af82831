"""Rows of the log without Spark: all splits, all kinds of records, all kinds of damage."""

import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from tandemq.codec.record.record import decode_host
from tandemq.errors import OffsetGone, StoreDamaged
from tandemq.model.message import SysFlag
from tandemq.spark.sources import records
from tandemq.spark.sources.log import ranges
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.ranges import BatchBuilder, DecodeOptions, LogRangeReader, split
from tandemq.spark.sources.records import MILLISECONDS_MAX
from tandemq.spark.sources.schema import message_schema
from tests.golden import GOLDEN, unpack
from tests.spark.logs import BORN_MS, HOST_V4, HOST_V6, LogWriter
from tests.spec import spec


def rows_of(store: Path, *, range_bytes: int = 1 << 30, **reading: Any) -> list[dict[str, Any]]:
    """Return all rows of a store in order, with all columns."""
    files = open_log(store, "broker-a")
    schema = message_schema(details=True, map_properties=bool(reading.get("maps_properties")))
    maker = BatchBuilder(files, to_arrow_schema(schema, timezone="UTC"))
    found: list[dict[str, Any]] = []
    with LogFileReader(files) as read:
        reader = LogRangeReader(read, DecodeOptions(tuple(schema.names), **{"keeps_damage": True, **reading}))
        for wanted in split(files, files.start, log_end(read), range_bytes):
            for rows in reader.rows(wanted):
                found += maker.batch(rows).to_pylist()
    return found


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "store")


def test_rows_have_every_field_of_their_records(writer: LogWriter) -> None:
    writer.write_many(1000)
    rows = rows_of(writer.store)
    assert len(rows) == 1000
    for row, made in zip(rows, writer.made, strict=True):
        number = made.number
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (made.topic, made.queue_id, made.queue_offset)
        assert (row["commitLogOffset"], row["size"], row["body"]) == (made.log_offset, made.size, made.body)
        assert (row["key"], row["tags"]) == (f"k{number}", f"t{number % 3}")
        assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(BORN_MS + 10 * number)
        assert row["storeTimestamp"].timestamp() * 1000 == pytest.approx(BORN_MS + 10 * number + number % 5)
        assert (row["bornHost"], row["storeHost"]) == ("127.0.0.1:10911", "127.0.0.1:10911")
        assert (row["flag"], row["reconsumeTimes"], row["sysFlag"]) == (number, number % 2, 0)
        assert row["bodyCrc"] == zlib.crc32(made.body) & 0x7FFFFFFF
        assert row["properties"].startswith(f"KEYS\x01k{number}\x02")
        assert (row["brokerName"], row["epoch"], row["verdict"]) == ("broker-a", 0, None)


@spec("P02")
@settings(max_examples=30)
@given(range_bytes=st.integers(1 << 10, 1 << 17))
def test_any_split_gives_the_same_rows(tmp_path_factory: pytest.TempPathFactory, range_bytes: int) -> None:
    store = tmp_path_factory.getbasetemp() / "split-store"
    if not store.exists():
        made = LogWriter(store)
        made.write_many(600)
        made.flip(made.made[300].log_offset + 95)
        made.zero(made.made[400].log_offset + 4, made.made[403].log_offset + 10)
    assert rows_of(store, range_bytes=range_bytes) == rows_of(store)


def test_properties_are_found_at_any_position(writer: LogWriter) -> None:
    cases = [
        (b"", None, None),
        (b"TAGS\x01a\x02", None, "a"),
        (b"A\x01TAGS\x02KEYS\x01x y", "x y", None),
        (b"XTAGS\x01no\x02TAGS\x01yes\x02", None, "yes"),
        (b"TAGS\x01\x02KEYS\x01k\x02", "k", None),
        (b"TAGS\x01first\x02TAGS\x01second\x02", None, "second"),
        (b"KEYS\x01\xc3\xa9\x02", "é", None),
    ]
    for properties, _, _ in cases:
        writer.write(b"", properties=properties, is_java=True)
    expected = [(key, tags, properties) for properties, key, tags in cases]
    assert [(row["key"], row["tags"], row["properties"].encode()) for row in rows_of(writer.store)] == expected
    assert [(row["key"], row["tags"]) for row in rows_of(writer.store, maps_properties=True)] == [
        (key, tags) for key, tags, _ in expected
    ]


def test_records_of_every_kind_side_by_side(writer: LogWriter) -> None:
    packed = zlib.compress(b"squeeze " * 100)
    for _ in range(20):
        writer.write()
        writer.write(born_host=HOST_V6)
        writer.write(topic="L" * 200)
        writer.write(packed, sys_flag=int(SysFlag.COMPRESSED))
        writer.write(is_java=True)
        writer.write(b"", is_java=True)
    rows = rows_of(writer.store)
    assert [row["commitLogOffset"] for row in rows] == [made.log_offset for made in writer.made]
    assert {row["verdict"] for row in rows} == {None}
    assert rows[1]["bornHost"] == decode_host(HOST_V6)
    assert rows[2]["topic"] == "L" * 200
    assert rows[3]["body"] == b"squeeze " * 100
    assert rows_of(writer.store, inflates=False)[3]["body"] == packed


@pytest.mark.parametrize("maps_properties", [False, True])
def test_bodies_that_are_large_together_become_several_batches(
    writer: LogWriter, monkeypatch: pytest.MonkeyPatch, maps_properties: bool
) -> None:
    for module in (records, ranges):
        monkeypatch.setattr(module, "BATCH_INFLATED_BYTES", 1_000)
    plain = [bytes([number]) * size for number, size in enumerate((400, 400, 300, 5_000, 10, 20, 990, 400))]
    for body in plain:
        writer.write(zlib.compress(body), sys_flag=int(SysFlag.COMPRESSED))
    files = open_log(writer.store, "broker-a")
    with LogFileReader(files) as read:
        reader = LogRangeReader(read, DecodeOptions(("body", "properties"), maps_properties=maps_properties))
        [wanted] = split(files, files.start, log_end(read), 1 << 30)
        found = [list(map(bytes, pa.array(rows.columns["body"]).to_pylist())) for rows in reader.rows(wanted)]
    assert [body for bodies in found for body in bodies] == plain
    sizes = [sum(map(len, bodies)) for bodies in found]
    assert [size for size in sizes if size > 1_000] == [5_000]


@spec("P03")
def test_corrupt_record_is_kept_with_its_verdict_and_its_bytes(writer: LogWriter) -> None:
    writer.write_many(50)
    harmed = writer.made[20]
    before = writer.path(0).read_bytes()[harmed.log_offset : harmed.log_offset + harmed.size]
    writer.flip(harmed.log_offset + 90)
    rows = rows_of(writer.store)
    assert len(rows) == 50
    row = rows[20]
    assert row["verdict"] == "the record's CRC does not match its bytes"
    assert (row["topic"], row["queueOffset"], row["size"]) == (harmed.topic, harmed.queue_offset, harmed.size)
    assert sum(a != b for a, b in zip(row["body"], before, strict=True)) == 1
    assert [r["verdict"] for r in rows if r is not row] == [None] * 49


def test_damage_up_to_the_next_sound_record_is_one_row(writer: LogWriter) -> None:
    writer.write_many(50)
    start, end = writer.made[10].log_offset, writer.made[14].log_offset
    writer.zero(start, end)
    rows = rows_of(writer.store)
    assert len(rows) == 50 - 4 + 1
    assert (rows[10]["commitLogOffset"], rows[10]["size"], rows[10]["body"]) == (start, end - start, bytes(end - start))
    assert rows[10]["topic"] is None
    assert rows[10]["verdict"]


def test_damage_is_an_error_unless_it_is_kept_or_skipped(writer: LogWriter) -> None:
    writer.write_many(50)
    writer.flip(writer.made[20].log_offset + 90)
    with pytest.raises(StoreDamaged, match=r"damage in \[\d+, \d+\).*select the column verdict"):
        rows_of(writer.store, keeps_damage=False)
    assert len(rows_of(writer.store, keeps_damage=False, fails_on_damage=False)) == 49


def test_unreadable_text_and_bodies_are_rows_with_a_verdict(writer: LogWriter) -> None:
    writer.write()
    writer.write(properties=b"A\x01\xff\xfe\x02")
    writer.write(b"not zlib", sys_flag=int(SysFlag.COMPRESSED))
    writer.write()
    verdicts = [row["verdict"] for row in rows_of(writer.store)]
    assert verdicts[0] is verdicts[3] is None
    assert verdicts[1] == "topic or properties are not UTF-8"
    assert "cannot be decompressed" in verdicts[2]
    assert len(rows_of(writer.store)[1]["body"]) == writer.made[1].size


def test_torn_tail_is_not_a_row(writer: LogWriter) -> None:
    writer.write_many(30)
    last = writer.made[-1]
    writer.zero(last.log_offset + last.size - 10, last.log_offset + last.size)
    assert len(rows_of(writer.store)) == 29
    with LogFileReader(open_log(writer.store)) as read:
        assert log_end(read) == last.log_offset


def test_log_end_is_found_again_as_the_log_grows_over_files(writer: LogWriter) -> None:
    end = None
    for _ in range(40):
        writer.write_many(17)
        with LogFileReader(open_log(writer.store)) as read:
            end = log_end(read, end)
            assert end == log_end(read) == writer.end


def test_rows_have_the_epoch_of_the_log(writer: LogWriter) -> None:
    writer.write_many(30)
    third = writer.made[10].log_offset
    lines = f"1-0\n3-{third}\n"
    (writer.store / "epochFileCheckpoint").write_text(f"2\n{zlib.crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}")
    assert [row["epoch"] for row in rows_of(writer.store)] == [1] * 10 + [3] * 20


def test_directory_of_archived_files_is_read_like_a_store(writer: LogWriter, tmp_path: Path) -> None:
    writer.write_many(2000)
    aside = tmp_path / "aside"
    aside.mkdir()
    for path in sorted((writer.store / "commitlog").iterdir())[1:]:
        (aside / path.name).write_bytes(path.read_bytes())
    assert rows_of(aside) == [row for row in rows_of(writer.store) if row["commitLogOffset"] >= writer.segment_bytes]


def test_missing_log_and_files_of_unclear_size_are_clear_errors(writer: LogWriter, tmp_path: Path) -> None:
    with pytest.raises(StoreDamaged, match=r"holds no commit log.*storePathRootDir"):
        open_log(tmp_path)
    writer.write_many(500)
    assert writer.segment_bytes < writer.end < 2 * writer.segment_bytes
    for at in (0, 1):
        with open(writer.path(at * writer.segment_bytes), "r+b") as file:
            file.truncate(60_000)
    with pytest.raises(StoreDamaged, match=r"00065536 does not begin at a multiple of 60000.*put back a whole one"):
        open_log(writer.store)


def test_file_deleted_while_it_is_read_is_reported(writer: LogWriter) -> None:
    writer.write_many(3000)
    files = open_log(writer.store)
    writer.path(0).unlink()
    with LogFileReader(files) as read, pytest.raises(OffsetGone, match=r"is gone.*retention"):
        read(0, 100)


@pytest.mark.parametrize("name", ["store-4.9.7-clean", "store-4.9.7-killed", "store-5.3.3-clean", "store-5.3.3-killed"])
def test_stores_of_java_brokers_are_read_as_their_client_reads_them(tmp_path: Path, name: str) -> None:
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    unpack(name, tmp_path)
    rows = {row["commitLogOffset"]: row for row in rows_of(tmp_path / "store")}
    assert {row["verdict"] for row in rows.values()} == {None}
    assert expected["messages"]
    for message in expected["messages"]:
        row = rows[message["commitLogOffset"]]
        assert (row["topic"], row["queueId"]) == (message["topic"], message["queueId"])
        assert row["body"].decode() == message["body"]
        assert row["size"] == message["storeSize"]
        assert row["bodyCrc"] == message["bodyCRC"]


def test_time_beyond_the_timestamp_range_affects_no_other_row(writer: LogWriter) -> None:
    for host in (HOST_V6, HOST_V4):  # decoded one by one, and column by column
        writer.write(b"late", born_host=host, born_ms=(1 << 63) - 1)
        writer.write(b"early", born_host=host, born_ms=-(1 << 63))
    writer.write(b"sound")
    files = open_log(writer.store, "broker-a")
    maker = BatchBuilder(files, to_arrow_schema(message_schema(), timezone="UTC"))
    with LogFileReader(files) as read:
        reader = LogRangeReader(read, DecodeOptions(tuple(message_schema().names)))
        (wanted,) = split(files, files.start, log_end(read), 1 << 30)
        batches = [maker.batch(rows) for rows in reader.rows(wanted)]
    bodies = [body.as_py() for batch in batches for body in batch.column("body")]
    times = [time.value for batch in batches for time in batch.column("bornTimestamp")]
    latest = MILLISECONDS_MAX * 1000
    assert bodies == [b"late", b"early", b"late", b"early", b"sound"]
    assert times == [latest, -latest, latest, -latest, (BORN_MS + 40) * 1000]
