"""Pulls: every response code, limits, filters, long polls, and commits of pulls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tandemq.boundary import Drained, LinkKind, Turn
from tandemq.broker.features.pulls import processor
from tandemq.broker.features.pulls.hold_service import HELD_PER_LINK_MAX
from tandemq.broker.features.pulls.message_reader import MessageReader
from tandemq.broker.kernel import pull_counters
from tandemq.broker.kernel.context import Machine
from tandemq.broker.kernel.pulls import Messages
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.config.settings import BrokerConfig
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import TopicConfig
from tandemq.storage.consume_queue import ConsumeQueue
from tests.request_fields import pull_fields
from tests.spec import spec
from tests.unit.broker.harness import CLIENT, Harness, messages_in

OK = ResponseCode.SUCCESS
NO_NEW = ResponseCode.PULL_NOT_FOUND
AGAIN = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED


def pulled(broker: Harness, offset: int = 0, **named: object) -> tuple[int, int, list[bytes]]:
    """Return code, next offset and bodies."""
    answer = broker.pull("TopicA", offset, **named)  # type: ignore[arg-type]
    assert answer is not None
    bodies = [message.body for message in messages_in(answer)] if answer.code == OK else []
    return answer.code, int(answer.fields["nextBeginOffset"]), bodies


def asked(broker: Harness, **changes: object) -> int:
    return broker.ask(RequestCode.PULL_MESSAGE, pull_fields() | changes).code


def test_response_by_offset_in_a_queue(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", b"0")
    assert pulled(broker, 0, queue_id=1) == (NO_NEW, 0, [])
    assert pulled(broker, 7, queue_id=1) == (MOVED, 0, [])
    assert pulled(broker, 0) == (OK, 1, [b"0"])
    assert pulled(broker, 1) == (NO_NEW, 1, [])
    assert pulled(broker, 2) == (MOVED, 1, [])
    assert pulled(broker, -1) == (MOVED, 0, [])


def test_offset_below_the_minimum_is_moved_to_the_first_message(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for number in range(60):
        broker.send("TopicA", bytes([number]) * 1000)
    broker.node.store.drop_first_segment()
    first = broker.node.store.queues["TopicA", 0].min_offset
    assert first > 20
    assert pulled(broker, first - 1) == (MOVED, first, [])
    assert pulled(broker, 0) == (MOVED, first, [])
    code, _, bodies = pulled(broker, first)
    assert (code, bodies[0]) == (OK, bytes([first]) * 1000)


def test_slave_does_not_correct_an_offset_beyond_its_log(tmp_path: Path) -> None:
    """The master may have it already."""
    broker = Harness(tmp_path, role="SLAVE", broker_id=1)
    broker.node.topics.put(TopicConfig("TopicA", 4, 4, 6), 0)
    code, following, _ = pulled(broker, 50)
    assert code in (AGAIN, MOVED)
    assert code == MOVED or following == 50


def test_limits_of_a_pull(tmp_path: Path) -> None:
    assert (BrokerConfig().transfer_messages_max, BrokerConfig().transfer_bytes_max) == (32, 256 * 1024)
    broker = Harness(tmp_path, transfer_bytes_max=5_000)
    for _ in range(50):
        broker.send("TopicA", b"x" * 10)
    assert len(pulled(broker, most=1000)[2]) == 32
    assert len(pulled(broker, most=3)[2]) == 3
    assert len(pulled(broker, most=0)[2]) == 1
    broker.send("TopicA", b"y" * 4_000)
    broker.send("TopicA", b"z" * 8_000)
    assert [len(body) for body in pulled(broker, 50)[2]] == [4_000]
    assert [len(body) for body in pulled(broker, 51)[2]] == [8_000], "the first message is always sent"


def test_reader_of_whole_queues_gets_large_responses(tmp_path: Path) -> None:
    broker = Harness(tmp_path, transfer_bytes_max=5_000)
    for number in range(300):
        broker.send("TopicA", b"%d" % number)
    fields = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "queueOffset": 0, "sysFlag": 4}
    fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "bulk": "true"}

    def bodies(most: int, offset: int = 0) -> list[bytes]:
        answer = broker.ask(RequestCode.PULL_MESSAGE, fields | {"maxMsgNums": most, "queueOffset": offset})
        assert answer.code == OK
        return [message.body for message in messages_in(answer)]

    assert bodies(200) == [b"%d" % number for number in range(200)]
    assert len(bodies(10_000)) == 300
    assert len(pulled(broker, most=200)[2]) == 32, "the limits of others stay"
    for _ in range(150):
        broker.send("TopicA", b"x" * 8_000)
    assert 120 < len(bodies(10_000, 300)) < 132, "1 MiB"


@pytest.mark.parametrize(
    ("expression", "matching"),
    [("*", 6), ("", 6), ("a", 2), ("a || b", 4), (" a||b ||c ", 6), ("z", 0), ("Aa", 0)],
)
def test_tags_select_messages(tmp_path: Path, expression: str, matching: int) -> None:
    broker = Harness(tmp_path)
    for tag in ("a", "b", "c") * 2:
        broker.send("TopicA", tag.encode(), TAGS=tag)
    code, following, bodies = pulled(broker, expression=expression)
    assert len(bodies) == matching
    assert (code, following) == (OK if matching else AGAIN, 6)


def test_checks_run_in_the_documented_order(tmp_path: Path) -> None:
    broker = Harness(tmp_path, auto_create_group=False)
    node = broker.node
    broker.send("TopicA")
    node.pull.checks.permission = 2
    assert asked(broker, consumerGroup="unknown") == ResponseCode.NO_PERMISSION
    node.pull.checks.permission = 6
    assert asked(broker, topic="Nothing") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    node.groups._auto_create = True
    group = node.groups.find("group", 0)
    assert group is not None
    group.consume_enable = False
    assert asked(broker, topic="Nothing") == ResponseCode.NO_PERMISSION
    group.consume_enable = True
    assert asked(broker, topic="Nothing", queueId=99) == ResponseCode.TOPIC_NOT_EXIST
    node.topics.put(TopicConfig("WriteOnly", 2, 2, 2), 0)
    assert asked(broker, topic="WriteOnly", queueId=99) == ResponseCode.NO_PERMISSION
    node.topics.put(TopicConfig("Shrunk", 2, 4, 6), 0)
    for queue_id in (-1, 2, 99):
        assert asked(broker, topic="Shrunk", queueId=queue_id, subscription="||") == ResponseCode.SYSTEM_ERROR
    assert asked(broker, subscription="||") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert asked(broker, expressionType="SQL92") == ResponseCode.SYSTEM_ERROR
    assert asked(broker, sysFlag=0) == ResponseCode.SUBSCRIPTION_NOT_EXIST
    broker.heartbeat("group", {"Other": "*"})
    assert asked(broker, sysFlag=0) == ResponseCode.SUBSCRIPTION_NOT_EXIST
    broker.now.wall_ms += 1
    broker.heartbeat("group", {"TopicA": "*"})
    assert asked(broker, sysFlag=0, subVersion=broker.now.wall_ms + 1) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    group.consume_broadcast_enable = False
    node.clients.consumers["group"].message_model = "BROADCASTING"
    assert asked(broker, sysFlag=0) == ResponseCode.NO_PERMISSION
    group.consume_broadcast_enable = True
    assert asked(broker, sysFlag=0) == OK


def test_fast_port_does_not_serve_pulls(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.open(9, LinkKind.FAST)
    answer = broker.pull("TopicA", link=9)
    assert answer is not None
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_pull_commits_the_offset_it_carries_on_a_master_only(tmp_path: Path) -> None:
    broker = Harness(tmp_path / "master")
    broker.send("TopicA")
    broker.pull("TopicA", commit=17)
    assert broker.node.offsets.get("TopicA", "group", 0) == 17
    slave = Harness(tmp_path / "slave", role="SLAVE", broker_id=1)
    slave.node.topics.put(TopicConfig("TopicA", 4, 4, 6), 0)
    slave.pull("TopicA", commit=17)
    assert slave.node.offsets.get("TopicA", "group", 0) is None


def test_read_error_is_reported_to_the_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.send("TopicB")

    def refuse(*_: object) -> bytes:
        raise DiskFailed("bad sector")

    log = broker.node.store.log
    log.recent.restart(log.written_end)
    monkeypatch.setattr(log, "file_at", refuse)
    answer = broker.pull("TopicA")
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR


# Reading from the slave.


MEMORY = 100_000
"""Memory of a machine of which 10 percent are about nine messages of 1,000 bytes."""


def suggestions(broker: Harness, queue_offsets: tuple[int, ...]) -> list[str]:
    """Return the broker id suggested in the responses to pulls at these offsets."""
    answers = [broker.pull("TopicA", at, most=1) for at in queue_offsets]
    return [answer.fields["suggestWhichBrokerId"] for answer in answers if answer is not None]


@spec("R10", "V20")
def test_consumer_further_behind_than_a_share_of_memory_is_sent_to_the_slave_if_enabled(tmp_path: Path) -> None:
    assert BrokerConfig().slave_read_enable is False
    assert BrokerConfig().memory_ratio_max == 40
    for allowed, suggested in ((True, "1"), (False, "0")):
        broker = Harness(
            tmp_path / str(allowed), machine=Machine("boot-1", MEMORY), slave_read_enable=allowed, memory_ratio_max=10
        )
        for _ in range(40):
            broker.send("TopicA", b"x" * 1_000)
        record_bytes = broker.node.store.log.written_end // 40
        last_far = 39 - 10_000 // record_bytes - 1
        assert suggestions(broker, (0, last_far, last_far + 2, 39)) == [suggested, suggested, "0", "0"]


@spec("R10", "V20")
def test_twice_the_share_or_memory_doubles_the_lag_for_reading_from_the_slave(tmp_path: Path) -> None:
    for memory_bytes, ratio in ((MEMORY * 2, 10), (MEMORY, 20)):
        broker = Harness(
            tmp_path / str(ratio),
            machine=Machine("boot-1", memory_bytes),
            slave_read_enable=True,
            memory_ratio_max=ratio,
        )
        for _ in range(40):
            broker.send("TopicA", b"x" * 1_000)
        near = 39 - 20_000 // (broker.node.store.log.written_end // 40)
        assert suggestions(broker, (near - 2, near + 2)) == ["1", "0"]


@spec("R10")
def test_slave_suggests_another_broker_at_a_ratio_lower_by_ten_percent(tmp_path: Path) -> None:
    """RocketMQ's brokers lower the ratio by 10 when they start as slaves."""
    broker = Harness(tmp_path, machine=Machine("boot-1", MEMORY), slave_read_enable=True, memory_ratio_max=20)
    for _ in range(40):
        broker.send("TopicA", b"x" * 1_000)
    broker.node.close()
    slave = Harness(
        tmp_path,
        role="SLAVE",
        broker_id=1,
        machine=Machine("boot-1", MEMORY),
        slave_read_enable=True,
        memory_ratio_max=20,
    )
    near = 39 - 10_000 // (slave.node.store.log.written_end // 40)
    assert suggestions(slave, (near - 2, near + 2)) == ["1", "0"]


