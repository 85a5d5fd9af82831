"""`tandemq ha` status, verify and scrub: replication status, comparison of running replicas, repair of damage."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tandemq import Message
from tandemq.cli.ha import commands, queue_comparison
from tandemq.cli.support.progress import ProgressLine
from tandemq.client.blocking import BlockingProducer
from tandemq.run.local import LocalCluster
from tests.spec import spec
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.system

RunJson = Callable[..., Any]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """A pair with some messages, for one test to damage."""
    with LocalCluster(tmp_path, slaves=1) as running:
        with BlockingProducer(running.name_servers, group="g") as producer:
            producer.send_batch([Message("T", bytes(5_000)) for _ in range(500)])
        running.wait_in_sync()
        yield running


def rows_of(run: Run, pair: LocalCluster, command: str, code: int = 0) -> Any:
    return json.loads(run("ha", command, "--json", "-n", pair.name_servers, code=code).stdout)


def test_status_shows_roles_lag_and_ages(run: Run, pair: LocalCluster) -> None:
    master, slave = rows_of(run, pair, "status")
    assert (master["role"], master["slavesInSync"], master["lagBytes"]) == ("SYNC_MASTER", 1, None)
    assert (slave["role"], slave["state"], slave["lagBytes"]) == ("SLAVE", "copies", 0)
    assert slave["logEnd"] == master["logEnd"] > 500 * 5_000
    assert 0 <= slave["lastReadS"] < 20
    assert 0 <= slave["lastWriteS"] < 20
    (link,) = master["slaves"]
    assert (link["slave"], link["behindBytes"], link["inSync"]) == (1, 0, True)
    assert (link["secured"], slave["secured"]) == ("secret", "secret")
    assert link["ackedOffset"] == master["logEnd"]
    assert 0 <= link["lastReadS"] < 20
    assert 0 <= link["lastWriteS"] < 20
    text = run("ha", "status", "-n", pair.name_servers).stdout
    assert "As the masters see their slaves" in text
    assert link["address"] in text


def test_status_of_a_slave_without_its_master(run: Run, pair: LocalCluster) -> None:
    pair.broker().kill()
    slave_node = pair.broker(broker_id=1).node
    pair.wait_until(lambda: slave_node.replication.slave is not None and slave_node.replication.slave.session is None)
    rows = {row["id"]: row for row in rows_of(run, pair, "status")}
    assert rows[1]["state"] == "has no link to its master"
    assert rows[1]["lagBytes"] is None


def test_equal_replicas_compare_equal(run: Run, pair: LocalCluster) -> None:
    [found] = rows_of(run, pair, "verify")
    assert (found["equal"], found["differsAt"]) == (True, None)
    assert found["bytes"] == pair.broker().node.store.log.written_end


@spec("T21")
@pytest.mark.parametrize("side", ["first", "end"])
def test_queues_of_equal_logs_are_compared(
    run: Run, pair: LocalCluster, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = rows_of(run, pair, "verify")
    assert found["queues"] >= 8, "those of T and of the broker's own topics"
    assert found["queuesDiffer"] == []
    monkeypatch.setattr(queue_comparison, "PATIENCE_S", 0.0)
    queues = pair.broker(broker_id=1).node.store.queues
    queue = next(queue for (topic, _), queue in queues.items() if topic == "T" and queue.max_offset > 1)
    end = queue.max_offset
    if side == "first":
        queue.min_offset = 1
    else:
        queue.truncate_from(queue.entry(end - 1).log_offset)
    [found] = rows_of(run, pair, "verify", code=3)
    assert found["equal"] is True
    [different] = found["queuesDiffer"]
    slave = [1, end] if side == "first" else [0, end - 1]
    assert different == {"topic": "T", "queueId": queue.queue_id, "master": [0, end], "slave": slave}
    text = run("ha", "verify", "-n", pair.name_servers, code=3).stdout
    assert "Queues that differ" in text
    assert f"{slave[0]} to {slave[1]}" in text


@spec("T21")
def test_queues_without_messages_are_equal_wherever_they_begin(run: Run, pair: LocalCluster) -> None:
    master, slave = (pair.broker(broker_id=number).node.store.queues for number in (0, 1))
    key = next(key for key, queue in master.items() if key[0] == "T" and queue.max_offset > 1)
    master[key].min_offset = master[key].max_offset  # its messages have expired, and the slave came later
    del slave[key]
    [found] = rows_of(run, pair, "verify")
    assert found["queuesDiffer"] == []


@spec("T21")
def test_queues_are_equal_while_messages_arrive_and_topics_change(run: Run, pair: LocalCluster) -> None:
    stopped = Event()

    def change() -> None:
        with BlockingProducer(pair.name_servers, group="g") as producer:
            for number in count():
                producer.send_batch([Message("T", bytes(100)) for _ in range(20)])
                if number % 10 == 0:
                    producer.send(Message(f"New{number}", b"x"))
                if stopped.is_set():
                    return

    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(change)
        try:
            for _ in range(5):
                [found] = rows_of(run, pair, "verify")
                assert (found["equal"], found["queuesDiffer"]) == (True, [])
        finally:
            stopped.set()
            sending.result()


@pytest.mark.parametrize("at", [0, 1, 1_234_567, 2_500_000])
def test_first_differing_byte_of_a_replica_is_found(run: Run, pair: LocalCluster, at: int) -> None:
    path = pair.broker(broker_id=1).store / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    [found] = rows_of(run, pair, "verify", code=3)
    assert (found["equal"], found["differsAt"]) == (False, at)


def test_comparison_can_start_after_a_difference(run: Run, pair: LocalCluster) -> None:
    path = pair.broker(broker_id=1).store / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.write(b"X")
    found = commands.compare(pair.address, pair.broker(broker_id=1).address, 1, ProgressLine("", silent=True))
    assert (found.start, found.differs_at) == (1, None)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("broker_id", [0, 1])
def test_scrub_finds_damage_and_repairs_it_from_the_replica(run: Run, pair: LocalCluster, broker_id: int) -> None:
    flip(pair.broker(broker_id=broker_id).store / "commitlog" / f"{0:020d}", 1_234_567)
    assert rows_of(run, pair, "verify", code=3)[0]["equal"] is False
    rows = {row["id"]: row for row in rows_of(run, pair, "scrub")}
    assert [(rows[number]["state"], rows[number]["records"] + rows[number]["found"]) for number in (0, 1)] == [
        ("verified", 500)
    ] * 2
    assert (rows[broker_id]["found"], rows[broker_id]["damaged"], rows[broker_id]["repaired"]) == (1, 0, 1)
    assert rows[1 - broker_id]["found"] == 0
    [verified] = rows_of(run, pair, "verify")
    assert (verified["equal"], verified["damaged"]) == (True, 0)
    status = {row["id"]: row for row in rows_of(run, pair, "status")}
    assert (status[broker_id]["repaired"], status[broker_id]["damaged"], status[broker_id]["verifiedH"]) == (1, 0, 0.0)
    assert "verified" in run("ha", "scrub", "--rate", "1000", "-n", pair.name_servers).stdout


@pytest.mark.parametrize("broker_id", [0, 1])
def test_scrub_rebuilds_damaged_queue_entries(run: Run, pair: LocalCluster, broker_id: int) -> None:
    queues = pair.broker(broker_id=broker_id).store / "consumequeue"

    def written() -> list[Path]:
        return [path for path in queues.rglob("0" * 20) if path.read_bytes()[40:80].strip(b"\0")]

    pair.wait_until(lambda: bool(written()))
    [path, *_] = written()
    before = path.read_bytes()[:80]
    for at in (1, 20 + 8, 40 + 19):  # log offset, sign of the size, tags code
        flip(path, at)
    rows = {row["id"]: row for row in rows_of(run, pair, "scrub")}
    assert [rows[number]["rebuiltEntries"] for number in (broker_id, 1 - broker_id)] == [3, 0]
    assert path.read_bytes()[:80] == before


def test_damage_on_both_replicas_is_shown_with_exit_code_3(run: Run, pair: LocalCluster) -> None:
    for number in (0, 1):
        flip(pair.broker(broker_id=number).store / "commitlog" / f"{0:020d}", 1_234_567)
    rows = rows_of(run, pair, "scrub", code=3)
    assert [row["damaged"] for row in rows] == [1, 1]
    assert rows[0]["ranges"][0]["start"] <= 1_234_567 < rows[0]["ranges"][0]["end"]
    text = run("ha", "status", "-n", pair.name_servers).stdout
    assert "Damaged ranges of logs" in text
    assert "damaged at" in text
    [verified] = rows_of(run, pair, "verify", code=3)
    assert (verified["equal"], verified["damaged"]) == (True, 2)
    pair.broker().stop()
    offline = json.loads(run("log", "verify", pair.broker().store, "--json", code=3).stdout)
    assert (offline["damages"], offline["knownDamages"], offline["repaired"]) == (1, 1, 0)


def test_group_without_a_slave_is_neither_equal_nor_different(run: Run, tandemq_broker: LocalCluster) -> None:
    [found] = rows_of(run, tandemq_broker, "verify")
    assert found["equal"] is None
