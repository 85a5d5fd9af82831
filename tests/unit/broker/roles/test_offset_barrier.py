"""Responses with offsets, which wait until every slave has them."""

from tandemq.boundary import Turn
from tandemq.broker.roles.offset_barrier import OffsetBarrier
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

SLAVE, CLIENT = 7, 1
BEATS_BEHIND = 1_000
"""Ten seconds of heartbeats, one in 10 ms."""


def held(gate: OffsetBarrier, version: int) -> bool:
    request = Command(Code.UPDATE_CONSUMER_OFFSET)
    return gate.holds(version, [SLAVE], CLIENT, request, request.answer(ResponseCode.SUCCESS))


def test_responses_are_sent_although_a_slave_is_seconds_behind() -> None:
    gate = OffsetBarrier()
    for number in range(1, 2 * BEATS_BEHIND):
        gate.note_saved(number)
        assert held(gate, number)
        gate.heartbeat_sent(number, number, {SLAVE})
        turn = Turn()
        if number > BEATS_BEHIND:
            gate.saved(SLAVE, number - BEATS_BEHIND)
            gate.release([SLAVE], turn)
        assert len(turn.sends.get(CLIENT, [])) == (number > BEATS_BEHIND), f"heartbeat {number}"


def test_closed_connections_are_dropped() -> None:
    gate = OffsetBarrier()
    for link in range(SLAVE, SLAVE + 100):
        gate.heartbeat_sent(link, 1, {link})
        gate.saved(link, link)
    assert len(gate._has) == 1
