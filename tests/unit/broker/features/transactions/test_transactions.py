"""Transactions on one broker: half messages, their end, checks, giving up, restarts, and every refusal."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.kernel.connection import pack_host
from tandemq.broker.state.topics import Topic, internal_topic
from tandemq.codec.record.record import decode_messages
from tandemq.codec.remoting.frame import encode_command
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage, encode_properties
from tandemq.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tandemq.storage.json_tables import TableFile
from tests.spec import spec
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
from tests.unit.broker.features.waiting_tables import open_transactions
from tests.unit.broker.harness import CLIENT, Harness


@spec("G09")
def test_half_message_is_invisible_until_it_is_committed(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    answer = half(broker, b"one", TAGS="t", KEYS="k")
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (OK, "1", "0")
    assert answer.fields["transactionId"] == "K1"
    assert delivered(broker) == []
    stored = at_offset(broker, HALF_TOPIC, 0)
    assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("TopicA", "1")
    assert stored.properties["__transactionId__"] == "K1"
    assert stored.sys_flag & 0xC == 0

    assert end(broker, 0, COMMIT).code == OK
    (message,) = delivered(broker)
    assert (message.body, message.tags, message.keys) == (b"one", "t", ["k"])
    assert (message.sys_flag & 0xC, message.prepared_offset) == (8, stored.log_offset)
    assert (message.born_ms, message.born_host) == (stored.born_ms, stored.born_host)
    assert bodies(broker, OP_HALF_TOPIC) == [b"0"]
    assert at_offset(broker, OP_HALF_TOPIC, 0).properties["TAGS"] == "d"


def test_rolled_back_message_is_never_delivered_nor_checked(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    half(broker)
    assert end(broker, 0, ROLLBACK).code == OK
    broker.pass_time(120_000)
    assert delivered(broker) == []
    assert broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE) == []


@pytest.mark.parametrize(("first", "count"), [(COMMIT, 1), (ROLLBACK, 0)])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_second_end_changes_nothing(tmp_path: Path, first: int, second: int, count: int) -> None:
    broker = ready(tmp_path)
    half(broker)
    assert end(broker, 0, first).code == OK
    log_end = broker.node.store.log.end
    assert end(broker, 0, second).code == OK
    assert broker.node.store.log.end == log_end
    assert len(delivered(broker)) == count


def test_open_transaction_is_checked_with_a_copy_and_given_up(tmp_path: Path) -> None:
    broker = checking(tmp_path, transaction_checks_max=3)
    half(broker, b"one")
    checks = []
    for _ in range(6):
        broker.pass_time(4_000)
        checks += broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)
    assert [check.fields["tranStateTableOffset"] for check in checks] == ["1", "2", "3"]
    for at, check in enumerate(checks, start=1):
        copy = at_offset(broker, HALF_TOPIC, at)
        (asked,) = decode_messages(check.body)
        assert int(check.fields["commitLogOffset"]) == copy.log_offset
        assert copy.properties["TRANSACTION_CHECK_TIMES"] == str(at)
        assert (asked.topic, asked.queue_id, asked.body, asked.unique_key) == ("TopicA", 1, b"one", "K1")
        assert check.fields["msgId"] == check.fields["transactionId"] == "K1"
    assert bodies(broker, CHECK_MAX_TIME_TOPIC) == [b"one"]
    assert broker.node.features.find(Transactions).keeps_log_from() is None


@pytest.mark.parametrize("named", [0, 1, 2])
def test_transaction_is_ended_once_whichever_copy_is_named(tmp_path: Path, named: int) -> None:
    broker = checking(tmp_path)
    half(broker)
    broker.pass_time(9_000)
    assert end(broker, named, COMMIT).code == OK
    for other in range(3):
        assert end(broker, other, COMMIT).code == OK
    broker.pass_time(30_000)
    assert len(delivered(broker)) == 1
    assert len(broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)) == 2
    # Another master that has the message without its op record knows the newest copy only.
    assert delivered(broker)[0].prepared_offset == at_offset(broker, HALF_TOPIC, 2).log_offset


def test_immunity_delays_the_first_check_and_costs_none(tmp_path: Path) -> None:
    broker = checking(tmp_path, transaction_checks_max=2)
    half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    broker.pass_time(9_900)
    assert broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE) == []
    broker.pass_time(20_000)
    assert len(broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)) == 2
    late = end(broker, 0, COMMIT)
    assert late.code == ResponseCode.ILLEGAL_OPERATION
    assert end(broker, 0, COMMIT, fromTransactionCheck=True).code == OK
    assert len(delivered(broker)) == 1


def test_long_immunity_does_not_hold_the_progress(tmp_path: Path) -> None:
    broker = ready(tmp_path, transaction_check_interval_ms=30_000)
    half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="2000")
    broker.pass_time(700_000)
    assert at_offset(broker, HALF_TOPIC, 2).properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE) == []
    assert broker.node.offsets.get(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0) == 2
    assert end(broker, 0, COMMIT).code == OK


def test_checks_alternate_between_the_producers_of_a_group(tmp_path: Path) -> None:
    broker = checking(tmp_path)
    broker.open(7)
    broker.heartbeat("", producers=[GROUP], client_id="client-2", link=7)
    for key in "ABCD":
        half(broker, key=key)
    broker.pass_time(5_000)
    assert len(broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)) == 2
    assert len(broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE, link=7)) == 2
    broker.outbox.waiting[7] = 10 << 20
    broker.pass_time(4_000)
    assert len(broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)) == 4


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"producerGroup": "other"}, 1, "producer group wrong"),
        ({"tranStateTableOffset": 5}, 1, "state table offset wrong"),
        ({"commitLogOffset": 1 << 40}, 1, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, 1, "Find prepared transaction message failed"),
        ({"commitOrRollback": 4}, 29, "commitOrRollback=4"),
        ({"msgId": "0" * 2}, 1, "message id wrong"),
        ({"commitOrRollback": "x"}, 1, "commitOrRollback"),
    ],
)
def test_wrong_end_is_refused_and_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], code: int, remark: str
) -> None:
    broker = ready(tmp_path)
    half(broker)
    answer = end(broker, 0, COMMIT, **fields)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert delivered(broker) == []
    assert end(broker, 0, COMMIT).code == OK


def test_refused_ends_are_logged_once_a_second(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = ready(tmp_path)
    half(broker)
    for _ in range(3):
        end(broker, 0, COMMIT, producerGroup="other")
    broker.pass_time(1_000)
    end(broker, 0, COMMIT, producerGroup="other")
    lines = [record.getMessage() for record in caplog.records if "refused=" in record.getMessage()]
    assert [line.split("group=")[1] for line in lines] == [
        "other refused=1: The producer group wrong",
        "other refused=3: The producer group wrong",
    ]


def test_end_of_an_ordinary_message_is_refused(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    broker.send("TopicA", b"one", PGROUP=GROUP, REAL_TOPIC="TopicB", REAL_QID="0", TRAN_MSG="false")
    offset = at_offset(broker, "TopicA", 0).log_offset
    half(broker)
    answer = end(broker, 0, COMMIT, commitLogOffset=offset)
    assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")


def test_unknown_outcome_leaves_the_transaction_open(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    half(broker)
    assert end(broker, 0, 0).code == OK
    assert end(broker, 0, COMMIT).code == OK
    assert len(delivered(broker)) == 1


@pytest.mark.parametrize(
    ("properties", "code", "remark"),
    [
        ({"PGROUP": ""}, 13, "producer group"),
        ({"DELAY": "3"}, 13, "delayed"),
        ({"TIMER_DELAY_SEC": "3"}, None, ""),
    ],
)
def test_half_message_that_cannot_be_is_refused(
    tmp_path: Path, properties: dict[str, Any], code: int | None, remark: str
) -> None:
    broker = ready(tmp_path)
    answer = half(broker, **properties)
    assert answer.code != OK
    assert code in (None, answer.code)
    assert remark in (answer.remark or "")
    assert (HALF_TOPIC, 0) not in broker.node.store.queues


def test_rejected_by_the_setting(tmp_path: Path) -> None:
    broker = ready(tmp_path, reject_transactions=True)
    assert half(broker).code == ResponseCode.NO_PERMISSION


def test_more_transactions_than_the_limit_are_refused(tmp_path: Path) -> None:
    broker = ready(tmp_path, transactions_max=2)
    for key in "AB":
        assert half(broker, key=key).code == OK
    assert half(broker, key="C").code == ResponseCode.SYSTEM_BUSY
    end(broker, 0, ROLLBACK, key="A")
    assert half(broker, key="D").code == OK


def test_message_that_a_client_sends_back_is_no_half_message(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    fields = {
        "a": GROUP,
        "b": "TopicA",
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": broker.now.wall_ms,
        "h": 0,
        "i": "TRAN_MSG\x01true\x02DELAY\x011\x02PGROUP\x01tx",
        "j": 1,
        "k": "false",
        "m": "false",
    }
    assert broker.ask(RequestCode.SEND_MESSAGE_V2, fields, b"again").code == OK
    assert (HALF_TOPIC, 0) not in broker.node.store.queues


def test_failed_write_ends_nothing(tmp_path: Path) -> None:
    disk = SimDisk(Random(1))
    broker = ready(disk)
    half(broker)
    disk.fail("pwrite", times=1, error=DiskFull, prefix="commitlog")
    assert end(broker, 0, COMMIT).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert delivered(broker) == []
    disk.heal()
    broker.pass_time(25_000)
    assert end(broker, 0, COMMIT).code == OK
    assert len(delivered(broker)) == 1


@spec("G09", "G11")
@pytest.mark.parametrize("is_clean", [True, False])
def test_open_transactions_survive_a_restart(tmp_path: Path, is_clean: bool) -> None:
    broker = checking(tmp_path)
    for key in "ABCD":
        half(broker, key.encode(), key=key)
    end(broker, 1, COMMIT, key="B")
    end(broker, 3, ROLLBACK, key="D")
    broker.pass_time(5_000)  # a check of A and C
    broker = broker.restart(clean=is_clean)
    assert broker.ask(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": GROUP,
            "tranStateTableOffset": 0,
            "commitLogOffset": 0,
            "commitOrRollback": COMMIT,
        },
    ).code in (1, ResponseCode.SYSTEM_BUSY)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)
    assert end(broker, 1, COMMIT, key="B").code == 1  # it was ended before
    broker.pass_time(9_000)
    checks = broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)
    assert [check.fields["msgId"] for check in checks[:2]] == ["A", "C"]
    last = checks[-1].fields
    assert end(broker, int(last["tranStateTableOffset"]), COMMIT, key=last["msgId"]).code == OK
    assert sorted(message.body for message in delivered(broker)) == [b"B", b"C"]


@pytest.mark.parametrize("op", [b"2", b"2,"])
def test_java_broker_ended_a_copy_and_the_half_message_with_it(tmp_path: Path, op: bytes) -> None:
    """A Java broker writes no op record for a half message that it copies, nor where its copies come from."""
    broker = ready(tmp_path)
    for key in "AB":
        half(broker, key.encode(), key=key)
    for key in "AB":  # copies as of a check
        append_as_java(broker, at_offset(broker, HALF_TOPIC, "AB".index(key)), HALF_TOPIC, key.encode())
    append_as_java(broker, at_offset(broker, HALF_TOPIC, 0), OP_HALF_TOPIC, op, TAGS="d")
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)
    assert list(open_transactions(broker).entries) == [3]
    assert end(broker, 1, COMMIT, key="B").code == OK
    assert end(broker, 3, COMMIT, key="B").code == OK
    assert [message.body for message in delivered(broker)] == [b"B"]


@pytest.mark.parametrize(
    ("body", "is_logged"),
    [
        (b"7", True),
        (b"0,7,", True),
        (b"1,99999999999999999,-3,x,,", True),
        (b"x" * 3_000, False),
        (b"1" * 3_000, False),
    ],
)
def test_op_record_that_points_nowhere_ends_nothing(
    tmp_path: Path, body: bytes, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither what it names now, nor a half message that gets such an offset later."""
    broker = ready(tmp_path)
    half(broker, key="K0")
    append_as_java(broker, at_offset(broker, HALF_TOPIC, 0), OP_HALF_TOPIC, body, TAGS="d")
    for number in range(1, 8):
        half(broker, key=f"K{number}")
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)
    first = 1 if body.startswith(b"0,") else 0
    assert list(open_transactions(broker).entries) == list(range(first, 8))
    assert ("not before it" in caplog.text) is is_logged


