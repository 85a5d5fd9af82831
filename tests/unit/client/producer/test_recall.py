"""The recall of timed messages, without sockets."""

import pytest

from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ProducerOptions
from tandemq.codec.remoting.recall_handle import encode_handle
from tandemq.errors import ClosedError, LocalError, NoRoute, OutcomeUnknown, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message
from tests.unit.client.world import Broker, Health, World

HANDLE = encode_handle("T", "a", 1_700_000_030_000, "KEY")


class Case:
    """A producer and the broker group `a`, which recalls messages."""

    def __init__(self, **options: int) -> None:
        self.world = World()
        self.broker = self.world.broker("a")
        self.world.topic("T", 1)
        self.serve(self.broker)
        self.producer = self.world.node.producer(ProducerOptions(group="orders", **options))  # type: ignore[arg-type]

    def serve(self, broker: Broker, code: int = ResponseCode.SUCCESS) -> None:
        broker.handlers[RequestCode.RECALL_MESSAGE] = lambda command: command.answer(code, fields={"msgId": "KEY"})

    def start(self, handle: str = HANDLE) -> Ticket[str]:
        return self.producer.recall(handle, self.world.now)

    def recall(self, handle: str = HANDLE) -> str:
        ticket = self.start(handle)
        self.world.until(lambda: ticket.done)
        return ticket.result()

    def asked(self) -> list[Command]:
        return self.broker.of(RequestCode.RECALL_MESSAGE)


def test_send_returns_the_handle_with_which_a_new_producer_recalls_the_message() -> None:
    case = Case()
    case.broker.handlers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.answer(
        0, fields={"msgId": "M", "queueId": "0", "queueOffset": "7", "recallHandle": HANDLE}
    )
    sent = case.producer.send(Message("T", b"x", delay=30), case.world.now)
    case.world.until(lambda: sent.done)
    later = Case()
    assert later.recall(sent.result().recall_handle) == "KEY"
    [command] = later.asked()
    assert command.fields == {"producerGroup": "orders", "topic": "T", "recallHandle": HANDLE, "bname": "a"}
    assert later.producer.in_flight == 0


@pytest.mark.parametrize("handle", ["", "nonsense", HANDLE[:-4]])
def test_malformed_handle_is_refused_without_a_request(handle: str) -> None:
    case = Case()
    with pytest.raises(LocalError, match="no recall handle"):
        case.recall(handle)
    assert case.world.name_server.requests == []


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.ILLEGAL_OPERATION])
def test_final_refusal_is_not_repeated(code: ResponseCode) -> None:
    case = Case()
    case.serve(case.broker, code)
    with pytest.raises(RemoteError) as caught:
        case.recall()
    assert (caught.value.code, len(case.asked())) == (code, 1)


def test_recall_is_repeated_until_the_master_accepts_it() -> None:
    case = Case()
    case.serve(case.broker, ResponseCode.SERVICE_NOT_AVAILABLE)
    ticket = case.start()
    case.world.until(lambda: len(case.asked()) == 3)
    case.serve(case.broker)
    case.world.until(lambda: ticket.done)
    assert ticket.result() == "KEY"


def test_recall_follows_a_failover() -> None:
    case = Case()
    slave = case.world.broker("a", broker_id=1)
    case.recall()
    case.broker.refuse()
    ticket = case.start()
    case.world.run(1_000)
    assert not ticket.done
    case.serve(slave)
    case.broker.group.members = {0: slave}
    case.world.until(lambda: ticket.done)
    assert (ticket.result(), len(slave.of(RequestCode.RECALL_MESSAGE))) == ("KEY", 1)


def test_outcome_is_unknown_when_no_attempt_has_a_response_and_a_later_one_comes_too_late() -> None:
    case = Case(timeout_ms=500)
    case.broker.handlers[RequestCode.RECALL_MESSAGE] = lambda _command: None
    ticket = case.start()
    case.world.until(lambda: len(case.asked()) == 2)
    case.serve(case.broker, ResponseCode.ILLEGAL_OPERATION)
    case.world.until(lambda: ticket.done)
    assert isinstance(ticket.error, OutcomeUnknown)


def test_recall_ends_after_retry_ms_and_with_its_producer() -> None:
    case = Case(retry_ms=2_000)
    case.serve(case.broker, ResponseCode.SYSTEM_BUSY)
    begun_ms = case.world.now.mono_ms
    with pytest.raises(RemoteError):
        case.recall()
    assert 2_000 <= case.world.now.mono_ms - begun_ms < 2_500
    ticket = case.start()
    case.world.run(100)
    case.producer.close()
    case.world.run(400)
    assert isinstance(ticket.error, RemoteError)
    with pytest.raises(ClosedError):
        case.start()


def test_unknown_topic_fails_at_once() -> None:
    case = Case()
    with pytest.raises(NoRoute):
        case.recall(encode_handle("Unknown", "a", 1, "KEY"))
    assert case.broker.health is Health.UP
