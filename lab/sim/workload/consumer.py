"""Raw consumers: members of a group that pull the queues assigned to them, commit, and fall back to slaves.

    members ─► assigned queues ─► per queue: committed offset ─► long poll ─► check, send back or finish ─► commit

A queue is read from the group's master, from a slave when the master does not answer, and from the master again a
little later. Offsets are committed at the master only, with pulls and by requests, and never beyond an unfinished
message. Every record is checked on arrival: complete, valid checksums, and sent by a producer.
"""

from random import Random

import msgspec

from lab.sim.checkers.deliveries import RECONSUME_MAX, Deliveries, records_in
from lab.sim.checkers.model import TOPICS, BrokerQueue, ExpectedState, OffsetEvent
from lab.sim.workload.raw_client import RawClient
from lab.sim.world.world import Violation, World
from tandemq.codec.record.record import decode_message
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import ConsumerData, HeartbeatData, SubscriptionData
from tandemq.model.java_hash import java_hash
from tandemq.model.message import StoredMessage
from tandemq.model.topic import retry_topic

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
MASTER_AVOIDED_MS = 3_000


class QueueCursor:
    """Reading position of one assigned queue."""

    __slots__ = (
        "avoid_master_until_ms",
        "committed",
        "finished",
        "group",
        "is_busy",
        "is_dropped",
        "next_offset",
        "open",
        "queue_id",
        "source",
        "topic",
    )

    def __init__(self, topic: str, group: str, queue_id: int) -> None:
        """A position whose offset is not known yet."""
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.next_offset = -1
        self.committed = -1
        self.source = 0
        self.avoid_master_until_ms = 0
        self.is_busy = False
        self.is_dropped = False
        self.open: dict[int, None] = {}
        """Offsets of unfinished messages."""

    @property
    def committable(self) -> int:
        """Return the offset below which everything is finished."""
        return min(self.open, default=self.next_offset)


class Consumer(RawClient):
    """One member of a consumer group."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        name: str,
        group: str,
        expression: str,
        random: Random,
        name_servers: tuple[str, ...],
        *,
        binary: bool,
        suspend_ms: int,
    ) -> None:
        """`expression`: tags as `A || B`, or `*`."""
        super().__init__(name, random, name_servers, binary=binary)
        self._world = world
        self._expected = expected
        self.group = group
        self._expression = expression
        self._suspend_ms = suspend_ms
        self.topics = (*TOPICS, retry_topic(group))
        self._members: list[str] = [name]
        self.cursors: dict[BrokerQueue, QueueCursor] = {}
        self._deliveries = Deliveries(world, expected, name, group)

    def begin(self) -> None:
        """Fetch routes, send heartbeats, assign queues."""
        self._look()
        self.after(200, self._beat)
        self.after(400, self._balance)
        self.after(3_000, self._commit_all)

    def pushed(self, address: str, command: Command) -> None:
        """Handle a notification that members joined or left."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._ask_members(address)

    # Membership.

    def _look(self) -> None:
        for topic in self.topics:
            self.fetch_route(topic)
        self.after(700 if TOPICS[0] not in self.routes else 5_000, self._look)

    def _addresses(self) -> list[str]:
        found: dict[str, None] = {}
        for topic in self.topics:
            route = self.routes.get(topic)
            for members in route.members.values() if route else ():
                for address in members.values():
                    found[address] = None
        return list(found)

    def _beat(self) -> None:
        tags = [tag.strip() for tag in self._expression.split("||")] if self._expression != "*" else []
        data = HeartbeatData(
            self.name,
            [],
            [
                ConsumerData(
                    self.group,
                    "CONSUME_PASSIVELY",
                    "CLUSTERING",
                    "CONSUME_FROM_FIRST_OFFSET",
                    [
                        SubscriptionData(
                            topic,
                            "*" if topic.startswith("%") else self._expression,
                            tags,
                            [java_hash(tag) for tag in tags],
                            1,
                        )
                        for topic in self.topics
                    ],
                )
            ],
        )
        body = msgspec.json.encode(data)
        for address in self._addresses():
            self.ask(address, Command(RequestCode.HEART_BEAT, body=body), 1_500, lambda _: None)
        self.after(500 if not self.routes else 9_000, self._beat)

    def _ask_members(self, address: str) -> None:
        fields = {"consumerGroup": self.group}
        self.ask(address, Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields=fields), 1_500, self._heard_members)

    def _heard_members(self, answer: Command | None) -> None:
        if answer is not None and answer.code == 0:
            members = sorted(str(name) for name in loads(answer.body)["consumerIdList"])
            if self.name in members and members != self._members:
                self._members = members
                self._share()

    def _balance(self) -> None:
        masters = [address for address in self._addresses() if address.endswith(":10911")]
        if masters:
            self._ask_members(self.random.choice(masters))
        self._share()
        self.after(500 if not self.cursors else 5_000, self._balance)

    def _queues(self) -> list[BrokerQueue]:
        """Return all queues to assign."""
        return [
            BrokerQueue(name, topic, queue_id)
            for topic in self.topics
            if topic in self.routes
            for name in sorted(self.routes[topic].queues)
            for queue_id in range(self.routes[topic].queues[name])
        ]

    def _share(self) -> None:
        queues = self._queues()
        place = self._members.index(self.name) if self.name in self._members else 0
        mine = dict.fromkeys(queues[place :: len(self._members)])
        for key in [key for key in self.cursors if key not in mine]:
            self.cursors.pop(key).is_dropped = True
        for key in mine:
            if key not in self.cursors:
                cursor = self.cursors[key] = QueueCursor(key.topic, key.group, key.queue_id)
                self._ask_offset(cursor)

    # Offsets.

    def _member(self, cursor: QueueCursor, *, master_only: bool = False) -> tuple[int, str] | None:
        route = self.routes.get(cursor.topic) or self.routes.get(TOPICS[0])
        members = route.members.get(cursor.group, {}) if route is not None else {}
        if master_only:
            return (0, members[0]) if 0 in members else None
        if cursor.source and cursor.source in members:
            return cursor.source, members[cursor.source]
        if 0 in members and self.now.mono_ms >= cursor.avoid_master_until_ms:
            return 0, members[0]
        slaves = sorted(number for number in members if number)
        if slaves:
            number = self.random.choice(slaves)
            return number, members[number]
        return (0, members[0]) if 0 in members else None

    def _ask_offset(self, cursor: QueueCursor) -> None:
        if cursor.is_dropped:
            return
        member = self._member(cursor)
        if member is None:
            self.after(500, lambda: self._ask_offset(cursor))
            return
        fields = {
            "consumerGroup": self.group,
            "topic": cursor.topic,
            "queueId": str(cursor.queue_id),
            "setZeroIfNotFound": "false",
        }
        number = self._record_offset("asked", cursor)
        self.ask(
            member[1],
            Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields),
            1_500,
            lambda answer: self._heard_offset(cursor, member[0], number, answer),
        )

    def _record_offset(self, what: str, cursor: QueueCursor, offset: int = 0, number: int = 0) -> int:
        """Record a request for the judge, or its outcome; return its number."""
        events = self._expected.offset_events
        number = number or len(events) + 1
        queue = BrokerQueue(cursor.group, cursor.topic, cursor.queue_id)
        events.append(OffsetEvent(self._world.now_us, number, what, self.name, self.group, queue, offset))
        return number

    def _heard_offset(self, cursor: QueueCursor, source: int, number: int, answer: Command | None) -> None:
        if answer is not None and answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            self._record_offset("reported", cursor, int(answer.fields.get("offset") or 0), number)
        if answer is not None and answer.code == 0:
            cursor.next_offset = cursor.committed = int(answer.fields["offset"])
            self._pull(cursor)
        elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            cursor.next_offset = 0
            self._pull(cursor)
        else:
            self._avoid(cursor, source)
            self.after(300, lambda: self._ask_offset(cursor))

    def _avoid(self, cursor: QueueCursor, source: int) -> None:
        if source == 0:
            cursor.avoid_master_until_ms = self.now.mono_ms + MASTER_AVOIDED_MS
        cursor.source = 0

    def _commit_all(self) -> None:
        for cursor in self.cursors.values():
            self._commit(cursor)
        self.after(3_000, self._commit_all)

    def _commit(self, cursor: QueueCursor) -> None:
        master = self._member(cursor, master_only=True)
        offset = cursor.committable
        if master is None or offset <= cursor.committed or offset <= 0:
            return
        cursor.committed = offset
        self._expected.record_commit(
            cursor.group, cursor.topic, cursor.queue_id, self.group, offset, self._world.now_us
        )
        number = self._record_offset("commit", cursor, offset)
        fields = {
            "consumerGroup": self.group,
            "topic": cursor.topic,
            "queueId": str(cursor.queue_id),
            "commitOffset": str(offset),
        }
        self.ask(
            master[1],
            Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields),
            1_500,
            lambda answer: self._committed(cursor, number, answer),
        )

    def _committed(self, cursor: QueueCursor, number: int, answer: Command | None) -> None:
        if answer is None:
            cursor.committed = -1
        elif answer.code == ResponseCode.SUCCESS:
            self._record_offset("committed", cursor, number=number)

    # Pulling.

    def _pull(self, cursor: QueueCursor) -> None:
        if cursor.is_dropped or cursor.is_busy:
            return
        member = self._member(cursor)
        if member is None:
            self.after(500, lambda: self._pull(cursor))
            return
        number, address = member
        cursor.is_busy = True
        flags = SUSPEND | (SUBSCRIPTION if self.random.random() < 0.8 else 0)
        commit = 0
        if number == 0 and cursor.committable > 0:
            flags |= COMMIT
            commit = cursor.committable
            cursor.committed = max(cursor.committed, commit)
            self._record_offset("commit", cursor, commit)
            self._expected.record_commit(
                cursor.group, cursor.topic, cursor.queue_id, self.group, commit, self._world.now_us
            )
        fields = {
            "consumerGroup": self.group,
            "topic": cursor.topic,
            "queueId": str(cursor.queue_id),
            "queueOffset": str(cursor.next_offset),
            "maxMsgNums": "16",
            "sysFlag": str(flags),
            "commitOffset": str(commit),
            "suspendTimeoutMillis": str(self._suspend_ms),
            "subVersion": "1",
            "expressionType": "TAG",
            "subscription": "*" if cursor.topic.startswith("%") else self._expression,
        }
        code = RequestCode.PULL_MESSAGE if self.random.random() < 0.9 else RequestCode.LITE_PULL_MESSAGE
        self.ask(
            address,
            Command(code, fields=fields),
            self._suspend_ms + 1_500,
            lambda answer: self._pulled(cursor, number, address, answer),
        )

    def _pulled(self, cursor: QueueCursor, source: int, address: str, answer: Command | None) -> None:
        cursor.is_busy = False
        if cursor.is_dropped:
            return
        if answer is None or answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST):
            self._avoid(cursor, source)
            self.after(200, lambda: self._pull(cursor))
            return
        if "suggestWhichBrokerId" in answer.fields:
            cursor.source = int(answer.fields["suggestWhichBrokerId"])
        if answer.code == 0 and self._has_bit_rot(cursor, address, answer.body):
            self._avoid(cursor, source)
            self.after(500, lambda: self._pull(cursor))
        elif answer.code == 0:
            self._look_at(cursor, address, answer.body)
            cursor.next_offset = max(cursor.next_offset, int(answer.fields["nextBeginOffset"]))
            self._pull(cursor)
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED and source == 0:
            cursor.next_offset = int(answer.fields["nextBeginOffset"])
            cursor.open.clear()
            cursor.committed = -1
            self._pull(cursor)
        elif answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND):
            following = int(answer.fields["nextBeginOffset"])
            pause = 1 if following > cursor.next_offset or answer.code == ResponseCode.PULL_NOT_FOUND else 200
            cursor.next_offset = max(cursor.next_offset, following)
            self.after(pause, lambda: self._pull(cursor))
        else:
            self.after(500, lambda: self._pull(cursor))

    def _has_bit_rot(self, cursor: QueueCursor, address: str, body: bytes) -> bool:
        """Return whether a response has a bit flipped at rest and not yet scrubbed: then it is pulled again."""
        if not self._expected.has_bit_rot(address):
            return False
        try:
            for _ in records_in(body, address, self.name, cursor.topic, cursor.queue_id, cursor.next_offset):
                pass
        except Violation as found:
            if found.rule == "I10":
                return True
            raise
        return False

    def _look_at(self, cursor: QueueCursor, address: str, body: bytes) -> None:
        for position, _ in records_in(body, address, self.name, cursor.topic, cursor.queue_id, cursor.next_offset):
            try:
                message = decode_message(body, position, len(body))
            except ProtocolError as error:
                raise Violation("I10", f"{address} gave {self.name} an unreadable record: {error}") from error
            wanted = self._deliveries.given(address, cursor.group, cursor.topic, message)
            if self._deliveries.is_rejected(wanted, message):
                cursor.open[message.queue_offset] = None
                self._send_back(cursor, message)
            else:
                self._deliveries.finished.add(wanted.key)

    def _send_back(self, cursor: QueueCursor, message: StoredMessage) -> None:
        if cursor.is_dropped or message.queue_offset not in cursor.open:
            return
        master = self._member(cursor, master_only=True)
        if master is None:
            self.after(500, lambda: self._send_back(cursor, message))
            return
        fields = {
            "offset": str(message.log_offset),
            "group": self.group,
            "delayLevel": "1",
            "originMsgId": message.offset_message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(RECONSUME_MAX),
        }
        self.ask(
            master[1],
            Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields),
            1_500,
            lambda answer: self._sent_back(cursor, message, answer),
        )

    def _sent_back(self, cursor: QueueCursor, message: StoredMessage, answer: Command | None) -> None:
        if answer is None or answer.code:
            self.after(400, lambda: self._send_back(cursor, message))
            return
        cursor.open.pop(message.queue_offset, None)
        self._world.fold("back", message.unique_key)