@spec("R10")
def test_group_configures_the_broker_that_serves_it_when_it_is_slow(tmp_path: Path) -> None:
    broker = Harness(tmp_path, machine=Machine("boot-1", MEMORY), slave_read_enable=True, memory_ratio_max=0)
    group = broker.node.groups.find("group", 0)
    assert group is not None
    assert group.which_broker_when_consume_slowly == 1
    group.which_broker_when_consume_slowly = 3
    for _ in range(2):
        broker.send("TopicA")
    assert suggestions(broker, (0,)) == ["3"]


# Long polls.


def held(broker: Harness, offset: int = 1, wait_ms: int = 15_000, **named: object) -> None:
    assert broker.pull("TopicA", offset, wait_ms=wait_ms, **named) is None  # type: ignore[arg-type]


def test_held_pull_is_woken_by_the_next_message_at_once(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    held(broker)
    broker.open(5)
    broker.send("TopicA", b"new", link=5)
    (answer,) = broker.inbox[CLIENT]
    assert [message.body for message in messages_in(answer)] == [b"new"]
    assert broker.node.pull.held.size == 0


def test_groups_held_at_the_same_offset_share_one_read_and_others_get_what_they_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", TAGS="old")
    reads: list[int] = []
    read = MessageReader.read

    def counting(reader: MessageReader, queue: ConsumeQueue, offset: int, *rest: Any, **named: Any) -> Messages:
        reads.append(offset)
        return read(reader, queue, offset, *rest, **named)

    monkeypatch.setattr(MessageReader, "read", counting)
    for number in range(3):
        held(broker, group=f"G{number}")
    held(broker, group="G3", expression="new")
    held(broker, group="G4", expression="other")
    broker.open(5)
    for number in range(2):
        broker.send("TopicA", b"%d" % number, link=5, TAGS="new")
        assert len(broker.inbox[CLIENT]) == 4 * (number + 1)
        for answer in broker.inbox[CLIENT][4 * number :]:
            assert [message.body for message in messages_in(answer)] == [b"%d" % number]
            assert answer.fields["nextBeginOffset"] == str(2 + number)
        if not number:
            assert reads == [1, 1, 1], "one for all messages, one for each tag"
            for group in range(4):
                held(broker, 2, group=f"G{group}", expression="new" if group == 3 else "*")


def test_held_pull_is_answered_at_its_deadline_and_not_before(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    held(broker)
    broker.pass_time(14_999)
    assert broker.inbox[CLIENT] == []
    broker.pass_time(1)
    (answer,) = broker.inbox[CLIENT]
    assert (answer.code, answer.fields["nextBeginOffset"]) == (NO_NEW, "1")


def test_held_pull_is_not_answered_with_other_tags(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    held(broker, expression="wanted")
    broker.open(5)
    for _ in range(3):
        broker.send("TopicA", b"no", link=5, TAGS="other")
    assert broker.inbox[CLIENT] == []
    broker.send("TopicA", b"yes", link=5, TAGS="wanted")
    (answer,) = broker.inbox[CLIENT]
    assert [message.body for message in messages_in(answer)] == [b"yes"]
    assert answer.fields["nextBeginOffset"] == "5"


def test_held_pull_that_met_only_other_tags_returns_the_offset_behind_them(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    held(broker, expression="wanted")
    broker.open(5)
    broker.send("TopicA", b"no", link=5, TAGS="other")
    broker.pass_time(15_000)
    (answer,) = broker.inbox[CLIENT]
    assert (answer.code, answer.fields["nextBeginOffset"]) == (AGAIN, "2")


def test_held_pull_of_a_closed_connection_is_dropped(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.open(5)
    held(broker, link=5)
    broker.close(5)
    assert broker.node.pull.held.size == 0
    broker.send("TopicA")
    broker.pass_time(20_000)
    assert broker.inbox[5] == []


def test_pull_on_an_empty_queue_is_held_and_one_beyond_the_end_is_not(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    held(broker, 0, queue_id=3)
    assert broker.pull("TopicA", 5, wait_ms=15_000) is not None


def test_short_polls_are_held_for_one_second(tmp_path: Path) -> None:
    broker = Harness(tmp_path, long_polling=False)
    broker.send("TopicA")
    held(broker)
    broker.pass_time(1_000)
    assert len(broker.inbox[CLIENT]) == 1


def test_held_pulls_per_connection_are_limited_and_answered_ones_are_removed(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    processor = broker.node.pull
    for _ in range(HELD_PER_LINK_MAX):
        held(broker)
    answer = broker.pull("TopicA", 1, wait_ms=15_000)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "too many pulls are held" in str(answer.remark)
    broker.send("TopicA")
    while processor.held.size:
        broker.turn()
    broker.inbox[CLIENT].clear()
    for offset in range(2, 3_000):
        held(broker, offset, wait_ms=100_000)
        broker.send("TopicA", b"")
        broker.inbox[CLIENT].clear()
    assert len(processor.held._deadlines) < 2_500


@pytest.fixture
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A broker with one message of about 1,000 bytes, and room for two per turn and three per connection."""
    monkeypatch.setattr(processor, "TURN_BYTES_MAX", 2_000)
    monkeypatch.setattr(processor, "LINK_BYTES_MAX", 3_000)
    monkeypatch.setattr(processor, "WAITING_PER_LINK_MAX", 5)
    broker = Harness(tmp_path)
    broker.send("TopicA", bytes(900))
    broker.pull("TopicA")  # creates the group, which is saved in a turn of its own
    return broker


def pull_in_one_turn(
    broker: Harness, count: int, link: int = CLIENT, code: RequestCode = RequestCode.PULL_MESSAGE
) -> list[int]:
    """Send pulls in one turn; return the codes of the responses of that turn."""
    frames = [
        encode_command(Command(code, 1_000 + n, fields={k: str(v) for k, v in pull_fields().items()}))
        for n in range(count)
    ]
    return answered_by(broker, lambda: broker.turn([(link, b"".join(frames))]), link)


def answered_by(broker: Harness, act: Callable[[], object], link: int = CLIENT) -> list[int]:
    broker.inbox[link].clear()
    act()
    return [answer.code for answer in broker.inbox[link]]


def test_pull_that_waits_for_room_in_a_topic_that_is_deleted_meanwhile_is_answered(narrow: Harness) -> None:
    fields = {key: str(value) for key, value in pull_fields().items()}
    frames = [encode_command(Command(RequestCode.PULL_MESSAGE, 1_000 + n, fields=fields)) for n in range(3)]
    deletion = Command(RequestCode.DELETE_TOPIC_IN_BROKER, 1_003, fields={"topic": "TopicA"})
    answered_by(narrow, lambda: narrow.turn([(CLIENT, b"".join([*frames, encode_command(deletion)]))]))
    narrow.turn()
    codes = {answer.opaque: answer.code for answer in narrow.inbox[CLIENT]}
    assert codes == {1_000: OK, 1_001: OK, 1_002: AGAIN, 1_003: OK}


def test_bytes_of_responses_per_turn_are_limited_and_the_next_turn_continues(narrow: Harness) -> None:
    assert pull_in_one_turn(narrow, 5) == [OK] * 2
    assert narrow.node.deadline_ms() == 0
    assert answered_by(narrow, narrow.turn) == [OK] * 2
    assert answered_by(narrow, narrow.turn) == [OK]
    assert narrow.node.deadline_ms() != 0
    assert answered_by(narrow, narrow.turn) == []


def test_connection_with_a_full_backlog_gets_no_responses_until_it_drains(narrow: Harness) -> None:
    narrow.open(2)
    narrow.outbox.waiting[CLIENT] = 3_000
    assert pull_in_one_turn(narrow, 2) == []
    assert narrow.node.deadline_ms() != 0
    assert pull_in_one_turn(narrow, 2, link=2) == [OK] * 2
    narrow.outbox.waiting[CLIENT] = 0
    assert answered_by(narrow, lambda: narrow.turn([], [Drained(CLIENT)])) == [OK] * 2


def test_waiting_replica_reads_are_answered_after_reading_is_refused_to_consumers(narrow: Harness) -> None:
    narrow.outbox.waiting[CLIENT] = 3_000
    assert pull_in_one_turn(narrow, 1) + pull_in_one_turn(narrow, 1, code=RequestCode.TANDEM_REPLICA_PULL) == []
    turn, serving = Turn(), narrow.node.kernel.turn.serving
    refused_to_all = structs.replace(serving, read="another member serves")
    narrow.node.pull.on_serving_change(serving, refused_to_all, turn, narrow.now)
    (refused,) = FrameDecoder().feed(b"".join(turn.sends[CLIENT]))
    assert decode_command(refused).code == ResponseCode.NO_PERMISSION
    narrow.outbox.waiting[CLIENT] = 0
    assert answered_by(narrow, lambda: narrow.turn([], [Drained(CLIENT)])) == [OK]


def test_connection_with_too_many_waiting_pulls_has_to_pull_again(narrow: Harness) -> None:
    assert pull_in_one_turn(narrow, 10) == [OK] * 2 + [AGAIN] * 3


def test_waiting_pulls_of_a_closed_connection_are_dropped(narrow: Harness) -> None:
    assert pull_in_one_turn(narrow, 5) == [OK] * 2
    narrow.close(CLIENT)
    assert narrow.node.deadline_ms() != 0
    assert answered_by(narrow, narrow.turn) == []


def test_number_of_waiting_pulls_over_all_connections_is_limited(
    narrow: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "WAITING_MAX", 3)
    others = [31, 32, 33]
    for link in others:
        narrow.open(link)
    frame = encode_command(Command(RequestCode.PULL_MESSAGE, 1, fields={k: str(v) for k, v in pull_fields().items()}))
    for link in others:
        narrow.inbox[link].clear()
    narrow.turn([(link, frame * 3) for link in others])
    codes = [answer.code for link in others for answer in narrow.inbox[link]]
    assert sorted(codes) == [OK, OK] + [ResponseCode.PULL_RETRY_IMMEDIATELY] * 4


def test_statistics_of_pulls_are_limited_by_pairs_and_by_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_counters, "COUNTS_MAX", 3)
    broker = Harness(tmp_path)
    for queue_id in range(4):
        broker.send("TopicA", queue_id=queue_id)
    for number in range(5):
        broker.pull("TopicA", group=f"g{number}")
    counts = broker.node.pull.counters.by_group
    assert list(counts) == [("TopicA", f"g{number}") for number in (2, 3, 4)]
    monkeypatch.setattr(pull_counters, "COUNTED_QUEUES_MAX", 5)
    for queue_id in range(4):
        broker.pull("TopicA", group="g4", queue_id=queue_id)
    assert sum(len(one.next_offsets) for one in counts.values()) == 5
    assert ("TopicA", "g4") in counts
