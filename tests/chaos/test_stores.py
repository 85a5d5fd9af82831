"""Stores of a stopped group: replicas are identical, queues and index match the log."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chaos import stores
from chaos.history import Stored
from chaos.stores import Extent, check, differences, faults_of, records, without_lacking_keys
from tandemq import Message, Producer
from tandemq.errors import LocalError
from tandemq.run.local import LocalCluster

SOUND: dict[str, Any] = {
    "records": 2,
    "indexEntries": 2,
    "derivedFaults": 0,
    "notYetEntered": 0,
    "derived": [],
    "notes": [],
    "reports": [{"damages": []}],
}


def test_valid_store_has_no_faults() -> None:
    assert faults_of("a", SOUND) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"reports": [{"damages": [{"start": 5, "reason": "CRC"}]}]}, "I10: the log of a holds 1 damages, first [(5, "),
        (
            {"derivedFaults": 1, "derived": [{"where": "T/0@1", "log_offset": 7, "reason": "none"}]},
            "I9: queues and index of a: 1 faults, 0 records not entered after a clean stop, first [('T/0@1', 7, ",
        ),
        ({"notYetEntered": 1}, "I9: queues and index of a: 0 faults, 1 records not entered"),
        ({"indexEntries": 0, "notes": ["there is no index"]}, "I9: the index of a holds nothing that could be checked"),
    ],
)
def test_fault_reported_by_the_tool_is_a_violation(change: dict[str, Any], found: str) -> None:
    (violation,) = faults_of("a", SOUND | change)
    assert violation.startswith(found)


def test_keys_of_repaired_records_may_be_missing_and_nothing_else() -> None:
    lacking = {"where": "index", "log_offset": 7, "reason": "a key of the record is missing"}
    other = {"where": "T/0@1", "log_offset": 9, "reason": "none"}
    assert faults_of("a", without_lacking_keys(SOUND | {"derivedFaults": 1, "derived": [lacking]})) == []
    (violation,) = faults_of("a", without_lacking_keys(SOUND | {"derivedFaults": 2, "derived": [lacking, other]}))
    assert violation.startswith("I9: queues and index of a: 1 faults, 0 records not entered after a clean stop, first")


def log_of(store: Path, data: bytes, *, start: int = 0, size: int = 100) -> Extent:
    """Return a log in files of `size` bytes."""
    (store / "commitlog").mkdir(parents=True)
    for at in range(0, len(data), size):
        (store / "commitlog" / f"{start + at:020}").write_bytes(data[at : at + size].ljust(size, b"\0"))
    return Extent(store, start, start + len(data), size)


DATA = bytes(range(250))


def test_equal_logs_are_equal_whatever_follows_their_end(tmp_path: Path) -> None:
    one, other = log_of(tmp_path / "a", DATA), log_of(tmp_path / "b", DATA)
    with (tmp_path / "b" / "commitlog" / f"{200:020}").open("r+b") as file:
        file.seek(50)
        file.write(b"behind the end")
    assert differences(one, other) == []


def test_log_that_begins_later_is_compared_from_there(tmp_path: Path) -> None:
    one, other = log_of(tmp_path / "a", DATA), log_of(tmp_path / "b", DATA[100:], start=100)
    assert differences(one, other) == []
    assert differences(one, log_of(tmp_path / "c", DATA[101:], start=100)) == [
        "I8: the logs of a and c were in sync and end at 250 and 249",
        "I8: the logs of a and c differ at log offset 100",
    ]


@pytest.mark.parametrize("at", [0, 99, 100, 249])
def test_byte_that_differs_is_found(at: int, tmp_path: Path) -> None:
    changed = bytearray(DATA)
    changed[at] ^= 1
    one, other = log_of(tmp_path / "a", DATA), log_of(tmp_path / "b", bytes(changed))
    assert differences(one, other) == [f"I8: the logs of a and b differ at log offset {at}"]


@pytest.mark.tandemq(maxHashSlotNum=5_000_000, maxIndexNum=20_000_000)
@pytest.mark.system
def test_stores_of_a_pair_pass_until_bytes_are_changed(tandemq_pair: LocalCluster) -> None:
    master, slave = tandemq_pair.broker(), tandemq_pair.broker(broker_id=1)
    body = asyncio.run(_send(tandemq_pair.name_servers))
    tandemq_pair.wait_in_sync()
    for broker in (slave, master):
        broker.stop()
    found, figures = check([master.store, slave.store])
    assert found == []
    assert figures[master.store.name]["records"] == 1
    (record,) = records(slave.store, "Chaos")
    assert record[:5] == Stored(record.place, body, "a", body, record.unique_key)[:5]
    _turn(next((slave.store / "commitlog").iterdir()), body.encode())
    _turn(next(path for path in (master.store / "consumequeue").rglob("*") if path.is_file()), b"\0\0\0")
    found, _ = check([master.store, slave.store])
    assert sorted(text.partition(":")[0] for text in found) == ["I10", "I8", "I9"], found


@pytest.mark.system
def test_directory_without_a_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"tandemq log verify .* ended with"):
        check([tmp_path])


@pytest.mark.system
def test_tool_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_SECONDS", 0.0)
    with pytest.raises(LocalError, match=r"tandemq log verify .* did not end within 0 s"):
        check([tmp_path])


async def _send(name_servers: str) -> str:
    async with Producer(name_servers, group="chaos") as producer:
        await producer.send(Message("Chaos", b"a-1", tags="a", keys=["a-1"]))
    return "a-1"


def _turn(path: Path, data: bytes) -> None:
    """Change the first byte of some bytes in a file."""
    raw = bytearray(path.read_bytes())
    raw[raw.index(data)] ^= 1
    path.write_bytes(raw)
