"""Requests that the time of a turn does not suffice for."""

from pathlib import Path

from tandemq.codec.remoting.frame import encode_command
from tandemq.model.command import Command
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
