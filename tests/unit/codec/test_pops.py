"""Handles from the response to a pop, and the requests that end popped messages."""

import base64

import msgspec
import pytest

from tandemq.codec.record.record import decode_message, encode_record
from tandemq.codec.remoting.pops import (
    BITS_BYTES_MAX,
    AckedMessage,
    AckEntry,
    BatchAckBody,
    PopAnswer,
    PopQuery,
    acked_offsets,
    batch_ack_request,
    changed_handle,
    pop_request,
)
from tandemq.errors import ProtocolError
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage, encode_properties
from tandemq.model.pop import ORDERED_QUEUE, POP_CK, Handle, TopicKind

FIELDS = {"popTime": "1000", "invisibleTime": "60000", "reviveQid": "3", "startOffsetInfo": "0 1 5;1 0 2"}


def stored(topic: str, queue_id: int, offset: int, **properties: str) -> StoredMessage:
    record = encode_record(
        topic=topic.encode(),
        queue_id=queue_id,
        queue_offset=offset,
        log_offset=0,
        body=b"x",
        properties=encode_properties(properties).encode(),
        flag=0,
        sys_flag=0,
        born_ms=0,
        born_host=b"\x7f\0\0\1\0\0\0\1",
        store_ms=0,
        store_host=b"\x7f\0\0\1\0\0\0\1",
        reconsume_times=0,
    )
    return decode_message(record, 0, len(record))


def answer(**fields: str) -> PopAnswer:
    return PopAnswer("a", Command(0, fields=FIELDS | fields))


def test_handle_has_the_start_of_its_queue() -> None:
    handle = answer().handle(stored("T", 1, 7))
    assert handle == Handle(5, 1000, 60_000, 3, TopicKind.NORMAL, "a", 1, 7)


def test_record_of_a_retry_topic_gets_a_handle_of_that_topic() -> None:
    assert answer().handle(stored("%RETRY%g_T", 0, 4)) == Handle(2, 1000, 60_000, 3, TopicKind.RETRY_V1, "a", 0, 4)


def test_handle_made_by_the_broker_counts_and_an_invented_one_does_not() -> None:
    made = Handle(2, 1000, 60_000, 3, TopicKind.RETRY_V1, "a", 0, 4)
    assert answer().handle(stored("T", 0, 4, **{POP_CK: str(made)})) == made
    for invented in ("nonsense", str(made._replace(broker="b")), str(made._replace(pop_ms=1)), "1 2 3"):
        assert answer().handle(stored("T", 1, 7, **{POP_CK: invented})).kind is TopicKind.NORMAL, invented


def test_start_behind_a_message_is_not_believed() -> None:
    assert answer(startOffsetInfo="0 1 900").handle(stored("T", 1, 7)).start_offset == 7


@pytest.mark.parametrize(
    "fields",
    [
        {"popTime": "x"},
        {"popTime": "-1"},
        {"invisibleTime": "9" * 30},
        {"startOffsetInfo": "1 2"},
        {"startOffsetInfo": "0 1 -5"},
        {"orderCountInfo": "0 qo0%1"},
    ],
)
def test_invalid_header_is_an_error(fields: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="response to a pop"):
        answer(**fields)


def test_attempts_of_an_ordered_pop_are_those_of_the_message_or_else_of_the_queue() -> None:
    ordered = answer(reviveQid=str(ORDERED_QUEUE), orderCountInfo="0 qo1%7 2;0 1 1")
    assert [ordered.attempts(stored("T", queue, offset)) for queue, offset in ((1, 7), (1, 8), (2, 0))] == [2, 1, 0]


def test_pop_names_an_attempt_only_if_it_is_ordered() -> None:
    query = PopQuery("g", "T", 32, 1_000, "*", "TAG", starts_at_end=True, attempt_id="x")
    assert "attemptId" not in pop_request(query, 0).fields
    fields = pop_request(query._replace(is_ordered=True), 5).fields
    assert (fields["attemptId"], fields["order"], fields["initMode"], fields["pollTime"]) == ("x", "true", "1", "5")


def test_acknowledgements_of_one_pop_and_queue_share_an_entry() -> None:
    handle = Handle(5, 1000, 60_000, 3, TopicKind.NORMAL, "a", 1, 5)
    acked = [AckedMessage(handle._replace(offset=offset), "T") for offset in (5, 7, 20)]
    acked += [AckedMessage(handle._replace(kind=TopicKind.RETRY_V1), "T"), AckedMessage(handle, "U")]
    body = msgspec.json.decode(batch_ack_request(acked, "g", "a").body, type=BatchAckBody)
    assert [(entry.t, entry.r, acked_offsets(entry)) for entry in body.acks] == [
        ("T", "0", [5, 7, 20]),
        ("T", "1", [5]),
        ("U", "0", [5]),
    ]
    assert body.broker_name == "a"
    assert body.acks[0] == AckEntry("T", "g", 1, 3, 5, 1000, 60_000, "BYA=", "0")


def test_message_far_behind_the_start_of_its_pop_fits_no_batch() -> None:
    handle = Handle(0, 1000, 60_000, 3, TopicKind.NORMAL, "a", 1, 65_535)
    assert AckedMessage(handle, "T").fits_batch
    assert not AckedMessage(handle._replace(offset=65_536), "T").fits_batch


def test_changed_time_makes_a_new_handle_unless_the_message_was_acknowledged() -> None:
    old = Handle(5, 1000, 60_000, 3, TopicKind.NORMAL, "a", 1, 7)
    changed = Command(0, fields={"popTime": "2000", "invisibleTime": "10", "reviveQid": "4"})
    assert changed_handle(old, changed) == Handle(7, 2000, 10, 4, TopicKind.NORMAL, "a", 1, 7)
    gone = Command(0, fields={"popTime": "0", "invisibleTime": "0", "reviveQid": "999"})
    assert changed_handle(old, gone) == old
    with pytest.raises(ProtocolError, match="changed invisible time"):
        changed_handle(old, Command(0))


@pytest.mark.parametrize("bits", [{0}, {7, 8, 9, 31}, {0, 65_535}, set(range(300, 332))])
def test_bits_of_a_batch_are_the_offsets_behind_its_start(bits: set[int]) -> None:
    raw = sum(1 << bit for bit in bits).to_bytes(BITS_BYTES_MAX, "little")
    entry = msgspec.convert(
        {
            "c": "g",
            "t": "T",
            "so": 100,
            "q": 0,
            "rq": 0,
            "r": "0",
            "pt": 1,
            "it": 1,
            "b": base64.b64encode(raw).decode(),
        },
        AckEntry,
        strict=False,
    )
    assert acked_offsets(entry) == [100 + bit for bit in sorted(bits)]
