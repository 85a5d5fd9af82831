"""Connections: each request ends once, with its response or an error that tells whether it was sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.boundary import Now
from tandemq.client.core.connections import DEADLINE_STEP_MS, Answer, RemotingClient
from tandemq.errors import NotConnected, OutcomeUnknown, WrongProtocol
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.spec import spec
from tests.unit.client.world import Broker, Health, World


def one() -> tuple[World, Broker, RemotingClient]:
    world = World()
    broker = world.broker("a")
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = lambda command: command.answer(0, remark="here")
    return world, broker, world.node.remoting


def ask(
    world: World, remoting: RemotingClient, address: str, code: RequestCode = RequestCode.GET_BROKER_CONFIG
) -> list[Answer]:
    answers: list[Answer] = []
    remoting.request(address, Command(code), world.now, lambda answer, _now: answers.append(answer))
    return answers


def test_response_reaches_its_caller() -> None:
    world, broker, remoting = one()
    answers = [ask(world, remoting, broker.address) for _ in range(10)]
    world.settle()
    assert all(isinstance(one[0], Command) and one[0].remark == "here" for one in answers)
    assert len(broker.links) == 1


def test_connection_is_left_after_go_away_once_no_request_is_in_flight() -> None:
    world, broker, remoting = one()
    broker.handlers[RequestCode.SEND_MESSAGE_V2] = lambda _command: None
    slow = ask(world, remoting, broker.address, RequestCode.SEND_MESSAGE_V2)
    world.settle()
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = Command.go_away
    answers = ask(world, remoting, broker.address)
    world.settle()
    assert isinstance(answers[0], Command) and answers[0].code == ResponseCode.GO_AWAY
    assert remoting.is_open(broker.address), "a response is outstanding"
    (sent,) = broker.of(RequestCode.SEND_MESSAGE_V2)
    (link,) = broker.links
    broker.say(link, sent.answer(0))
    world.settle()
    assert isinstance(slow[0], Command) and not remoting.is_open(broker.address)
    assert not remoting.is_down(broker.address)


def test_refused_connection_was_not_sent() -> None:
    world, broker, remoting = one()
    broker.refuse()
    answers = ask(world, remoting, broker.address)
    world.settle()
    assert isinstance(answers[0], NotConnected)
    assert remoting.is_down(broker.address)


def test_cut_connection_has_an_unknown_outcome() -> None:
    world, broker, remoting = one()
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = lambda _command: None
    answers = ask(world, remoting, broker.address)
    world.settle()
    assert answers == []
    broker.refuse()
    world.settle()
    assert isinstance(answers[0], OutcomeUnknown)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server at this port answers HTTP, not the remoting protocol"),
        (b"\x15\x03\x01\x00\x02\x02F", "the server at this port requires TLS, which this client does not use"),
    ],
)
def test_server_of_another_protocol_has_carried_out_nothing(data: bytes, reason: str) -> None:
    world, broker, remoting = one()
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = lambda _command: None
    answers = ask(world, remoting, broker.address)
    world.settle()
    remoting.on_data(next(iter(remoting._by_link)), data, world.now)
    assert isinstance(answers[0], WrongProtocol)
    assert str(answers[0]) == f"{broker.address}: {reason}"


@spec("G01", "G02")
def test_silence_closes_the_connection_and_fails_all_requests_at_once() -> None:
    world, broker, remoting = one()
    ask(world, remoting, broker.address)
    world.settle()
    broker.health = Health.SILENT
    first = ask(world, remoting, broker.address)
    world.run(2_000)
    second = ask(world, remoting, broker.address)
    world.run(1_100)
    assert isinstance(first[0], OutcomeUnknown)
    assert isinstance(second[0], OutcomeUnknown)
    assert not remoting.is_open(broker.address)


def test_answered_request_needs_no_wake_up_at_its_deadline() -> None:
    world, broker, remoting = one()
    broker.handlers[RequestCode.GET_MAX_OFFSET] = lambda _command: None
    ask(world, remoting, broker.address, RequestCode.GET_MAX_OFFSET)
    due_ms = remoting.next_ms()
    world.settle()
    world.run(DEADLINE_STEP_MS)
    answers = ask(world, remoting, broker.address)
    world.settle()
    assert isinstance(answers[0], Command)
    assert remoting.next_ms() == due_ms, "the other one still waits"
    world.until(lambda: remoting.next_ms() is None)


def test_late_response_on_a_live_connection_fails_alone() -> None:
    world, broker, remoting = one()
    broker.handlers[RequestCode.GET_MAX_OFFSET] = lambda _command: None
    slow = ask(world, remoting, broker.address, RequestCode.GET_MAX_OFFSET)
    for _ in range(31):
        ask(world, remoting, broker.address)
        world.run(100)
    assert isinstance(slow[0], OutcomeUnknown)
    assert remoting.is_open(broker.address)


def test_late_answer_is_dropped() -> None:
    world, broker, remoting = one()
    late: list[Command] = []
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = late.append
    answers = ask(world, remoting, broker.address)
    for _ in range(32):
        ask(world, remoting, broker.address, RequestCode.GET_ALL_TOPIC_CONFIG)
        world.run(100)
    broker.say(next(iter(broker.links)), late[0].answer(0))
    world.settle()
    assert len(answers) == 1


def test_down_address_is_reconnected_with_growing_pauses_until_it_responds() -> None:
    world, broker, remoting = one()
    broker.refuse()
    ask(world, remoting, broker.address)
    world.run(30_000)
    assert remoting.is_down(broker.address)
    broker.recover()
    world.run(5_100)
    assert remoting.is_open(broker.address)
    assert remoting.is_down(broker.address)  # A connection proves nothing; an answer does.
    ask(world, remoting, broker.address)
    world.settle()
    assert not remoting.is_down(broker.address)


def test_unknown_requests_of_peers_are_refused() -> None:
    world, broker, remoting = one()
    ask(world, remoting, broker.address)
    world.settle()
    broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    world.run(10)
    assert [answer.code for answer in broker.responses] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
    broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG, oneway=True)
    world.run(10)
    assert len(broker.responses) == 1


@given(st.binary(max_size=200))
def test_any_bytes_close_the_connection_or_have_no_effect(data: bytes) -> None:
    world, broker, remoting = one()
    answers = ask(world, remoting, broker.address)
    world.settle()
    world.received.append((next(iter(broker.links)), data))
    world.settle()
    assert len(answers) == 1
    again = ask(world, remoting, broker.address)
    world.run(4_000)
    assert len(again) == 1


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_responses_may_arrive_in_pieces(cut: int) -> None:
    world, broker, remoting = one()
    answers = ask(world, remoting, broker.address)
    for _ in range(20):
        world.received = [
            (link, data[at : at + cut]) for link, data in world.received for at in range(0, len(data), cut)
        ]
        world.turn()
    assert isinstance(answers[0], Command)


def test_close_fails_waiting_requests() -> None:
    world, broker, remoting = one()
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = lambda _command: None
    answers = ask(world, remoting, broker.address)
    world.settle()
    remoting.close(Now(world.now.mono_ms, 0))
    world.settle()
    assert isinstance(answers[0], OutcomeUnknown)
    assert broker.links == {}