def append_as_java(broker: Harness, like: StoredMessage, topic: str, body: bytes, **properties: str) -> None:
    """Append a record behind the broker's back, as a Java broker that had its store."""
    queue = broker.node.topics.queue(Topic(internal_topic(topic, 1)), 0)
    broker.node.store.put(
        queue,
        body=body,
        properties=encode_properties(properties or like.properties).encode(),
        flag=0,
        sys_flag=0,
        born_ms=like.born_ms,
        born_host=pack_host(like.born_host),
        store_ms=like.store_ms,
        store_host=pack_host(like.store_host),
        reconsume_times=0,
    )
    broker.node.store.commit()


def test_resumed_transaction_is_checked_again(tmp_path: Path) -> None:
    broker = checking(tmp_path, transaction_checks_max=1)
    half(broker, b"one")
    open_id = {"msgId": at_offset(broker, HALF_TOPIC, 0).offset_message_id}
    assert broker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, open_id).code == 1
    broker.pass_time(13_000)
    broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)
    parked = at_offset(broker, CHECK_MAX_TIME_TOPIC, 0)
    assert broker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": parked.offset_message_id}).code == OK
    broker.pass_time(4_000)
    (check,) = broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)
    assert end(broker, int(check.fields["tranStateTableOffset"]), COMMIT, fromTransactionCheck=True).code == OK
    assert [message.body for message in delivered(broker)] == [b"one"]
    for wrong in ("zz", parked.offset_message_id[:-2] + "00"):
        assert broker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": wrong}).code == 1


