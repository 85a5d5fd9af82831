"""Links: every request is answered once, and says honestly what became of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.boundary import Now
from tandemq.client.core.connections import DEADLINE_STEP_MS, Answer, RemotingClient
from tandemq.errors import NotConnected, OutcomeUnknown
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
    world: World, links: RemotingClient, address: str, code: RequestCode = RequestCode.GET_BROKER_CONFIG
) -> list[Answer]:
    heard: list[Answer] = []
    links.request(address, Command(code), world.now, lambda answer, _now: heard.append(answer))
    return heard


def test_answer_reaches_who_asked() -> None:
    world, broker, links = one()
    heard = [ask(world, links, broker.address) for _ in range(10)]
    world.settle()
    assert all(isinstance(one[0], Command) and one[0].remark == "here" for one in heard)
    assert len(broker.links) == 1


def test_refused_connection_was_not_sent() -> None:
    world, broker, links = one()
    broker.refuse()
    heard = ask(world, links, broker.address)
    world.settle()
    assert isinstance(heard[0], NotConnected)
    assert links.is_down(broker.address)


def test_cut_connection_has_an_unknown_outcome() -> None:
    world, broker, links = one()
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = lambda _command: None
    heard = ask(world, links, broker.address)
    world.settle()
    assert heard == []
    broker.refuse()
    world.settle()
    assert isinstance(heard[0], OutcomeUnknown)


@spec("G01", "G02")
def test_silence_closes_the_link_and_everybody_hears_at_once() -> None:
    world, broker, links = one()
    ask(world, links, broker.address)
    world.settle()
    broker.health = Health.SILENT
    first = ask(world, links, broker.address)
    world.run(2_000)
    second = ask(world, links, broker.address)
    world.run(1_100)
    assert isinstance(first[0], OutcomeUnknown)
    assert isinstance(second[0], OutcomeUnknown)
    assert not links.is_open(broker.address)


def test_nobody_is_woken_for_a_request_that_was_answered() -> None:
    world, broker, links = one()
    broker.handlers[RequestCode.GET_MAX_OFFSET] = lambda _command: None
    ask(world, links, broker.address, RequestCode.GET_MAX_OFFSET)
    due_ms = links.next_ms()
    world.settle()
    world.run(DEADLINE_STEP_MS)
    heard = ask(world, links, broker.address)
    world.settle()
    assert isinstance(heard[0], Command)
    assert links.next_ms() == due_ms, "the other one still waits"
    world.until(lambda: links.next_ms() is None)


def test_slow_answer_on_a_lively_link_fails_alone() -> None:
    world, broker, links = one()
    broker.handlers[RequestCode.GET_MAX_OFFSET] = lambda _command: None
    slow = ask(world, links, broker.address, RequestCode.GET_MAX_OFFSET)
    for _ in range(31):
        ask(world, links, broker.address)
        world.run(100)
    assert isinstance(slow[0], OutcomeUnknown)
    assert links.is_open(broker.address)


def test_late_answer_is_dropped() -> None:
    world, broker, links = one()
    late: list[Command] = []
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = late.append
    heard = ask(world, links, broker.address)
    for _ in range(32):
        ask(world, links, broker.address, RequestCode.GET_ALL_TOPIC_CONFIG)
        world.run(100)
    broker.say(next(iter(broker.links)), late[0].answer(0))
    world.settle()
    assert len(heard) == 1


def test_down_address_is_tried_ever_less_often_until_it_speaks() -> None:
    world, broker, links = one()
    broker.refuse()
    ask(world, links, broker.address)
    world.run(30_000)
    assert links.is_down(broker.address)
    broker.recover()
    world.run(5_100)
    assert links.is_open(broker.address)
    assert links.is_down(broker.address)  # A connection proves nothing; an answer does.
    ask(world, links, broker.address)
    world.settle()
    assert not links.is_down(broker.address)


def test_unknown_requests_of_peers_are_refused() -> None:
    world, broker, links = one()
    ask(world, links, broker.address)
    world.settle()
    broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    world.run(10)
    assert [answer.code for answer in broker.said] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
    broker.ask(RequestCode.GET_ALL_TOPIC_CONFIG, oneway=True)
    world.run(10)
    assert len(broker.said) == 1


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_closed_link_or_nothing(data: bytes) -> None:
    world, broker, links = one()
    heard = ask(world, links, broker.address)
    world.settle()
    world.received.append((next(iter(broker.links)), data))
    world.settle()
    assert len(heard) == 1
    again = ask(world, links, broker.address)
    world.run(4_000)
    assert len(again) == 1


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_answers_may_arrive_in_pieces(cut: int) -> None:
    world, broker, links = one()
    heard = ask(world, links, broker.address)
    for _ in range(20):
        world.received = [
            (link, data[at : at + cut]) for link, data in world.received for at in range(0, len(data), cut)
        ]
        world.turn()
    assert isinstance(heard[0], Command)


def test_close_fails_what_waits() -> None:
    world, broker, links = one()
    broker.handlers[RequestCode.GET_BROKER_CONFIG] = lambda _command: None
    heard = ask(world, links, broker.address)
    world.settle()
    links.close(Now(world.now.mono_ms, 0))
    world.settle()
    assert isinstance(heard[0], OutcomeUnknown)
    assert broker.links == {}
