"""Many sends with the same layout in one turn: the same bytes and responses as by decoding each of them."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.broker.send import fast_path, processor
from tandemq.broker.send.send_state import LEARNED_MAX
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.topic import TopicConfig
from tandemq.sim.world.disk import SimDisk
from tandemq.storage.log import message_rows
from tests.unit.broker.harness import CLIENT, Harness, messages_in, send_fields
from tests.unit.broker.send.comparison import BIG, LINKS, Delivered, compare

OK = ResponseCode.SUCCESS


def frame(
    number: int,
    *,
    queue: int = 0,
    topic: str = "T",
    size: int = 40,
    flag: int = 0,
    more: str = "WAIT\x01true\x02",
    opaque: int = 1_000_000,
    message_flag: int = 0,
) -> bytes:
    """Encode a message whose body contains its number."""
    fields = send_fields(topic, queue) | {
        "h": message_flag,
        "i": f"UNIQ_KEY\x017F01{number:08d}\x02{more}TAGS\x01t\x02",
    }
    texts = {key: str(value) for key, value in fields.items()}
    body = (b"%d." % number * size)[:size]
    return encode_command(Command(RequestCode.SEND_MESSAGE_V2, opaque + number, flag, fields=texts, body=body))


def shifted(data: bytes, by: int) -> bytes:
    """Move the border between header and body of a frame."""
    return data[:4] + (int.from_bytes(data[4:8]) + by).to_bytes(4) + data[8:]


Sent = list[tuple[int, bytes]]


def deliver(turns: list[Sent], *, uses_fast_path: bool) -> Delivered:
    """Send all turns to a broker, with or without the fast path."""
    disk = SimDisk(Random(1))
    broker = Harness(disk, **BIG)
    for topic in ("T", "Other"):
        broker.node.topics.table.pop(topic, None)
        broker.node.topics.put(TopicConfig(topic, 12, 12), broker.now.wall_ms)
    for link in MANY:
        if link != CLIENT:
            broker.open(link)
        if not uses_fast_path:
            broker.node.links[link].learned = LEARNED_MAX
    with pytest.MonkeyPatch.context() as patch:
        if not uses_fast_path:
            patch.setattr(broker.node.store, "put_uniform", lambda *_: None)
        for sent in turns:
            broker.turn(sent)
    return broker, disk


def same(turns: list[Sent]) -> Harness:
    """Assert that both paths have the same result; return the broker with the fast path."""
    return compare(deliver(turns, uses_fast_path=True), deliver(turns, uses_fast_path=False))


def stream(count: int, first: int = 0, **more: Any) -> bytes:
    return b"".join([frame(first + number, queue=number % 4, **more) for number in range(count)])


def learned(**more: Any) -> list[Sent]:
    """Return turns after which the patterns of every connection are made."""
    return [[(link, stream(8, 10_000 * link + 1_000 * turn, **more)) for link in LINKS] for turn in range(3)]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fast paths that were taken."""
    taken: list[str] = []
    take, acknowledge = fast_path.ReadAhead.take, processor.SendPath._acknowledge_uniform

    def taking(self: fast_path.ReadAhead, link: Any, data: bytes) -> bytes:
        rest = take(self, link, data)
        if len(rest) < len(data):
            taken.append("frames")
        return rest

    def acknowledging(self: processor.SendPath, rows: message_rows.UniformRows) -> None:
        taken.append("rows")
        acknowledge(self, rows)

    monkeypatch.setattr(fast_path.ReadAhead, "take", taking)
    monkeypatch.setattr(processor.SendPath, "_acknowledge_uniform", acknowledging)
    return taken


def test_many_messages_of_one_layout_on_several_connections(ways: list[str]) -> None:
    broker = same([*learned(), [(link, stream(64, 100_000 * link)) for link in LINKS]])
    assert ways.count("frames") >= 3
    assert "rows" in ways
    found = broker.inbox[CLIENT][-1]
    assert found.code == OK
    assert found.fields["transactionId"] == "7F0100100063"
    assert len(broker.inbox[CLIENT]) == 3 * 8 + 64


