"""Requests and their replies, without sockets."""

import zlib
from uuid import UUID

import pytest

from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer import requester as requests
from tandemq.client.producer.machine import ProducerCore
from tandemq.client.producer.requester import RequestTicket
from tandemq.errors import ClosedError, InvalidMessage, LocalError, NoReply, NoRoute, ProtocolError, RemoteError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.message import Message, SysFlag, decode_properties, encode_properties
from tandemq.model.replies import create_reply
from tests.unit.client.world import WALL_MS, Broker, Health, World

TIMEOUT_MS = 3_000


class Case:
    """A producer, and a broker with the topics of requests and replies."""

    def __init__(self, *, brokers: str = "a") -> None:
        self.world = World()
        self.brokers = [self.world.broker(name) for name in brokers]
        self.world.topic("T", 1, brokers[0])
        self.world.topic("c_REPLY_TOPIC", 1)
        self.producer: ProducerCore = self.world.node.producer(ProducerOptions(group="askers", retry_ms=0))

    @property
    def broker(self) -> Broker:
        return self.brokers[0]

    def ask(self, body: bytes = b"ping", timeout_ms: int = TIMEOUT_MS) -> RequestTicket:
        requester = self.world.node.requester
        return requester.request(self.producer, Message("T", body), self.world.now, timeout_ms=timeout_ms)

    def sent(self) -> list[dict[str, str]]:
        """Return the properties of the requests that the broker got."""
        return [decode_properties(command.fields["i"]) for command in self.broker.of(Code.SEND_MESSAGE_V2)]

    def await_sent(self, count: int = 1) -> list[dict[str, str]]:
        self.world.until(lambda: len(self.sent()) >= count)
        return self.sent()

    def push(self, correlation_id: str, body: bytes = b"pong", broker: Broker | None = None, **fields: str) -> int:
        """Pass a reply on to the client; returns the code of its answer."""
        broker = broker or self.broker
        before = len(broker.responses)
        named = {
            "topic": "c_REPLY_TOPIC",
            "sysFlag": "0",
            "flag": "3",
            "bornTimestamp": "17",
            "storeTimestamp": "18",
            "bornHost": "/10.0.0.1:1",
            "storeHost": "10.0.0.2:2",
            "properties": encode_properties({"CORRELATION_ID": correlation_id, "TAGS": "t", "KEYS": "k l"}),
        }
        broker.ask(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, body, oneway=False, **(named | fields))
        self.world.until(lambda: len(broker.responses) > before)
        return broker.responses[-1].code


@pytest.fixture
def case() -> Case:
    return Case()


def test_request_is_settled_by_its_reply(case: Case) -> None:
    ticket = case.ask()
    [properties] = case.await_sent()
    assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == ("client-1", "3000")
    assert str(UUID(properties["CORRELATION_ID"])) == properties["CORRELATION_ID"]
    assert not ticket.done
    assert case.push(properties["CORRELATION_ID"]) == 0
    reply = ticket.result()
    assert (reply.topic, reply.body, reply.flag, reply.tags, reply.keys) == (
        "c_REPLY_TOPIC",
        b"pong",
        3,
        "t",
        ["k", "l"],
    )
    assert (reply.born_ms, reply.born_host, reply.store_ms, reply.store_host) == (17, "10.0.0.1:1", 18, "10.0.0.2:2")
    assert WALL_MS <= int(reply.properties["ARRIVE_TIME"]) <= case.world.now.wall_ms
    assert not len(case.world.node.requester)


def test_replies_reach_their_own_requests_in_any_order(case: Case) -> None:
    tickets = [case.ask(b"%d" % n) for n in range(5)]
    sent = case.await_sent(5)
    for number in (3, 0, 4, 1, 2):
        case.push(sent[number]["CORRELATION_ID"], b"%d" % number)
    assert [ticket.result().body for ticket in tickets] == [b"%d" % n for n in range(5)]


def test_reply_may_come_before_the_response_to_the_send(case: Case) -> None:
    case.broker.handlers[Code.SEND_MESSAGE_V2] = lambda _command: None
    ticket = case.ask()
    [properties] = case.await_sent()
    case.push(properties["CORRELATION_ID"])
    assert ticket.result().body == b"pong"


def test_every_broker_of_the_cluster_knows_the_requester_before_the_request(case: Case) -> None:
    case = Case(brokers="ab")
    other = case.brokers[1]
    ticket = case.ask()
    [properties] = case.await_sent()
    trace = case.world.trace
    at = next(n for n, (_, command) in enumerate(trace) if command.code == Code.SEND_MESSAGE_V2)
    assert {address for address, command in trace[:at] if command.code == Code.HEART_BEAT} == {"a:10911", "b:10911"}
    case.push(properties["CORRELATION_ID"], broker=other)
    assert ticket.result().body == b"pong"


def test_silent_broker_of_the_cluster_delays_only_the_first_request(case: Case) -> None:
    case = Case(brokers="ab")
    case.brokers[1].health = Health.SILENT
    case.ask()
    took = case.world.until(case.sent)
    assert took <= requests.INTRODUCTION_MS + 20
    case.world.run(4_000)
    case.ask()
    assert case.world.until(lambda: len(case.sent()) == 2) == 0


