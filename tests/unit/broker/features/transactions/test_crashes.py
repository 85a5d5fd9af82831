"""Transactions after a crash that took the end of the log."""

from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Now
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from tests.unit.broker.features.transactions.producer import (
    COMMIT,
    GROUP,
    OK,
    ROLLBACK,
    at_offset,
    bodies,
    checking,
    delivered,
    end,
    half,
    ready,
)


@pytest.mark.parametrize("is_full", [False, True])
def test_commit_without_its_op_record_is_found_after_a_crash(is_full: bool) -> None:
    """Also if the first write of the new master, that of the op record, finds no space."""
    disk = SimDisk(Random(1))
    broker = ready(disk)
    for key in "ABC":
        half(broker, key=key)
    end(broker, 0, ROLLBACK, key="A")
    before = broker.node.store.log.end
    end(broker, 1, COMMIT, key="B")
    assert len(bodies(broker, OP_HALF_TOPIC)) == 2
    message = delivered(broker)[0]
    assert before == message.log_offset
    behind = message.log_offset + message.size
    segment = next(path for path in disk.paths() if path.startswith("commitlog"))
    disk.open(segment).pwrite(bytes(broker.node.store.log.end - behind), behind)  # as if it was not written
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    if is_full:
        disk.fail("pwrite", times=1, error=DiskFull, prefix="commitlog")
    broker.pass_time(100_000)
    assert {check.fields["msgId"] for check in broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)} == {"C"}
    assert bodies(broker, OP_HALF_TOPIC)[1] == b"1"
    assert end(broker, 1, COMMIT, key="B").code == OK
    assert len(delivered(broker)) == 1


def test_copy_without_its_op_record_after_a_crash_is_not_committed_again(tmp_path: Path) -> None:
    """The half message that was copied is named when the copy is found: a later crash must not open it again."""
    broker = checking(tmp_path)
    half(broker, b"other", key="A")
    half(broker, b"one", key="B")
    while len(bodies(broker, HALF_TOPIC)) < 4:
        broker.pass_time(1_000)
    end(broker, 0, ROLLBACK, key="A")
    copy = at_offset(broker, HALF_TOPIC, 3)
    segment = next((tmp_path / "commitlog").iterdir())
    broker.node.store.log.close()
    with segment.open("r+b") as file:  # what lies behind the copies was not written
        file.seek(copy.log_offset + copy.size)
        file.write(bytes(broker.node.store.log.end - copy.log_offset - copy.size))
    (tmp_path / "tandemq.marks").unlink()
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)
    assert bodies(broker, OP_HALF_TOPIC)[-1] == b"0,1,"
    assert end(broker, 3, COMMIT, key="B").code == OK
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)
    end(broker, 1, COMMIT, key="B")
    assert [message.body for message in delivered(broker)] == [b"one"]


def test_message_that_was_sent_back_ends_no_transaction(tmp_path: Path) -> None:
    """It has the mark of a commit, and names no half message; the first one in the log lies at offset 0."""
    broker = ready(tmp_path)
    half(broker, b"open", key="A")
    half(broker, b"failed", key="B")
    end(broker, 1, COMMIT, key="B")
    assert at_offset(broker, HALF_TOPIC, 0).log_offset == 0
    (message,) = delivered(broker)
    back = {"offset": message.log_offset, "group": "group", "delayLevel": 3}
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == OK
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(500)
    assert end(broker, 0, COMMIT, key="A").code == OK
    assert [one.body for one in delivered(broker)] == [b"failed", b"open"]


def test_end_in_the_turn_of_a_check_is_known_after_a_crash(tmp_path: Path) -> None:
    """The turn writes two op records, and an older transaction is open: both are to be read."""
    broker = checking(tmp_path)
    half(broker, b"waits", key="A", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    half(broker, b"ended", key="B", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    half(broker, b"copied", key="C")
    broker.now = Now(broker.now.mono_ms + 5_000, broker.now.wall_ms + 5_000)
    assert end(broker, 1, COMMIT, key="B").code == OK
    assert bodies(broker, OP_HALF_TOPIC) == [b"1", b"2"]
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)
    end(broker, 1, COMMIT, key="B")
    assert [message.body for message in delivered(broker)] == [b"ended"]


def test_end_before_a_failed_write_is_known_after_a_crash() -> None:
    """The write would have ended the oldest transaction, so that earlier op records need not be read."""
    disk = SimDisk(Random(1))
    broker = ready(disk)
    for key in "ABC":
        half(broker, key.encode(), key=key)
    end(broker, 1, COMMIT, key="B")
    disk.fail("pwrite", times=1, error=DiskFull, prefix="commitlog")
    assert end(broker, 0, COMMIT, key="A").code == ResponseCode.SERVICE_NOT_AVAILABLE
    disk.heal()
    broker.pass_time(25_000)
    assert end(broker, 2, COMMIT, key="C").code == OK
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)
    for at, key in enumerate("ABC"):
        end(broker, at, COMMIT, key=key)
    assert sorted(message.body for message in delivered(broker)) == [b"A", b"B", b"C"]
