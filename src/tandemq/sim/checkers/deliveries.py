"""What consumers are given, looked at while it arrives, whoever the consumer is.

records_in   I10  every record of an answer is whole and its checksums are right
             I4   it is of the queue that was asked for, and offsets grow
given        I2   it is a message somebody sent, with its body, tag, keys and properties
"""

from collections.abc import Iterator

from tandemq.codec.record.record import parse_record, record_fault
from tandemq.model.message import StoredMessage
from tandemq.sim.checkers.model import Given, SentMessage, Shadow
from tandemq.sim.world.world import Violation, World

REJECTING_GROUP = "G"
"""Its members give back what was made to be rejected."""
RECONSUME_MAX = 2


def records_in(
    body: bytes, address: str, consumer: str, topic: str, queue_id: int, queue_offset: int
) -> Iterator[tuple[int, int]]:
    """Where the records of an answer to a pull from `queue_offset` on begin, and the queue offset of each, after it was
    looked at.

    Raises:
        Violation: I10 or I4.
    """
    position, end = 0, len(body)
    expected, name = queue_offset, topic.encode()
    while position < end:
        record = parse_record(body, position, end)
        if isinstance(record, str):
            raise Violation("I10", f"{address} gave {consumer} bytes that are no record: {record}")
        fault = record_fault(body, position, record.size, record.body_start, record.body_end, record.body_crc)
        if fault is not None:
            raise Violation("I10", f"{address} gave {consumer} a corrupt record at {record.log_offset}: {fault}")
        if (record.topic, record.queue_id) != (name, queue_id) or record.queue_offset < expected:
            raise Violation(
                "I4",
                f"{address} gave {consumer} {record.topic!r}/{record.queue_id}@{record.queue_offset} "
                f"for {topic}/{queue_id}@{expected}",
            )
        expected = record.queue_offset + 1
        yield position, record.queue_offset
        position += record.size


class Deliveries:
    """Notes what one member of a consumer group is given."""

    def __init__(self, world: World, shadow: Shadow, name: str, group: str) -> None:
        """`group`: of consumers."""
        self._world = world
        self._shadow = shadow
        self._name = name
        self._group = group
        self.finished = shadow.finished.setdefault(group, set())
        shadow.given_keys.setdefault(group, {})

    def given(self, address: str, broker_group: str, topic: str, message: StoredMessage) -> SentMessage:
        """The application was given a message of a queue of `topic`; returns what was sent.

        Raises:
            Violation: I2, or I5 by the checkers that hear of it.
        """
        shadow = self._shadow
        wanted = shadow.messages.get(message.unique_key)
        if wanted is None:
            raise Violation("I2", f"nobody sent what {address} gave {self._name}: {message}")
        same = (message.body, message.tags, " ".join(message.keys), message.properties.get("X"))
        if same != (wanted.body, wanted.tag, wanted.keys, wanted.producer) or wanted.topic not in (
            message.topic,
            message.properties.get("RETRY_TOPIC"),
        ):
            raise Violation(
                "I2", f"{address} gave {self._name} another message than was sent as {wanted.key}: {message}"
            )
        shadow.give(
            Given(
                self._group,
                address,
                broker_group,
                topic,
                message.queue_id,
                message.queue_offset,
                message.log_offset,
                wanted.key,
                self._world.now_us,
            )
        )
        self._world.fold("give", self._name, message.queue_offset, wanted.key)
        return wanted

    def is_rejected(self, wanted: SentMessage, message: StoredMessage) -> bool:
        """Whether this delivery is to be given back."""
        return wanted.rejections > message.reconsume_times and self._group == REJECTING_GROUP