def test_request_without_a_reply_times_out_and_a_late_reply_is_counted(case: Case) -> None:
    ticket = case.ask()
    [properties] = case.await_sent()
    case.world.run(TIMEOUT_MS)
    assert isinstance(ticket.error, NoReply)
    assert "the request is stored" in str(ticket.error)
    assert case.push(properties["CORRELATION_ID"]) == 0
    requester = case.world.node.requester
    assert (requester.unclaimed, len(requester)) == (1, 0)


def test_second_reply_is_dropped(case: Case) -> None:
    ticket = case.ask()
    [properties] = case.await_sent()
    case.push(properties["CORRELATION_ID"], b"first")
    case.push(properties["CORRELATION_ID"], b"second")
    assert ticket.result().body == b"first"
    assert case.world.node.requester.unclaimed == 1


def test_forgotten_request_is_never_settled(case: Case) -> None:
    ticket = case.ask()
    [properties] = case.await_sent()
    case.world.node.requester.forget(ticket)
    case.push(properties["CORRELATION_ID"])
    case.world.run(2 * TIMEOUT_MS)
    assert not ticket.done
    assert not len(case.world.node.requester)


def test_request_that_is_forgotten_before_it_is_sent_is_sent_and_dropped(case: Case) -> None:
    ticket = case.ask()
    case.world.node.requester.forget(ticket)
    [properties] = case.await_sent()
    case.push(properties["CORRELATION_ID"])
    assert not ticket.done


def test_request_that_cannot_be_sent_fails_with_the_error_of_the_send(case: Case) -> None:
    case.broker.handlers[Code.SEND_MESSAGE_V2] = lambda command: command.answer(13, remark="too large")
    ticket = case.ask()
    case.world.until(lambda: ticket.done)
    assert isinstance(ticket.error, RemoteError)
    assert "too large" in str(ticket.error)
    del case.world.topics["T"]
    unknown = case.world.node.requester.request(
        case.producer, Message("Unknown", b"x"), case.world.now, timeout_ms=TIMEOUT_MS
    )
    case.world.until(lambda: unknown.done)
    assert isinstance(unknown.error, NoRoute)


def test_compressed_reply_is_inflated_and_an_unreadable_one_fails_its_request(case: Case) -> None:
    compressed = str(int(SysFlag.COMPRESSED))
    first, second = case.ask(), case.ask()
    sent = case.await_sent(2)
    assert case.push(sent[0]["CORRELATION_ID"], zlib.compress(b"x" * 100), sysFlag=compressed) == 0
    assert first.result().body == b"x" * 100
    assert case.push(sent[1]["CORRELATION_ID"], b"no zlib", sysFlag=compressed) == 1
    assert isinstance(second.error, ProtocolError)


def test_waiting_requests_and_timeouts_are_limited(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "WAITING_MAX", 2)
    case.ask()
    case.ask()
    with pytest.raises(LocalError, match="2 requests already wait"):
        case.ask()
    case.world.run(TIMEOUT_MS)
    for timeout_ms in (0, -1, requests.TIMEOUT_MS_MAX + 1):
        with pytest.raises(LocalError, match="timeout"):
            case.ask(timeout_ms=timeout_ms)
    assert not case.ask().done


def test_closing_fails_the_requests_that_wait_by_whether_they_are_stored(case: Case) -> None:
    ticket = case.ask()
    case.await_sent()
    not_sent = case.world.node.requester.request(
        case.producer, Message("Other", b"ping"), case.world.now, timeout_ms=TIMEOUT_MS
    )
    closing = case.world.node.close(case.world.now)
    case.world.until(lambda: closing.done)
    with pytest.raises(NoReply, match="the request is stored"):
        ticket.result()
    with pytest.raises(ClosedError):
        not_sent.result()
    with pytest.raises(ClosedError):
        case.ask()


def test_reply_is_sent_by_its_own_code_with_the_properties_of_its_request(case: Case) -> None:
    case.broker.handlers[Code.SEND_REPLY_MESSAGE_V2] = case.broker.handlers[Code.SEND_MESSAGE_V2]
    asked = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "other", "TTL": "500", "CLUSTER": "c"}
    reply = create_reply(_Received(asked), b"pong")
    tickets = [case.producer.send(reply, case.world.now) for _ in range(2)]
    case.world.until(lambda: all(ticket.done for ticket in tickets))
    sent = case.broker.of(Code.SEND_REPLY_MESSAGE_V2)
    properties = decode_properties(sent[0].fields["i"])
    assert (sent[0].fields["b"], sent[0].body) == ("c_REPLY_TOPIC", b"pong")
    assert properties.items() >= {("MSG_TYPE", "reply"), ("CORRELATION_ID", "c-1"), ("REPLY_TO_CLIENT", "other")}
    assert (properties["TTL"], len(sent)) == ("500", 2)


@pytest.mark.parametrize("missing", ["CORRELATION_ID", "REPLY_TO_CLIENT", "CLUSTER"])
def test_reply_to_a_message_that_is_no_request_is_refused(missing: str) -> None:
    asked = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "other", "CLUSTER": "c"}
    del asked[missing]
    with pytest.raises(InvalidMessage, match="request"):
        create_reply(_Received(asked), b"pong")


class _Received:
    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties
