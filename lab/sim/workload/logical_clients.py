"""Raw clients of a static topic, with the fields that clients of RocketMQ 5 send.

    route with topicQueueMappingByBroker ─► leader of each logical queue ─► send, pull, commit there
    501 (NOT_LEADER_FOR_QUEUE) ─► the route again

The consumer reads all logical queues by logical offsets, commits them, and begins again from time to time at what
brokers say was committed.
"""

from collections.abc import Callable
from random import Random

from lab.sim.checkers.deliveries import Deliveries
from lab.sim.checkers.logical_queues import LOGICAL_GROUP, QUEUES, LogicalQueues
from lab.sim.checkers.model import STATIC_TOPIC, Attempt, BrokerRef, ExpectedState, SentMessage
from lab.sim.workload.consumer import COMMIT, SUBSCRIPTION, SUSPEND
from lab.sim.workload.producer import SimProducer
from lab.sim.workload.raw_client import RawClient
from lab.sim.world.world import Violation, World
from tandemq.codec.record.record import decode_message, parse_record, record_fault
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage

PACE_MS = 1_100
KINDS = frozenset({"batch", "oneway", "nowait", "delay"})
TIMEOUT_MS = 1_500
COMMIT_MS = 3_000
AGAIN_MS = (6_000, 20_000)
"""Time after which the consumer begins again at the committed offsets."""
FROM_START = 0.2
"""Share of the queues that it then reads from the start; it commits nothing before it is at the committed offset."""
LAZY = 0.1
"""Share of the responses after which it does not pull for a while."""
LAZY_MS = (1_000, 8_000)


class LeaderAddress:
    """The leader of a logical queue, by the route."""

    __slots__ = ("address", "group")

    def __init__(self, group: str, address: str) -> None:
        self.group = group
        self.address = address


def leader_of(client: RawClient, number: int) -> LeaderAddress | None:
    """Return the master that leads a logical queue; None while no route names one."""
    route = client.routes.get(STATIC_TOPIC)
    group = route.leaders.get(number) if route is not None else None
    if route is None or group is None or 0 not in route.members.get(group, {}):
        return None
    return LeaderAddress(group, route.members[group][0])