def test_late_commit_of_a_transaction_that_was_given_up(tmp_path: Path) -> None:
    broker = checking(tmp_path, transaction_checks_max=1)
    half(broker)
    broker.pass_time(13_000)
    assert bodies(broker, CHECK_MAX_TIME_TOPIC) == [b"body"]
    assert end(broker, 1, COMMIT, fromTransactionCheck=True).code == OK
    assert end(broker, 1, COMMIT, fromTransactionCheck=True).code == OK
    assert len(delivered(broker)) == 1


@pytest.mark.parametrize("first", [0, 1, 2])
def test_transaction_that_was_given_up_is_committed_once_whichever_copy_is_named(tmp_path: Path, first: int) -> None:
    broker = checking(tmp_path, transaction_checks_max=2)
    half(broker)
    broker.pass_time(17_000)
    assert bodies(broker, CHECK_MAX_TIME_TOPIC) == [b"body"]
    for at in (first, 0, 1, 2):
        assert end(broker, at, COMMIT, fromTransactionCheck=True).code == OK
    assert len(delivered(broker)) == 1


def test_resumed_transaction_ends_as_the_half_message_that_is_checked(tmp_path: Path) -> None:
    broker = checking(tmp_path, transaction_checks_max=1)
    half(broker)
    broker.pass_time(13_000)
    parked = at_offset(broker, CHECK_MAX_TIME_TOPIC, 0)
    assert broker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": parked.offset_message_id}).code == OK
    assert "not open" in (end(broker, 1, COMMIT, fromTransactionCheck=True).remark or "")
    assert end(broker, 2, COMMIT, fromTransactionCheck=True).code == OK
    assert len(delivered(broker)) == 1


