"""The broker as a whole: handling of internal errors, buffers passed to the loop, and positions of queue entries."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import Closed, LinkKind, Turn
from tandemq.broker.kernel.feature import Request
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.turn_budget import TURN_US
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member
from tests.unit.broker.harness import CLIENT, Harness, messages_in, send_fields

OTHER = 2


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("injected")


def _in_decoder(broker: Harness) -> None:
    class Broken:
        error = None
        feed = staticmethod(fail)

    broker.node.links[OTHER].decoder = Broken()  # type: ignore[assignment]


def _in_send(broker: Harness) -> None:
    broker.node.send.take = fail  # type: ignore[method-assign]


def _in_pull(broker: Harness) -> None:
    broker.node.pull._take = fail  # type: ignore[method-assign]


def _in_handler(broker: Harness) -> None:
    broker.node.features.requests[RequestCode.GET_MAX_OFFSET] = Request(fail)


STAGES: list[tuple[Callable[[Harness], None], Command]] = [
    (_in_decoder, Command(RequestCode.GET_MAX_OFFSET, 1)),
    (_in_send, Command(RequestCode.SEND_MESSAGE_V2, 1, fields={k: str(v) for k, v in send_fields("Fresh").items()})),
    (
        _in_pull,
        Command(
            RequestCode.PULL_MESSAGE,
            1,
            fields={"consumerGroup": "g", "topic": "TopicA", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"},
        ),
    ),
    (_in_handler, Command(RequestCode.GET_MAX_OFFSET, 1, fields={"topic": "TopicA", "queueId": "0"})),
]


@spec("V09")
@pytest.mark.parametrize(("inject", "command"), STAGES)
def test_internal_error_is_logged_once_and_counted_and_closes_only_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, inject: Callable[[Harness], None], command: Command
) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", b"before")
    broker.open(OTHER)
    inject(broker)
    good = Command(RequestCode.GET_MIN_OFFSET, 77, fields={"topic": "TopicA", "queueId": "0"})
    with caplog.at_level(logging.ERROR):
        broker.turn([(OTHER, encode_command(command)), (CLIENT, encode_command(good))])
    assert [link for link, _ in broker.closes] == [OTHER]
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert broker.node.faults == 1
    assert broker.answer_to(77) is not None
    broker.close(OTHER)
    assert OTHER not in broker.node.links


@spec("V09")
def test_error_on_a_replication_connection_closes_it_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for side in ("master", "slave"):
        group = Group(tmp_path / side, role="ASYNC_MASTER")
        wire, member = group.wire, getattr(group, side)
        if side == "master":
            group.master.node.replication.masters.sessions[wire.top_link].receive_data = fail  # type: ignore[method-assign]
        else:
            group.slave.session().receive_data = fail
        group.send(b"x")
        with caplog.at_level(logging.ERROR):
            group.settle()
        assert not wire.is_open
        assert member.node.faults == 1
        group.pass_time(6_000)
        group.send_many(1)
        group.assert_same_logs()


def test_messages_received_before_a_close_in_the_same_turn_are_stored(tmp_path: Path) -> None:
    """A producer sends one-way messages and closes at once: its messages are stored."""
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.open(OTHER)
    fields = {key: str(value) for key, value in send_fields("TopicA").items()}
    frame = encode_command(Command(RequestCode.SEND_MESSAGE_V2, 1, 2, fields=fields, body=b"last words"))
    broker.turn([(OTHER, frame)], [Closed(OTHER, "closed by the peer")])
    found = broker.pull("TopicA", 1)
    assert found is not None
    assert messages_in(found)[0].body == b"last words"


@spec("V10")
def test_every_buffer_passed_to_the_loop_is_immutable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that wait to be sent are kept without a copy, so none of them may change any more."""
    seen: list[bool] = []
    take = Member._take

    def look(self: Member, turn: Turn) -> None:
        seen.extend(memoryview(buffer).readonly for buffers in turn.sends.values() for buffer in buffers)
        take(self, turn)

    monkeypatch.setattr(Member, "_take", look)
    group = Group(tmp_path)
    group.send_many(50, 2_000)
    for offset in range(0, 50, 10):
        group.master.pull("TopicA", offset)
    group.master.heartbeat("group", {"TopicA": "*"})
    group.pass_time(30_000)
    assert len(seen) > 100
    assert all(seen)