class LogicalProducer(SimProducer):
    """Sends to logical queues; delayed messages among them have to be refused."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        random: Random,
        name_servers: tuple[str, ...],
        kinds: frozenset[str],
    ) -> None:
        """`kinds`: kinds of messages of the seed; none is to be rejected by its consumer."""
        super().__init__(
            world, expected, "pl", random, name_servers, pace_ms=PACE_MS, kinds=kinds & KINDS, binary=False
        )
        self._broker = ""
        """Name of the broker group that the next request is for."""

    def _look(self) -> None:
        self.fetch_route(STATIC_TOPIC)
        self.after(5_000 if leader_of(self, 0) else 400, self._look)

    def _step(self) -> None:
        if self.is_stopped:
            return
        count = self.random.choice((1, 1, 2, 4))
        if leader_of(self, 0) is not None and self.under_way < 20:
            if count > 1 and "batch" in self._kinds and self.random.random() < 0.5:
                self._send([self._make(STATIC_TOPIC, plain=True) for _ in range(count)], set())
            else:
                for _ in range(count):
                    self._send([self._make(STATIC_TOPIC)], set())
        self.after(self.random.randrange(self._pace_ms // 4, self._pace_ms * 2), self._step)

    def _send(self, messages: list[SentMessage], tried: set[str]) -> None:
        number = self.random.randrange(QUEUES)
        leader = leader_of(self, number)
        if leader is None:
            self.after(300, lambda: self._again(messages, tried))
            return
        self._broker = leader.group
        self.attempt(messages, leader.group, leader.address, number, tried)

    def _command(self, messages: list[SentMessage], queue_id: int, *, waits: bool) -> Command:
        command = super()._command(messages, queue_id, waits=waits)
        command.fields["bname" if command.code == RequestCode.SEND_MESSAGE else "n"] = self._broker
        # A topic whose creation was not confirmed may be gone; as an ordinary one it could not become static.
        command.fields["defaultTopic" if command.code == RequestCode.SEND_MESSAGE else "c"] = STATIC_TOPIC
        return command

    def _answered(self, attempt: Attempt, tried: set[str], answer: Command | None) -> None:
        if attempt.messages[0].is_late:
            self._record_response(attempt, answer)
        else:
            super()._answered(attempt, tried, answer)

    def _record_response(self, attempt: Attempt, answer: Command | None) -> None:
        super()._record_response(attempt, answer)
        if answer is None or answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            self.fetch_route(STATIC_TOPIC)

    def has_placed(self, number: int, since_us: int) -> bool:
        """Return whether a message to a logical queue was sent since a time, and answered with its offset there."""
        return any(
            attempt.is_logical and attempt.queue_id == number and attempt.queue_offset >= 0
            for attempt in reversed(self._expected.attempts)
            if attempt.sent_us >= since_us
        )


class _Cursor:
    """Reading position of one logical queue; one that was given up is dropped."""

    __slots__ = ("committed", "is_dropped", "next_offset", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.next_offset = 0
        self.committed = -1
        self.is_dropped = False


class LogicalConsumer(RawClient):
    """The only member of its group: reads all logical queues."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        queues: LogicalQueues,
        brokers: dict[str, BrokerRef],
        master_of: Callable[[str], str],
        random: Random,
        name_servers: tuple[str, ...],
        *,
        suspend_ms: int,
    ) -> None:
        """`brokers`: the members by address. `master_of`: returns the address of a group's master."""
        super().__init__("cl", random, name_servers)
        self._world = world
        self._expected = expected
        self._queues = queues
        self._brokers = brokers
        self._master_of = master_of
        self._suspend_ms = suspend_ms
        self._deliveries = Deliveries(world, expected, self.name, LOGICAL_GROUP)
        self._cursors: list[_Cursor] = []

    def begin(self) -> None:
        """Fetch the route, then read."""
        self._look()
        self._start_over()
        self.after(COMMIT_MS, self._commit_all)

    def _look(self) -> None:
        self.fetch_route(STATIC_TOPIC)
        self.after(5_000 if leader_of(self, 0) else 400, self._look)

    def _start_over(self) -> None:
        for cursor in self._cursors:
            cursor.is_dropped = True
        self._cursors = [_Cursor(number) for number in range(QUEUES)]
        for cursor in self._cursors:
            self._ask_offset(cursor)
        self.after(self.random.randrange(*AGAIN_MS), self._start_over)

    def _fields(self, cursor: _Cursor, leader: LeaderAddress) -> dict[str, str]:
        return {
            "consumerGroup": LOGICAL_GROUP,
            "topic": STATIC_TOPIC,
            "queueId": str(cursor.number),
            "bname": leader.group,
        }

    # Offsets.

    def _ask_offset(self, cursor: _Cursor) -> None:
        if cursor.is_dropped:
            return
        leader = leader_of(self, cursor.number)
        if leader is None:
            self.after(500, lambda: self._ask_offset(cursor))
            return
        fields = self._fields(cursor, leader) | {"setZeroIfNotFound": "false"}
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields)
        self.ask(leader.address, command, TIMEOUT_MS, lambda answer: self._heard_offset(cursor, answer))

    def _heard_offset(self, cursor: _Cursor, answer: Command | None) -> None:
        if cursor.is_dropped:
            return
        if answer is not None and answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            offset = int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else None
            self._queues.found(cursor.number, offset)
            cursor.committed = offset or -1
            if self.random.random() >= FROM_START:
                cursor.next_offset = offset or 0
            self._pull(cursor)
            return
        self.fetch_route(STATIC_TOPIC)
        self.after(400, lambda: self._ask_offset(cursor))

    def _commit_all(self) -> None:
        for cursor in self._cursors:
            leader = leader_of(self, cursor.number)
            if leader is not None and cursor.next_offset > max(0, cursor.committed):
                self._commit(cursor, leader)
        self.after(COMMIT_MS, self._commit_all)

    def _commit(self, cursor: _Cursor, leader: LeaderAddress) -> None:
        number, offset, queues = cursor.number, cursor.next_offset, self._queues
        sent_us, disturbances = self._world.now_us, queues.disturbances
        before, cursor.committed = cursor.committed, offset
        queues.committing(number, offset)

        def answered(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                queues.commit_confirmed(number, offset, sent_us, disturbances)
            else:
                cursor.committed = before

        fields = self._fields(cursor, leader) | {"commitOffset": str(offset)}
        self.ask(leader.address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields), TIMEOUT_MS, answered)

    # Pulling.

    def _pull(self, cursor: _Cursor) -> None:
        if cursor.is_dropped:
            return
        leader = leader_of(self, cursor.number)
        if leader is None:
            self.after(500, lambda: self._pull(cursor))
            return
        flags, commit = SUSPEND | SUBSCRIPTION, 0
        if cursor.next_offset > max(0, cursor.committed) and self.random.random() < 0.5:
            flags, commit = flags | COMMIT, cursor.next_offset
            self._queues.committing(cursor.number, commit)
        fields = self._fields(cursor, leader) | {
            "queueOffset": str(cursor.next_offset),
            "maxMsgNums": "16",
            "sysFlag": str(flags),
            "commitOffset": str(commit),
            "suspendTimeoutMillis": str(self._suspend_ms),
            "subVersion": "1",
            "expressionType": "TAG",
            "subscription": "*",
        }
        code = RequestCode.PULL_MESSAGE if self.random.random() < 0.9 else RequestCode.LITE_PULL_MESSAGE
        self.ask(
            leader.address,
            Command(code, fields=fields),
            self._suspend_ms + TIMEOUT_MS,
            lambda answer: self._pulled(cursor, leader, answer),
        )

    def _pulled(self, cursor: _Cursor, leader: LeaderAddress, answer: Command | None) -> None:
        if cursor.is_dropped:
            return
        code = None if answer is None else answer.code
        pause = 400
        if answer is None or code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            self.fetch_route(STATIC_TOPIC)
        elif code != ResponseCode.SUCCESS or self._is_taken(cursor, leader, answer):
            following = int(answer.fields["nextBeginOffset"])
            if following < cursor.next_offset and not self._queues.has_losses:
                raise Violation(
                    "I23", f"{leader.address} sent {self.name} back from {cursor.next_offset} to {following}: {answer}"
                )
            if code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                self._queues.passed(cursor.number, cursor.next_offset, following)
            pause = 1 if following != cursor.next_offset or code == ResponseCode.PULL_NOT_FOUND else 200
            if self.random.random() < LAZY:
                pause = self.random.randrange(*LAZY_MS)
            cursor.next_offset = following
        self.after(pause, lambda: self._pull(cursor))

    def _is_taken(self, cursor: _Cursor, leader: LeaderAddress, answer: Command) -> bool:
        """Check and take the messages of a response; False if one has a bit flipped at rest: then it is pulled again.

        Raises:
            Violation: I10 or I23, or those of a delivery.
        """
        body, delta = answer.body, int(answer.fields.get("offsetDelta", "0"))
        position, found = 0, list[StoredMessage]()
        while position < len(body):
            record = parse_record(body, position, len(body))
            fault: str | None
            if isinstance(record, str):
                fault = record
            else:
                fault = record_fault(body, position, record.size, record.body_start, record.body_end, record.body_crc)
            if isinstance(record, str) or fault is not None:
                if any(self._expected.has_bit_rot(address) for address in self._brokers):
                    return False
                raise Violation("I10", f"{leader.address} gave {self.name} a corrupt record: {fault}")
            try:
                found.append(decode_message(body, position, len(body)))
            except ProtocolError as error:
                raise Violation("I10", f"{leader.address} gave {self.name} an unreadable record: {error}") from error
            position += record.size
        expected = cursor.next_offset
        for message in found:
            offset = message.queue_offset + delta
            if message.topic != STATIC_TOPIC or offset < expected:
                raise Violation(
                    "I23",
                    f"{leader.address} gave {self.name} {message.topic} {cursor.number}@{offset} at {expected}",
                )
            group = self._brokers[message.store_host].group
            self._queues.delivered(cursor.number, message, group, offset, expected)
            expected = offset + 1
            address = leader.address if group == leader.group else self._master_of(group)
            wanted = self._deliveries.given(address, group, STATIC_TOPIC, message)
            self._deliveries.finished.add(wanted.key)
        return True