def test_repeated_end_waits_for_replicas_as_the_first_one(tmp_path: Path) -> None:
    broker = ready(tmp_path, role="SYNC_MASTER")
    assert half(broker).code == ResponseCode.SLAVE_NOT_AVAILABLE
    answers = [end(broker, 0, COMMIT).code for _ in range(2)]
    assert answers == [ResponseCode.SLAVE_NOT_AVAILABLE] * 2


def test_counts_are_kept_by_topic(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for key in "ABC":
        half(broker, key=key)
    half(broker, key="D", topic="TopicB")
    end(broker, 0, COMMIT, key="A")
    broker.pass_time(4_000)
    counts = TableFile("transactionMetrics").load(broker.disk)["transactionCount"]
    assert {topic: entry["count"] for topic, entry in counts.items()} == {"TopicA": 2, "TopicB": 1}


def test_slave_ends_no_transactions(tmp_path: Path) -> None:
    broker = Harness(tmp_path, role="SLAVE", broker_id=1)
    fields = {"producerGroup": GROUP, "tranStateTableOffset": 0, "commitLogOffset": 0, "commitOrRollback": COMMIT}
    assert broker.ask(RequestCode.END_TRANSACTION, fields).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert CLIENT in broker.inbox


@pytest.mark.parametrize("open_count", [0, 1])
def test_many_ends_in_one_turn_share_op_records(tmp_path: Path, open_count: int) -> None:
    """All are known after a restart, whether an older transaction is open or not."""
    broker = ready(tmp_path)
    halves = 1_200
    for at in range(halves):
        half(broker, key=f"K{at}")
    frames = []
    for at in range(open_count, halves):
        stored = at_offset(broker, HALF_TOPIC, at)
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(at),
            "commitLogOffset": str(stored.log_offset),
            "commitOrRollback": str(COMMIT),
            "msgId": f"K{at}",
        }
        frames.append(encode_command(Command(RequestCode.END_TRANSACTION, at, 2, fields=fields)))
    broker.turn([(CLIENT, b"".join(frames))])
    assert len(bodies(broker, OP_HALF_TOPIC)) == 3
    assert broker.node.store.queues["TopicA", 1].max_offset == halves - open_count
    broker = broker.restart(clean=False)
    broker.pass_time(1_000)
    assert len(open_transactions(broker)) == open_count


