"""Consumers of the simulation: members of a group that pull every queue of their share, commit, and fall back.

    members ─► share of queues ─► per queue: committed offset ─► long poll ─► look, give back or finish ─► commit

A queue is read from the group's master; when that does not answer, from a slave, and from the master again a little
later. Offsets go to the master only, with pulls and by themselves, and never beyond a message that is not finished.
What arrives is checked at once: every record whole, its checksums right, and what a producer sent.
"""

from random import Random

import msgspec

from tandemq.codec.record.record import decode_message
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import ConsumerData, HeartbeatData, SubscriptionData
from tandemq.model.java_hash import java_hash
from tandemq.model.message import StoredMessage
from tandemq.model.topic import retry_topic
from tandemq.sim.checkers.deliveries import RECONSUME_MAX, Deliveries, records_in
from tandemq.sim.checkers.model import Shadow
from tandemq.sim.workload.messages import TOPICS
from tandemq.sim.workload.raw_client import RawClient, RawConnection
from tandemq.sim.world.world import Violation, World

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
MASTER_AVOIDED_MS = 3_000


class Lane:
    """One queue of our share."""

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
        """Its offset is not known yet."""
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
        """Offsets of messages not finished."""

    @property
    def committable(self) -> int:
        """Below it everything is finished."""
        return min(self.open, default=self.next_offset)


