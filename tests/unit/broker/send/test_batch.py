"""Batches stored column by column: the same bytes and responses as by the decoded path, for any content."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.broker.send import batch
from tandemq.broker.send.processor import SendPath
from tandemq.broker.send.send_state import LEARNED_MAX
from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting.frame import encode_command
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.topic import TopicConfig
from tandemq.sim.world.disk import SimDisk
from tests.spec import spec
from tests.unit.broker.harness import CLIENT, Harness, messages_in, send_fields
from tests.unit.broker.send.comparison import BIG, LINKS, Delivered, compare

OK = ResponseCode.SUCCESS


def properties_of(number: int, *, key: str = "7F01", more: bytes = b"WAIT\x01true\x02TAGS\x01t\x02") -> bytes:
    return f"UNIQ_KEY\x01{key}{number:06d}\x02".encode() + more


def body_of(first: int, count: int = 8, *, size: int = 40, **more: Any) -> bytes:
    """Encode a batch of messages whose bodies contain their numbers."""
    return encode_batch(
        [
            BatchPart(number, (b"%d." % number * size)[:size], properties_of(number, **more))
            for number in range(first, first + count)
        ]
    )


def frame(opaque: int, body: bytes, *, queue: int = 0, flag: int = 0, properties: str = "", topic: str = "T") -> bytes:
    fields = {key: str(value) for key, value in send_fields(topic, queue).items()} | {"m": "true", "i": properties}
    return encode_command(Command(RequestCode.SEND_BATCH_MESSAGE, opaque, flag, fields=fields, body=body))


Sent = tuple[int, bytes]


def deliver(sent: list[Sent], *, uses_fast_path: bool, **changes: Any) -> Delivered:
    """Send one batch per connection and then all of `sent`: in one turn, or one by one on the decoded path."""
    disk = SimDisk(Random(1))
    broker = Harness(disk, **(BIG | changes))
    for link in LINKS:
        if link != CLIENT:
            broker.open(link)
        broker.turn([(link, frame(1000 + link, body_of(link * 100)))])
        broker.turn(
            [(link, frame(2000 + link, body_of(link * 100 + 50), properties="UNIQ_KEY\x01AB\x02WAIT\x01false\x02"))]
        )
        broker.turn([(link, frame(3000 + link, body_of(link * 100 + 80)))])
    if uses_fast_path:
        assert all(broker.node.links[link].batches is not None for link in LINKS)
        broker.turn(sent)
        return broker, disk
    for link in LINKS:
        broker.node.links[link].batches = None
        broker.node.links[link].learned = LEARNED_MAX
    for link, data in sent:
        broker.turn([(link, data)])
    return broker, disk


def same(sent: list[Sent], **changes: Any) -> Harness:
    """Assert that both paths have the same result; return the broker with the fast path."""
    return compare(deliver(sent, uses_fast_path=True, **changes), deliver(sent, uses_fast_path=False, **changes))


@pytest.fixture
def by_columns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of batches that were stored column by column in one call."""
    counted: list[int] = []
    put = batch.BatchPath._put

    def counting(self: batch.BatchPath, batches: list[batch.Batch], *rest: Any) -> None:
        counted.append(len(batches))
        put(self, batches, *rest)

    monkeypatch.setattr(batch.BatchPath, "_put", counting)
    return counted