def test_log_alone_is_enough_for_another_master(tmp_path: Path) -> None:
    """A slave's offset table may be older than its log, or newer than what the log has after a failover."""
    broker = checking(tmp_path)
    for key in "ABC":
        half(broker, key.encode(), key=key)
    end(broker, 0, COMMIT, key="A")
    broker.pass_time(9_000)  # B and C are checked twice
    newest = int(broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)[-2].fields["tranStateTableOffset"])
    end(broker, newest, ROLLBACK, key="B")
    broker.node.close()
    for file in (tmp_path / "config").glob("*ffset*"):
        file.unlink()
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(4_200)
    (check,) = broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)
    assert check.fields["msgId"] == "C"
    assert (
        at_offset(broker, HALF_TOPIC, int(check.fields["tranStateTableOffset"])).properties["TRANSACTION_CHECK_TIMES"]
        == "3"
    )
    assert [message.body for message in delivered(broker)] == [b"A"]


def test_offset_table_ahead_of_the_log_forgets_nothing(tmp_path: Path) -> None:
    """The log of a Java master, whose op records do not say from where to read, with a table of a later moment."""
    broker = ready(tmp_path)
    half(broker, key="A")
    broker.node.offsets.commit(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0, 40)
    broker = broker.restart()
    broker.pass_time(200)
    assert end(broker, 0, COMMIT, key="A").code == OK
    assert len(delivered(broker)) == 1


