"""Requests that the time of a turn does not suffice for."""

from pathlib import Path

from tandemq.boundary import Closed
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.turn_budget import TURN_US
from tests.unit.nameserver.driver import Driver, FakeOutbox, answers_in

CLIENT, BROKER = 1, 2


def test_turn_ends_when_its_time_is_over_and_the_rest_comes_in_the_next(tmp_path: Path) -> None:
    outbox = FakeOutbox(look_us=TURN_US // 10)
    server = Driver(tmp_path, outbox=outbox)
    server.open(CLIENT)
    server.open(BROKER)
    left = [(CLIENT, b"".join(encode_command(Command(206, opaque)) for opaque in range(50)))]
    left.append((BROKER, encode_command(Command(206, 1))))
    answered: list[int] = []
    for turns in range(1, 60):
        outbox.elapsed = 0
        turn = server.node.turn(left, [], server.now)
        answered += [answer.opaque for answer in answers_in(turn, CLIENT)] if CLIENT in turn.sends else []
        assert turns > 1 or len(answers_in(turn, BROKER)) == 1
        left = turn.unread
        if not left:
            break
    assert turns >= 5
    assert answered == list(range(50))


def test_all_requests_of_a_connection_that_closes_in_the_same_turn_are_carried_out(tmp_path: Path) -> None:
    outbox = FakeOutbox()
    server = Driver(tmp_path, outbox=outbox)
    server.open(CLIENT)
    server.open(BROKER)
    places = [{"namespace": "n", "key": f"k{number}"} for number in range(5)]
    puts = [
        encode_command(Command(RequestCode.PUT_KV_CONFIG, 0, FLAG_ONEWAY, fields=place | {"value": "v"}))
        for place in places
    ]
    outbox.elapsed = TURN_US * 2  # The events of the turn took longer than the requests of the turn before might.
    server.node.turn([(CLIENT, b"".join(puts[:4])), (CLIENT, puts[4])], [Closed(CLIENT, "gone")], server.now)
    found = [server.call(BROKER, RequestCode.GET_KV_CONFIG, **place).code for place in places]
    assert found == [ResponseCode.SUCCESS] * 5