@spec("V16")
def test_position_of_a_queue_entry_follows_from_its_offset(tmp_path: Path) -> None:
    """Entry n lies at byte 20 n, in the file whose name is the largest multiple of the file size not above that."""
    broker = Harness(tmp_path, queue_file_bytes=20 * 50)
    for number in range(130):
        broker.send("TopicA", b"%d" % number)
    broker.pass_time(2_000)
    queue = broker.node.store.queues["TopicA", 0]
    for number in (0, 1, 49, 50, 99, 100, 129):
        at = 20 * number
        file = tmp_path / "consumequeue" / "TopicA" / "0" / f"{at - at % 1000:020d}"
        entry = file.read_bytes()[at % 1000 : at % 1000 + 20]
        assert (int.from_bytes(entry[:8]), int.from_bytes(entry[8:12])) == queue.entry(number)[:2]
        found = broker.pull("TopicA", number, most=1)
        assert found is not None
        assert messages_in(found)[0].body == b"%d" % number


@spec("R13")
def test_lag_of_each_slave_can_be_read_at_any_time(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send_many(3)
    group.wire.stalls_down = True
    group.send(b"x" * 1_000)
    answer = group.master.ask(RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == ResponseCode.SUCCESS
    status = group.master.json(RequestCode.GET_BROKER_HA_STATUS)
    (connection,) = status["haConnectionInfo"]
    assert connection["diff"] == group.master.log_end - group.slave.log_end > 1_000
    assert status["masterCommitLogMaxOffset"] == group.master.log_end


@spec("H13", "H18")
def test_slave_whose_stream_ends_is_dropped_at_once(tmp_path: Path) -> None:
    broker = Harness(tmp_path, role="SYNC_MASTER", ha_classic_peers=("10.0.0.66",))
    broker.open(77, LinkKind.HA_MASTER, "10.0.0.66:5000")
    broker.turn([(77, bytes(8))])
    assert broker.node.replication.masters.acked_offsets() == [0]
    broker.close(77, "closed by the peer")
    assert broker.node.replication.masters.acked_offsets() == []
    assert broker.send("TopicA").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_turn_ends_when_its_time_is_over_and_the_rest_comes_in_the_next(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.open(OTHER)
    broker.outbox.look_us = TURN_US // 10
    flood = b"".join(encode_command(Command(RequestCode.GET_BROKER_CONFIG, opaque)) for opaque in range(100))
    turn = broker.turn([(CLIENT, flood), (OTHER, encode_command(Command(RequestCode.GET_BROKER_RUNTIME_INFO, 1)))])
    assert len(broker.inbox[OTHER]) == 1, "a connection beside one that floods is served in the same turn"
    assert 0 < len(broker.inbox[CLIENT]) < 10
    turns = 1
    while turn.unread:
        assert [link for link, _ in turn.unread] == [CLIENT]
        turn = broker.turn(turn.unread)
        turns += 1
    assert turns >= 10
    assert [answer.opaque for answer in broker.inbox[CLIENT]] == list(range(100))


def test_replication_is_served_however_many_requests_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path)
    broker.open(OTHER, LinkKind.HA_MASTER)
    taken: list[bytes] = []
    monkeypatch.setattr(broker.node.replication, "received", lambda _link, data, *_: taken.append(data))
    broker.outbox.look_us = TURN_US
    broker.turn([(CLIENT, encode_command(Command(RequestCode.GET_BROKER_CONFIG, 1)) * 9), (OTHER, b"report")])
    assert taken == [b"report"]
    assert len(broker.inbox[CLIENT]) == 1