def many(make: Callable[[int], bytes] = lambda number: body_of(number * 1000), count: int = 9) -> list[Sent]:
    """Return batches of all connections, for three queues."""
    return [
        (LINKS[number * len(LINKS) // count], frame(5000 + number, make(number), queue=number % 3))
        for number in range(count)
    ]


def test_batches_of_one_layout_are_stored_together_with_the_same_bytes_as_one_by_one(by_columns: list[int]) -> None:
    broker = same(many())
    assert by_columns == [9]
    assert broker.inbox[3][-1].fields["msgId"].count(",") == 7


@pytest.mark.parametrize(
    "more",
    [b"", b"WAIT\x01true\x02KEYS\x01one two\x02", b"TAGS\x01t", b"A\x01\x02TAGS\x01t\x02", b"DELAY\x013\x02", b"x\x02"],
)
def test_properties_of_any_kind_are_stored_as_by_the_decoded_path(more: bytes) -> None:
    same(many(lambda number: body_of(number * 1000, more=more)))


def test_batch_with_a_key_of_its_own_and_one_that_does_not_wait(by_columns: list[int]) -> None:
    for properties in ("UNIQ_KEY\x01CD\x02WAIT\x01false\x02", "WAIT\x01true\x02", "A\x01b\x02"):
        same([(1, frame(n, body_of(n * 100), properties=properties)) for n in range(9)])
    assert by_columns == [8, 8], "a pattern is made from the first of each; not from one with other properties"


def test_pattern_is_made_from_a_header_with_a_key(by_columns: list[int]) -> None:
    broker = Harness(SimDisk(Random(1)), **BIG)
    for number in range(3):
        data = [frame(10 * number + n, body_of(100 * n), properties=f"UNIQ_KEY\x01C{n}\x02") for n in range(8)]
        broker.turn([(1, b"".join(data))])
    assert by_columns == [6, 8, 8]
    assert [answer.fields["transactionId"] for answer in broker.inbox[1]] == [f"C{n}" for n in range(8)] * 3


def test_ordinary_messages_between_batches_keep_their_order(by_columns: list[int]) -> None:
    plain = send_fields("T", 0, {"UNIQ_KEY": "0A0B"})
    one = encode_command(
        Command(RequestCode.SEND_MESSAGE_V2, 77, 0, fields={k: str(v) for k, v in plain.items()}, body=b"one")
    )
    same([*many(), (1, one), (1, one), *many()])
    assert by_columns == [9, 9]


def test_oneway_batches_get_no_response(by_columns: list[int]) -> None:
    broker = Harness(SimDisk(Random(1)), **BIG)
    for _ in range(2):
        broker.turn([(1, b"".join([frame(n, body_of(100 * n), flag=FLAG_ONEWAY) for n in range(8)]))])
    assert by_columns == [6, 8]
    assert broker.inbox[1] == []
    assert broker.node.send.count == 16 * 8


def _truncated(number: int) -> bytes:
    return body_of(number * 1000)[: -1 if number == 4 else None]


def _other_size(number: int) -> bytes:
    return body_of(number * 1000, size=41 if number == 4 else 40)


def _mixed(number: int) -> bytes:
    return body_of(number * 1000, 4) + body_of(number * 1000 + 4, 4, more=b"WAIT\x01true\x02TAGS\x01u\x02")


def _odd_key(number: int) -> bytes:
    raw = body_of(number * 1000)
    return raw.replace(b"7F01", "é01".encode(), 1) if number == 4 else raw


def _key_with_separator(number: int) -> bytes:
    raw = body_of(number * 1000)
    return raw.replace(b"7F01", b"7\x0201", 1) if number == 4 else raw


def _own_crc(number: int) -> bytes:
    return body_of(number * 1000, more=b"__CRC32#\x010123456789\x02")


@pytest.mark.parametrize(
    "make",
    [
        _truncated,
        _other_size,
        _mixed,
        _odd_key,
        _key_with_separator,
        _own_crc,
        lambda _: b"",
        lambda _: b"\0" * 42,
        lambda number: body_of(number * 1000, size=0),
        lambda number: body_of(number, 1, size=8000),
        lambda _: encode_batch([BatchPart(0, b"x" * 30, b"")] * 20),
        lambda number: body_of(number * 1000, key="UNIQ_KEY\x01"),
        lambda _: body_of(0, 1200),
    ],
)
def test_batches_of_different_layouts_take_the_decoded_path(make: Callable[[int], bytes]) -> None:
    same(many(make))


@given(st.data())
def test_damaged_batches_have_the_same_result_as_by_the_decoded_path(data: st.DataObject) -> None:
    sent = [bytearray(body_of(number * 1000)) for number in range(8)]
    for _ in range(data.draw(st.integers(1, 3))):
        raw = sent[data.draw(st.integers(0, 7))]
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    same(many(lambda number: bytes(sent[number]), 8))


@spec("V13")
def test_batch_lies_in_one_file_and_all_are_there_across_many_files(by_columns: list[int]) -> None:
    broker, disk = deliver([], uses_fast_path=True, segment_bytes=8192)
    for round_ in range(12):
        broker.turn(many(lambda number: body_of(number * 1000, size=20 + round_)))  # noqa: B023  # used at once
    assert len(by_columns) > 24
    per_batch: list[set[int]] = []
    for answer in [answer for link in LINKS for answer in broker.inbox[link]]:
        assert answer.code == OK
        offsets = [int(text[16:], 16) for text in answer.fields["msgId"].split(",")]
        per_batch.append({offset // 8192 for offset in offsets})
        for number, offset in enumerate(offsets):
            (message,) = messages_in(broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}))
            assert message.queue_offset == int(answer.fields["queueOffset"]) + number
    assert {len(files) for files in per_batch} == {1}
    broker = broker.restart(clean=False)
    assert broker.node.send.store.log.written_end > 12 * 8192
    assert disk.paths()


def test_batch_that_fits_into_no_file_is_refused_and_the_others_stored(by_columns: list[int]) -> None:
    broker, _ = deliver([], uses_fast_path=True, segment_bytes=32 * 1024)
    broker.turn([(1, frame(9, body_of(0, 500)))])
    assert broker.inbox[1][-1].code == ResponseCode.MESSAGE_ILLEGAL
    broker.turn(many())
    assert by_columns == [9]


def test_full_disk_refuses_all_batches_of_the_turn_and_later_ones_are_accepted() -> None:
    broker, disk = deliver([], uses_fast_path=True)
    end = broker.node.store.log.written_end
    disk.fail("pwrite", times=1, error=DiskFull, prefix="commitlog")
    broker.turn(many())
    for link in LINKS:
        assert {answer.code for answer in broker.inbox[link][-3:]} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert broker.node.store.log.written_end == end
    disk.heal()
    broker.turn(many())
    for link in LINKS:
        assert {answer.code for answer in broker.inbox[link][-3:]} == {OK}
    assert broker.node.store.log.written_end > end


def test_header_pattern_does_not_bypass_a_changed_permission_of_its_topic() -> None:
    broker, _ = deliver([], uses_fast_path=True)
    topics = broker.node.topics
    topics.put(TopicConfig("T", 4, 4, perm=4), broker.now.wall_ms)
    broker.turn(many())
    assert {broker.inbox[link][-1].code for link in LINKS} == {ResponseCode.NO_PERMISSION}


def test_number_of_header_patterns_per_connection_is_limited() -> None:
    broker = Harness(SimDisk(Random(1)), **BIG)
    for number in range(LEARNED_MAX + 10):
        broker.turn([(1, frame(number, body_of(0, 2), properties=f"A\x01{number}\x02"))])
    assert broker.node.links[1].learned == LEARNED_MAX
    assert isinstance(broker.node.send, SendPath)
