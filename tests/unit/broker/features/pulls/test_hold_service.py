"""Very many held pulls: the work of a turn is bounded, and every pull is answered exactly once."""

from pathlib import Path

import pytest

from tandemq.boundary import Closed, LinkKind
from tandemq.broker.features.pulls import hold_service
from tandemq.broker.features.pulls.hold_service import HELD_PER_LINK_MAX, PART
from tandemq.broker.features.pulls.processor import RELEASED_PER_TURN_MAX
from tandemq.broker.state.subscriptions import CODE_BYTES
from tandemq.codec.remoting.frame import FrameDecoder, encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.unit.broker.harness import CLIENT, Harness

LINKS = 25
HELD = LINKS * 4_000


def frames(count: int, *, wait_ms: int = 60_000, falling: bool = False, **changes: object) -> bytes:
    fields = {
        "consumerGroup": "group",
        "topic": "TopicA",
        "queueId": 0,
        "queueOffset": 1,
        "maxMsgNums": 1,
        "sysFlag": 6,
        "commitOffset": 0,
        "subscription": "*",
        "subVersion": 0,
    } | changes
    return b"".join(
        encode_command(
            Command(
                RequestCode.PULL_MESSAGE,
                10_000 + number,
                fields={k: str(v) for k, v in fields.items()}
                | {"suspendTimeoutMillis": str(wait_ms - number if falling else wait_ms)},
            )
        )
        for number in range(count)
    )


@pytest.fixture
def crowded(tmp_path: Path) -> Harness:
    """A broker with 100,000 pulls on one queue, held with falling deadlines, from 25 connections."""
    broker = Harness(tmp_path, frame_bytes_max=16 << 20)
    broker.send("TopicA", b"0")
    broker.pull("TopicA")
    for link in range(2, 2 + LINKS):
        broker.open(link)
        broker.turn([(link, frames(HELD // LINKS, falling=True))])
    assert broker.node.pull.held.size == HELD
    return broker


def one_turn(broker: Harness) -> int:
    """Run one turn; return the number of pulls answered."""
    turn = broker.node.turn([], [], broker.now)
    broker._take(turn)
    return sum(len(FrameDecoder(1 << 20).feed(b"".join(buffers))) for buffers in turn.sends.values())


def test_message_for_a_queue_with_100_000_held_pulls_is_sent_over_several_turns(crowded: Harness) -> None:
    crowded.send("TopicA", b"1")
    turns = 0
    while crowded.node.pull.held.size:
        assert crowded.node.deadline_ms() == 0, "the next turn is due at once"
        assert one_turn(crowded) == RELEASED_PER_TURN_MAX
        turns += 1
        if turns == 20:
            break
    crowded.close(2)
    assert crowded.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0}).fields["offset"] == "2"


def test_closed_connections_and_deadlines_of_100_000_pulls_are_handled_over_several_turns(crowded: Harness) -> None:
    held = crowded.node.pull.held
    crowded.turn([], [Closed(link, "gone") for link in range(2, 12)])
    assert HELD - PART <= held.size < HELD
    while not held.is_tidy:
        before = held.size
        one_turn(crowded)
        assert before - PART <= held.size < before
    assert held.size == HELD - 10 * 4_000
    crowded.now = crowded.now.__class__(crowded.now.mono_ms + 60_000, crowded.now.wall_ms + 60_000)
    assert one_turn(crowded) == RELEASED_PER_TURN_MAX, "all are due, and these are of open connections"
    assert all(not crowded.inbox[link] for link in range(2, 12))


def test_pull_of_a_closed_connection_is_not_answered_by_a_message_before_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_service, "PART", 0)
    broker = Harness(tmp_path)
    broker.send("TopicA", b"0")
    broker.pull("TopicA")
    broker.open(2)
    broker.turn([(2, frames(3))])
    broker.turn([(CLIENT, frames(1))])
    broker.turn()
    broker.inbox[2].clear()
    broker.inbox[CLIENT].clear()
    broker.close(2)
    assert broker.node.pull.held.size == 4
    broker.send("TopicA", b"1")
    assert (broker.node.pull.held.size, len(broker.inbox[2])) == (0, 0)
    assert ResponseCode.SUCCESS in {answer.code for answer in broker.inbox[CLIENT] if answer.opaque == 10_000}


def test_number_of_held_pulls_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_service, "HELD_MAX", HELD_PER_LINK_MAX + 10)
    broker = Harness(tmp_path, frame_bytes_max=16 << 20)
    broker.send("TopicA", b"0")
    broker.pull("TopicA")
    for link, held, refused in ((2, HELD_PER_LINK_MAX, 5), (3, 10, 7)):
        broker.open(link, LinkKind.REMOTING)
        broker.turn([(link, frames(held + refused))])
        codes = [answer.code for answer in broker.inbox[link]]
        assert codes == [ResponseCode.SYSTEM_BUSY] * refused
    monkeypatch.setattr(hold_service, "HELD_MAX", 1 << 30)
    tags = "||".join(f"t{number}" for number in range(1000))
    monkeypatch.setattr(hold_service, "SELECTOR_BYTES_MAX", 3 * 1000 * CODE_BYTES)
    broker.open(4)
    broker.turn([(4, frames(5, subscription=tags))])
    assert len(broker.inbox[4]) == 2
    assert {answer.code for answer in broker.inbox[4]} == {ResponseCode.SYSTEM_BUSY}
    broker.close(4)
    broker.open(5)
    broker.turn([(5, frames(3, subscription=tags))])
    assert not broker.inbox[5], "dropped pulls have made room"
