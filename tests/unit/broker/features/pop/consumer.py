"""A POP consumer of a broker under test."""

from typing import NamedTuple

from lab.pops import batch_ack_body, handle_of
from tandemq.codec.record.record import decode_messages
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage
from tandemq.model.pop import Handle, kind_of, pop_retry_topic
from tests.unit.broker.harness import CLIENT, Harness

GROUP, TOPIC = "popg", "popt"


class Taken(NamedTuple):
    """A popped message, and its handle."""

    message: StoredMessage
    handle: Handle
    topic: str
    """In which it lies."""

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def fields(self) -> dict[str, object]:
        """Fields of a request about it."""
        return {
            "consumerGroup": GROUP,
            "topic": self.topic,
            "queueId": self.handle.queue_id,
            "extraInfo": str(self.handle),
            "offset": self.handle.offset,
        }


def pop_fields(**changes: object) -> dict[str, object]:
    """Return the fields of a pop."""
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 10_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
        "order": "false",
    } | changes


def taken_from(answer: Command, group: str = GROUP, topic: str = TOPIC, broker: str = "broker-a") -> list[Taken]:
    """Return the messages of an answer, with the handles that a client makes."""
    assert answer.code == ResponseCode.SUCCESS, answer
    starts: dict[tuple[int, int], int] = {}
    for part in answer.fields["startOffsetInfo"].split(";"):
        kind, queue_id, start = map(int, part.split(" "))
        starts[kind, queue_id] = start
    offsets: dict[tuple[int, int], list[int]] = {}
    for part in answer.fields["msgOffsetInfo"].split(";"):
        kind_text, queue_text, listed = part.split(" ")
        offsets[int(kind_text), int(queue_text)] = list(map(int, listed.split(",")))
    assert starts.keys() == offsets.keys()
    found = []
    for message in decode_messages(answer.body):
        assert message.topic == topic
        handle = handle_of(message, answer.fields, broker)
        assert starts[handle.kind, handle.queue_id] == handle.start_offset
        assert handle.offset in offsets[handle.kind, handle.queue_id]
        found.append(Taken(message, handle, pop_retry_topic(group, topic, handle.kind)))
    assert len(found) == sum(map(len, offsets.values()))
    return found


def pop(broker: Harness, **changes: object) -> list[Taken]:
    """Pop messages; an empty list if there are none."""
    answer = broker.ask(RequestCode.POP_MESSAGE, pop_fields(**changes))
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= answer.fields.keys()
    return [] if answer.code == ResponseCode.POLLING_TIMEOUT else taken_from(answer)


def pop_all(broker: Harness, **changes: object) -> list[Taken]:
    """Pop until there is nothing left."""
    found: list[Taken] = []
    while more := pop(broker, **changes):
        found += more
    return found


def ack(broker: Harness, taken: Taken, **changes: object) -> Command:
    """Acknowledge a message."""
    return broker.ask(RequestCode.ACK_MESSAGE, taken.fields | changes)


def batch_ack(broker: Harness, *messages: Taken) -> Command:
    """Acknowledge messages with one request."""
    body = batch_ack_body(GROUP, TOPIC, "broker-a", [taken.handle for taken in messages])
    return broker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)


def bodies(taken: list[Taken]) -> list[bytes]:
    """Return the sorted bodies of messages."""
    return sorted(item.body for item in taken)


__all__ = [
    "CLIENT",
    "GROUP",
    "TOPIC",
    "Taken",
    "ack",
    "batch_ack",
    "bodies",
    "kind_of",
    "pop",
    "pop_all",
    "pop_fields",
    "taken_from",
]
