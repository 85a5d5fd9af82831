"""Client that reads queue entries, as the Spark source does: bounds of topics, then entries of one queue, or messages
without their bodies.

    TANDEM_QUEUE_BOUNDS ──► a queue with messages ──► TANDEM_QUEUE_ENTRIES ──► VIEW_MESSAGE_BY_ID for one of them
                                                 └──► TANDEM_QUEUE_HEADS

An entry shows that a message is there. So it counts as a delivery of the record that it names: what may not be given to
a consumer may not be shown, and what was shown is kept (I5; I1 and I19 in groups with a registry).

I4    entries lie within the bounds, and an entry names the record of its place in the queue, with its size; messages
      without bodies are those of the places asked for
I11   the transaction that the message was sent in was committed
"""

from collections.abc import Sequence
from random import Random

from lab.sim.checkers.model import TOPICS, DeliveredMessage, ExpectedState
from lab.sim.workload.limited_clients import MasterOf, messages_in
from lab.sim.workload.stepping_client import Ask, SteppingClient, Steps
from lab.sim.world.world import Violation, World
from tandemq.codec.record.entries import QUEUE_ENTRY
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.transactions import TransactionState

SHARE = 0.4
"""Share of the seeds in which it runs."""
PAUSE_MS = (50, 1_500)
COUNTS = (1, 8, 100)


class EntryReader(SteppingClient):
    """Reads entries until the end of the run."""

    def __init__(
        self, world: World, expected: ExpectedState, random: Random, groups: Sequence[str], master_of: MasterOf
    ) -> None:
        """`groups`: names of the broker groups."""
        super().__init__("entry-reader", random, master_of)
        self._world = world
        self._expected = expected
        self._groups = groups

    def work(self) -> Steps:
        """See `SteppingClient`."""
        while True:
            yield self.random.randrange(*PAUSE_MS)
            group = self.random.choice(self._groups)
            answer = yield Ask(group, Command(Code.TANDEM_QUEUE_BOUNDS, body=dumps({"topics": list(TOPICS)})))
            if answer is None or answer.code != ResponseCode.SUCCESS:
                continue
            queues = self._filled(group, answer)
            if queues:
                queue, start, end = self.random.choice(queues)
                index = self.random.choice((start, end - 1, end, self.random.randrange(start, end)))
                yield from self.random.choice((self._read, self._read_heads))(queue, index)

    def _filled(self, group: str, answer: Command) -> list[tuple[MessageQueue, int, int]]:
        """Return the queues with messages, with their bounds."""
        bounds = loads(answer.body)
        self._world.fold("bounds", group, str(bounds))
        found = []
        for topic, starts, ends in zip(TOPICS, bounds["starts"], bounds["ends"] or (), strict=False):
            for queue_id, (start, end) in enumerate(zip(starts or (), ends or (), strict=True)):
                if start > end:
                    raise Violation("I4", f"{group} says that {topic}/{queue_id} begins at {start} and ends at {end}")
                if start < end:
                    found.append((MessageQueue(topic, group, queue_id), start, end))
        return found

    def _read(self, queue: MessageQueue, index: int) -> Steps:
        """Read some entries, and the record that one of them names from the same member."""
        count = self.random.choice(COUNTS)
        address = self._master_of(queue.broker_name)
        answer = yield Ask(queue.broker_name, _entries_request(queue, index, count))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        entries = list(QUEUE_ENTRY.iter_unpack(answer.body))
        self._world.fold("entries", str(queue), index, len(entries))
        start, end = (int(answer.fields[name]) for name in ("minOffset", "maxOffset"))
        if not entries or not start <= index <= end - len(entries):
            raise Violation("I4", f"{address} gave {len(entries)} entries of {queue} from {index} on: {answer.fields}")
        self._expected.on_shown(address, entries[-1][0])
        number = self.random.randrange(len(entries))
        log_offset, size, _ = entries[number]
        found = yield Ask(queue.broker_name, Command(Code.VIEW_MESSAGE_BY_ID, fields={"offset": str(log_offset)}))
        again = yield Ask(queue.broker_name, _entries_request(queue, index, count))
        is_master = self._master_of(queue.broker_name) == address
        is_same = is_master and again is not None and again.body.startswith(answer.body)
        if found is None or found.code != ResponseCode.SUCCESS or not is_same or self._expected.has_bit_rot(address):
            return  # Another master, a lost tail, deleted files, flipped bits: it says nothing of the first response.
        self._compare(address, queue, index + number, size, found.body)

    def _read_heads(self, queue: MessageQueue, index: int) -> Steps:
        """Read some messages without their bodies."""
        address = self._master_of(queue.broker_name)
        request = _entries_request(queue, index, self.random.choice(COUNTS), Code.TANDEM_QUEUE_HEADS)
        answer = yield Ask(queue.broker_name, request)
        if answer is None or answer.code != ResponseCode.SUCCESS or self._expected.has_bit_rot(address):
            return
        messages = list(messages_in(answer.body))
        self._world.fold("heads", str(queue), index, len(messages))
        start, following, end = (int(answer.fields[name]) for name in ("minOffset", "nextBeginOffset", "maxOffset"))
        offsets = [message.queue_offset for message in messages]
        is_of_queue = all((message.topic, message.queue_id) == (queue.topic, queue.queue_id) for message in messages)
        are_within = start <= index <= offsets[0] and offsets[-1] < following <= end
        if not is_of_queue or not are_within or offsets != sorted(set(offsets)):
            raise Violation("I4", f"{address} gave {offsets} of {queue} from {index} on: {answer.fields}")
        for message in messages:
            self._shown(address, queue.broker_name, message)

    def _compare(self, address: str, queue: MessageQueue, offset: int, size: int, record: bytes) -> None:
        for message in messages_in(record):
            place = message.topic, message.queue_id, message.queue_offset
            if place != (queue.topic, queue.queue_id, offset) or len(record) != size:
                raise Violation(
                    "I4", f"{address} shows {place}, {len(record)} bytes, as {queue} {offset}, {size} bytes"
                )
            self._shown(address, queue.broker_name, message)

    def _shown(self, address: str, group: str, message: StoredMessage) -> None:
        sent = self._expected.messages.get(message.unique_key)
        if sent is None:
            raise Violation("I2", f"{address} shows a message that was not sent: {message}")
        if sent.is_half and sent.outcome is not TransactionState.COMMIT:
            raise Violation("I11", f"{address} shows {sent.key}, whose outcome is {sent.outcome}")
        self._expected.on_delivery(
            DeliveredMessage(
                self.name,
                address,
                group,
                message.topic,
                message.queue_id,
                message.queue_offset,
                message.log_offset,
                sent.key,
                self._world.now_us,
            )
        )


def _entries_request(queue: MessageQueue, index: int, count: int, code: Code = Code.TANDEM_QUEUE_ENTRIES) -> Command:
    fields = {"topic": queue.topic, "queueId": str(queue.queue_id), "index": str(index), "count": str(count)}
    return Command(code, fields=fields)