def test_frames_split_at_any_byte(ways: list[str]) -> None:
    data = stream(200, 50_000)
    for cut in (1, 7, 9, len(data) // 2, len(data) - 1):
        same([*learned(), [(CLIENT, data[:cut])], [(CLIENT, data[cut:])]])
    assert ways.count("frames") > 5


@pytest.mark.parametrize(
    "odd",
    [
        frame(77, queue=11),
        frame(77, queue=12),
        frame(77, queue=-1),
        frame(77, topic="Other"),
        frame(77, size=41),
        frame(77, size=0),
        frame(77, flag=FLAG_ONEWAY),
        frame(77, more="WAIT\x01false\x02"),
        frame(77, more="KEYS\x01a b\x02"),
        frame(77, more="DELAY\x013\x02"),
        frame(77, opaque=99_999_000),
        frame(77).replace(b"7F01", b"7F\xc3\xa9"),
        frame(77).replace(b'"T"', b'"X"'),
        encode_command(Command(RequestCode.GET_MAX_OFFSET, 5, fields={"topic": "T", "queueId": "0"})),
        shifted(frame(77), 1),
        shifted(frame(77), -1),
    ],
)
def test_one_message_of_another_layout_among_many(ways: list[str], odd: bytes) -> None:
    for place in (0, 1, 30, 150, 160):
        same(
            [*learned(), [(CLIENT, stream(place, 50_000) + odd + stream(160 - place, 60_000)), (2, stream(8, 70_000))]]
        )
    assert "frames" in ways


def test_topic_created_again_between_turns() -> None:
    broker, _ = deliver(learned(), uses_fast_path=True)
    broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    broker.inbox.clear()
    broker.turn([(CLIENT, stream(160, 50_000))])
    assert [answer.code for answer in broker.inbox[CLIENT]] == [OK] * 160
    found = broker.pull("T", 0)
    assert found is not None
    assert messages_in(found)[0].body.startswith(b"50000.")


def test_another_topic_on_a_connection_with_patterns(ways: list[str]) -> None:
    broker = same([*learned(), *learned(topic="Other"), [(CLIENT, stream(160, 90_000))]])
    assert "rows" in ways
    assert broker.node.topics.table["Other"].queues


def test_pattern_of_a_topic_is_used_again_after_messages_to_another(ways: list[str]) -> None:
    singly: list[Sent] = [[(CLIENT, frame(20_000 + number, topic="Other", queue=number % 4))] for number in range(8)]
    broker = same([*learned(), *singly, [(CLIENT, stream(160, 90_000))]])
    assert sum(queue.max_offset for queue in broker.node.topics.table["Other"].queues.values()) == 8
    assert ways.count("frames") >= 2


def test_connections_whose_messages_differ_in_a_flag(ways: list[str]) -> None:
    flagged: list[Sent] = [[(2, stream(80, 20_000 + 100 * turn, message_flag=5))] for turn in range(2)]
    same([*learned(), *flagged, [(CLIENT, stream(80, 50_000)), (2, stream(80, 60_000, message_flag=5))]])
    assert "frames" in ways


def test_end_of_a_file_within_a_turn(ways: list[str]) -> None:
    same([*learned(), *[[(CLIENT, stream(256, 100_000 + 1_000 * turn, size=1_500))] for turn in range(5)]])
    assert "rows" in ways


def test_numbers_of_every_length(ways: list[str]) -> None:
    """Queue offsets with one to four digits, queue ids with one and two, opaques that become longer within a turn."""
    frames = [frame(number, queue=number % 12, opaque=9_500) for number in range(1_800)]
    same([[(CLIENT, b"".join(frames[first : first + 300]))] for first in range(0, 1_800, 300)])
    assert "rows" in ways


def singly(turn: int, links: Sequence[int] = LINKS, **more: Any) -> Sent:
    """Return a message on each connection."""
    return [(link, frame(1_000 * turn + link, queue=link % 4, **more)) for link in links]


MANY = range(1, 41)


def test_single_messages_of_many_connections_are_read_together(ways: list[str]) -> None:
    turns = [singly(turn, MANY) for turn in range(1, 9)]
    broker = same([*turns, singly(9, MANY, opaque=9_990_000)])
    assert "rows" in ways
    assert ways.count("frames") >= 4 * len(MANY)
    assert all(len(broker.inbox[link]) == 9 for link in MANY)


@pytest.mark.parametrize(
    "odd",
    [
        frame(5, queue=11),
        frame(5, topic="Other"),
        frame(5, size=41),
        shifted(frame(5), 1),
        frame(5)[:-1],
        frame(5) + frame(6),
        frame(5) + frame(6)[:9],
        frame(5, flag=FLAG_ONEWAY),
        frame(5, more="DELAY\x013\x02"),
    ],
)
def test_one_connection_sends_another_request(ways: list[str], odd: bytes) -> None:
    turns = [singly(turn, MANY) for turn in range(1, 7)]
    turns[-1][7] = (turns[-1][7][0], odd)
    same([*turns, singly(8, [*MANY[:7], *MANY[8:]])])
    assert "frames" in ways


def test_connection_that_occurs_twice_in_a_turn_keeps_its_order(ways: list[str]) -> None:
    data = stream(30, 90_000)
    for cut in (1, len(data) // 2, len(data) - 1):
        same([*learned(), [(CLIENT, data[:cut]), (2, frame(80_000)), (CLIENT, data[cut:]), (CLIENT, frame(70_000))]])
    assert "frames" in ways


def test_topic_created_again_within_the_turn_in_which_its_messages_were_read(ways: list[str]) -> None:
    delete = encode_command(Command(RequestCode.DELETE_TOPIC_IN_BROKER, 7, fields={"topic": "T"}))
    broker = same([*learned(), [(2, delete), (CLIENT, stream(40, 50_000))]])
    assert [answer.code for answer in broker.inbox[CLIENT]][-40:] == [OK] * 40
    assert broker.node.topics.table["T"].config.write_queue_nums != 12


def test_number_of_frame_lengths_is_limited(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "RUNS_MAX", 8)
    sizes: list[Sent] = [
        [(CLIENT, stream(6, 1_000 * size + 10 * again, size=size))] for size in range(20, 50) for again in range(3)
    ]
    broker = same([*learned(), *sizes])
    assert ways.count("frames") >= 30
    assert 0 < len(broker.node.send.read_ahead._runs) <= 8
    assert broker.node.links[CLIENT].template is broker.node.links[2].template


def test_numbers_of_other_lengths_in_frames_of_one(ways: list[str]) -> None:
    """Queues 8 to 11 and opaques around 100,000: a digit more here and a digit less there."""
    turns = [
        [(link, frame(link + 50 * turn, queue=8 + link % 4, opaque=99_999 - 150 * (link % 4 > 1))) for link in MANY]
        for turn in range(8)
    ]
    known = [(link, frame(60_000 + link + 50 * turn, queue=link % 12)) for turn in range(12) for link in MANY]
    same([*[[one] for one in known], *turns])
    assert ways.count("frames") >= 4 * len(MANY)


def test_smaller_limit_takes_effect_within_the_turn() -> None:
    less = encode_command(Command(RequestCode.UPDATE_BROKER_CONFIG, 7, body=b"maxMessageSize=1024"))
    data = stream(40, 50_000, size=1_100)
    broker = same([*learned(size=1_100), [(2, less), (CLIENT, data)]])
    assert [answer.code for answer in broker.inbox[CLIENT]][-40:] == [ResponseCode.MESSAGE_ILLEGAL] * 40


def test_large_bodies_are_stored_one_by_one(ways: list[str]) -> None:
    same([*learned(size=5_000), [(CLIENT, stream(60, 50_000, size=5_000))]])
    assert "frames" in ways
    assert "rows" not in ways


def test_one_way_sends_of_one_layout_are_stored_and_not_answered(ways: list[str]) -> None:
    broker = same([*learned(flag=FLAG_ONEWAY), [(CLIENT, stream(160, 50_000, flag=FLAG_ONEWAY))]])
    assert "rows" in ways
    assert CLIENT not in broker.inbox or not broker.inbox[CLIENT]


@given(st.data())
def test_random_traffic_has_the_same_result_as_decoding_each_message(data: st.DataObject) -> None:
    seed = Random(data.draw(st.integers(0, 1 << 30)))
    turns = learned()
    number = 100_000
    for _ in range(data.draw(st.integers(1, 3))):
        turn: Sent = []
        for link in LINKS:
            pieces = []
            for _ in range(seed.randrange(6)):
                size = seed.choice((40, 40, 40, 41, 300))
                count = seed.randrange(60)
                pieces.append(stream(count, number, size=size, flag=seed.choice((0, 0, 0, FLAG_ONEWAY))))
                number += count
            whole = b"".join(pieces)
            cuts = sorted({0, len(whole), *(seed.randrange(len(whole) + 1) for _ in range(seed.randrange(3)))})
            turn += [(link, whole[first:last]) for first, last in pairwise(accumulate(cuts, max)) if first < last]
        turns.append(turn)
    same(turns)
