"""Checks of deliveries to consumers, on arrival.

records_in   I10  every record of a response is complete and its checksums match
             I4   it belongs to the requested queue, and offsets grow
given        I2   it is a message that was sent, with its body, tag, keys and properties
             I11  the transaction that it was sent in was committed
"""

from collections.abc import Iterator

from lab.sim.checkers.logs import LoggedMessage
from lab.sim.checkers.model import DeliveredMessage, ExpectedState, SentMessage
from lab.sim.world.cluster import Host
from lab.sim.world.world import Violation, World
from tandemq.codec.record.record import parse_record, record_fault
from tandemq.model.message import StoredMessage
from tandemq.model.transactions import TransactionState

REJECTING_GROUP = "G"
"""Consumer group whose members send back the messages made to be rejected."""
RECONSUME_MAX = 2


def is_out_of_reach(master: Host, found: LoggedMessage, message: SentMessage | None) -> bool:
    """Return whether a topic rightly lacks the queue of a message, so that no consumer can get it.

    The topic table was damaged, and its backup older; or the broker was killed before it saved the topic, and so before
    it acknowledged the message, and another sender created the topic with fewer queues.
    """
    assert master.broker is not None, "it runs"
    topic = master.broker.topics.get(found.topic)
    if topic is not None and found.record.queue_id < topic.config.read_queue_nums:
        return False
    is_acknowledged = message is not None and message.is_stored_in(master.group.name)
    return not is_acknowledged or any(path.startswith("config/topics.json") for path, _ in master.flips)


def records_in(
    body: bytes, address: str, consumer: str, topic: str, queue_id: int, queue_offset: int
) -> Iterator[tuple[int, int]]:
    """Yield (position, queue offset) of each record in a pull response from `queue_offset` on, after checking it.

    Raises:
        Violation: I10 or I4.
    """
    position, end = 0, len(body)
    expected_offset, name = queue_offset, topic.encode()
    while position < end:
        record = parse_record(body, position, end)
        if isinstance(record, str):
            raise Violation("I10", f"{address} gave {consumer} bytes that are no record: {record}")
        fault = record_fault(body, position, record.size, record.body_start, record.body_end, record.body_crc)
        if fault is not None:
            raise Violation("I10", f"{address} gave {consumer} a corrupt record at {record.log_offset}: {fault}")
        if (record.topic, record.queue_id) != (name, queue_id) or record.queue_offset < expected_offset:
            raise Violation(
                "I4",
                f"{address} gave {consumer} {record.topic!r}/{record.queue_id}@{record.queue_offset} "
                f"for {topic}/{queue_id}@{expected_offset}",
            )
        expected_offset = record.queue_offset + 1
        yield position, record.queue_offset
        position += record.size


class Deliveries:
    """The deliveries to one member of a consumer group."""

    def __init__(self, world: World, expected: ExpectedState, name: str, group: str) -> None:
        """`group`: the consumer group."""
        self._world = world
        self._expected = expected
        self._name = name
        self._group = group
        self.finished = expected.finished.setdefault(group, set())
        expected.delivered_keys.setdefault(group, {})

    def given(self, address: str, broker_group: str, topic: str, message: StoredMessage) -> SentMessage:
        """Record a delivery to the application, of a queue of `topic`; return the message as sent.

        Raises:
            Violation: I2, I11, or I5 from the checks of deliveries.
        """
        expected = self._expected
        wanted = expected.messages.get(message.unique_key)
        if wanted is None:
            raise Violation("I2", f"{address} gave {self._name} a message that was not sent: {message}")
        same = (message.body, message.tags, " ".join(message.keys), message.properties.get("X"))
        if same != (wanted.body, wanted.tag, wanted.keys, wanted.producer) or wanted.topic not in (
            message.topic,
            message.properties.get("RETRY_TOPIC"),
        ):
            raise Violation(
                "I2", f"{address} gave {self._name} another message than was sent as {wanted.key}: {message}"
            )
        if wanted.is_half and wanted.outcome is not TransactionState.COMMIT:
            raise Violation("I11", f"{address} gave {self._name} {wanted.key}, whose outcome is {wanted.outcome}")
        expected.record_delivery(
            DeliveredMessage(
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
        """Return whether the consumer sends this delivery back."""
        return wanted.rejections > message.reconsume_times and self._group == REJECTING_GROUP