def test_clean_stop_leaves_the_progress_for_a_java_broker(tmp_path: Path) -> None:
    """It checks again what has ended since the offsets in the table, if a list names it (4.9) or no op record does."""
    broker = checking(tmp_path)
    for key in "ABC":
        half(broker, key=key)
    broker.pass_time(4_200)
    assert end(broker, 3, COMMIT, key="A").code == OK
    broker.node.stop(broker.now)
    broker.node.close()
    table = TableFile("consumerOffset.json").load(broker.disk)["offsetTable"]
    progress = {name: table[f"{name}@CID_RMQ_SYS_TRANS"]["0"] for name in (HALF_TOPIC, OP_HALF_TOPIC)}
    assert progress == {HALF_TOPIC: 4, OP_HALF_TOPIC: 2}


@pytest.mark.parametrize("is_first_open", [False, True])
def test_ends_of_one_turn_are_a_list_that_a_4_9_broker_skips_if_nothing_before_it_is_open(
    tmp_path: Path, is_first_open: bool
) -> None:
    """RocketMQ 4.9 takes what a list names for open, from the half message on that the offset table has."""
    broker = ready(tmp_path)
    for key in "ABC":
        half(broker, key=key)
    if not is_first_open:
        end(broker, 0, COMMIT, key="A")
    ends = b""
    for at, key in ((1, "B"), (2, "C")):
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(at),
            "commitLogOffset": str(at_offset(broker, HALF_TOPIC, at).log_offset),
            "commitOrRollback": str(COMMIT),
            "msgId": key,
        }
        ends += encode_command(Command(RequestCode.END_TRANSACTION, at, fields=fields))
    broker.turn([(CLIENT, ends)])
    assert bodies(broker, OP_HALF_TOPIC) == ([b"1,2,"] if is_first_open else [b"0", b"1,2,"])
    broker.node.stop(broker.now)
    broker.node.close()
    table = TableFile("consumerOffset.json").load(broker.disk)["offsetTable"]
    progress = [table.get(f"{name}@CID_RMQ_SYS_TRANS", {}).get("0", 0) for name in (HALF_TOPIC, OP_HALF_TOPIC)]
    assert progress == ([0, 0] if is_first_open else [3, 2])


def test_end_right_after_the_start_is_taken(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    half(broker, key="A")
    assert end(broker, 0, COMMIT, key="A").code == OK
    half(broker, key="B")
    broker = broker.restart(clean=False)
    assert end(broker, 1, COMMIT, key="B").code == OK
    assert len(delivered(broker)) == 2


@spec("G10")
def test_retention_keeps_the_log_of_open_transactions(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    broker.send("TopicA", b"before")
    half(broker, key="A")
    first = at_offset(broker, HALF_TOPIC, 0).log_offset
    assert broker.node.upkeep._needed()["open transactions"] == first
    end(broker, 0, ROLLBACK, key="A")
    assert "open transactions" not in broker.node.upkeep._needed()


@spec("G10")
def test_transaction_whose_half_message_was_deleted_on_a_full_disk_is_no_longer_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = checking(tmp_path)
    half(broker, key="A")
    while broker.node.store.log.segment_starts[-1] == 0:
        broker.send("TopicA", b"x" * 1_000)
    half(broker, key="B")
    broker.node.store.drop_first_segment()
    table = broker.node.features.find(Transactions).table
    assert table is not None and list(table.entries) == [0, 1]
    broker.pass_time(4_200)
    assert len(table) == 1 and 0 not in table.entries
    assert "half message 0 of topic=TopicA was deleted with its log" in caplog.text
    assert end(broker, 1, COMMIT, key="B").code == OK
    broker = broker.restart(clean=False)
    broker.pass_time(100)
    table = broker.node.features.find(Transactions).table
    assert table is not None and not table.entries