class Consumer(RawClient):
    """One member of a consumer group."""

    def __init__(
        self,
        world: World,
        shadow: Shadow,
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
        self._shadow = shadow
        self.group = group
        self._expression = expression
        self._suspend_ms = suspend_ms
        self.topics = (*TOPICS, retry_topic(group))
        self._members: list[str] = [name]
        self.lanes: dict[tuple[str, str, int], Lane] = {}
        self._deliveries = Deliveries(world, shadow, name, group)

    def begin(self) -> None:
        """Look for routes, introduce ourselves, share the queues."""
        self._look()
        self.after(200, self._beat)
        self.after(400, self._balance)
        self.after(3_000, self._commit_all)

    def pushed(self, line: RawConnection, command: Command) -> None:
        """A broker says that members came or went."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._ask_members(line.address)

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
        self.after(500 if not self.lanes else 5_000, self._balance)

    def _queues(self) -> list[tuple[str, str, int]]:
        """Topic, broker group and queue id of everything there is to share."""
        return [
            (topic, name, queue_id)
            for topic in self.topics
            if topic in self.routes
            for name in sorted(self.routes[topic].queues)
            for queue_id in range(self.routes[topic].queues[name])
        ]

    def _share(self) -> None:
        queues = self._queues()
        place = self._members.index(self.name) if self.name in self._members else 0
        mine = dict.fromkeys(queues[place :: len(self._members)])
        for key in [key for key in self.lanes if key not in mine]:
            self.lanes.pop(key).is_dropped = True
        for key in mine:
            if key not in self.lanes:
                lane = self.lanes[key] = Lane(*key)
                self._ask_offset(lane)

    # Offsets.

    def _member(self, lane: Lane, *, master_only: bool = False) -> tuple[int, str] | None:
        route = self.routes.get(lane.topic) or self.routes.get(TOPICS[0])
        members = route.members.get(lane.group, {}) if route is not None else {}
        if master_only:
            return (0, members[0]) if 0 in members else None
        if lane.source and lane.source in members:
            return lane.source, members[lane.source]
        if 0 in members and self.now.mono_ms >= lane.avoid_master_until_ms:
            return 0, members[0]
        slaves = sorted(number for number in members if number)
        if slaves:
            number = self.random.choice(slaves)
            return number, members[number]
        return (0, members[0]) if 0 in members else None

    def _ask_offset(self, lane: Lane) -> None:
        if lane.is_dropped:
            return
        member = self._member(lane)
        if member is None:
            self.after(500, lambda: self._ask_offset(lane))
            return
        fields = {
            "consumerGroup": self.group,
            "topic": lane.topic,
            "queueId": str(lane.queue_id),
            "setZeroIfNotFound": "false",
        }
        self.ask(
            member[1],
            Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields),
            1_500,
            lambda answer: self._heard_offset(lane, member[0], answer),
        )

    def _heard_offset(self, lane: Lane, source: int, answer: Command | None) -> None:
        if answer is not None and answer.code == 0:
            lane.next_offset = lane.committed = int(answer.fields["offset"])
            self._pull(lane)
        elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            lane.next_offset = 0
            self._pull(lane)
        else:
            self._avoid(lane, source)
            self.after(300, lambda: self._ask_offset(lane))

    def _avoid(self, lane: Lane, source: int) -> None:
        if source == 0:
            lane.avoid_master_until_ms = self.now.mono_ms + MASTER_AVOIDED_MS
        lane.source = 0

    def _commit_all(self) -> None:
        for lane in self.lanes.values():
            self._commit(lane)
        self.after(3_000, self._commit_all)

    def _commit(self, lane: Lane) -> None:
        master = self._member(lane, master_only=True)
        offset = lane.committable
        if master is None or offset <= lane.committed or offset <= 0:
            return
        lane.committed = offset
        self._shadow.committed(lane.group, lane.topic, lane.queue_id, self.group, offset, self._world.now_us)
        fields = {
            "consumerGroup": self.group,
            "topic": lane.topic,
            "queueId": str(lane.queue_id),
            "commitOffset": str(offset),
        }
        self.ask(
            master[1],
            Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields),
            1_500,
            lambda answer: self._committed(lane, answer),
        )

    def _committed(self, lane: Lane, answer: Command | None) -> None:
        if answer is None:
            lane.committed = -1

    # Pulling.

    def _pull(self, lane: Lane) -> None:
        if lane.is_dropped or lane.is_busy:
            return
        member = self._member(lane)
        if member is None:
            self.after(500, lambda: self._pull(lane))
            return
        number, address = member
        lane.is_busy = True
        flags = SUSPEND | (SUBSCRIPTION if self.random.random() < 0.8 else 0)
        commit = 0
        if number == 0 and lane.committable > 0:
            flags |= COMMIT
            commit = lane.committable
            lane.committed = max(lane.committed, commit)
            self._shadow.committed(lane.group, lane.topic, lane.queue_id, self.group, commit, self._world.now_us)
        fields = {
            "consumerGroup": self.group,
            "topic": lane.topic,
            "queueId": str(lane.queue_id),
            "queueOffset": str(lane.next_offset),
            "maxMsgNums": "16",
            "sysFlag": str(flags),
            "commitOffset": str(commit),
            "suspendTimeoutMillis": str(self._suspend_ms),
            "subVersion": "1",
            "expressionType": "TAG",
            "subscription": "*" if lane.topic.startswith("%") else self._expression,
        }
        code = RequestCode.PULL_MESSAGE if self.random.random() < 0.9 else RequestCode.LITE_PULL_MESSAGE
        self.ask(
            address,
            Command(code, fields=fields),
            self._suspend_ms + 1_500,
            lambda answer: self._pulled(lane, number, address, answer),
        )

    def _pulled(self, lane: Lane, source: int, address: str, answer: Command | None) -> None:
        lane.is_busy = False
        if lane.is_dropped:
            return
        if answer is None or answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST):
            self._avoid(lane, source)
            self.after(200, lambda: self._pull(lane))
            return
        if "suggestWhichBrokerId" in answer.fields:
            lane.source = int(answer.fields["suggestWhichBrokerId"])
        if answer.code == 0 and self._is_rotten(lane, address, answer.body):
            self._avoid(lane, source)
            self.after(500, lambda: self._pull(lane))
        elif answer.code == 0:
            self._look_at(lane, address, answer.body)
            lane.next_offset = max(lane.next_offset, int(answer.fields["nextBeginOffset"]))
            self._pull(lane)
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED and source == 0:
            lane.next_offset = int(answer.fields["nextBeginOffset"])
            lane.open.clear()
            lane.committed = -1
            self._pull(lane)
        elif answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND):
            following = int(answer.fields["nextBeginOffset"])
            pause = 1 if following > lane.next_offset or answer.code == ResponseCode.PULL_NOT_FOUND else 200
            lane.next_offset = max(lane.next_offset, following)
            self.after(pause, lambda: self._pull(lane))
        else:
            self.after(500, lambda: self._pull(lane))

    def _is_rotten(self, lane: Lane, address: str, body: bytes) -> bool:
        """Whether a bit turned at rest reached us before the scrubber: then all of it is asked for again."""
        if not self._shadow.has_rot(address):
            return False
        try:
            for _ in records_in(body, address, self.name, lane.topic, lane.queue_id, lane.next_offset):
                pass
        except Violation as found:
            if found.rule == "I10":
                return True
            raise
        return False

    def _look_at(self, lane: Lane, address: str, body: bytes) -> None:
        for position, _ in records_in(body, address, self.name, lane.topic, lane.queue_id, lane.next_offset):
            try:
                message = decode_message(body, position, len(body))
            except ProtocolError as error:
                raise Violation("I10", f"{address} gave {self.name} an unreadable record: {error}") from error
            wanted = self._deliveries.given(address, lane.group, lane.topic, message)
            if self._deliveries.is_rejected(wanted, message):
                lane.open[message.queue_offset] = None
                self._give_back(lane, message)
            else:
                self._deliveries.finished.add(wanted.key)

    def _give_back(self, lane: Lane, message: StoredMessage) -> None:
        if lane.is_dropped or message.queue_offset not in lane.open:
            return
        master = self._member(lane, master_only=True)
        if master is None:
            self.after(500, lambda: self._give_back(lane, message))
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
            lambda answer: self._given_back(lane, message, answer),
        )

    def _given_back(self, lane: Lane, message: StoredMessage, answer: Command | None) -> None:
        if answer is None or answer.code:
            self.after(400, lambda: self._give_back(lane, message))
            return
        lane.open.pop(message.queue_offset, None)
        self._world.fold("back", message.unique_key)
