"""A world for one client node: simulated name server and brokers that handle frames, on a clock that tests move.

    world = World()
    broker = world.broker("a")                 # "a:0" is its master's address; broker_id=1 adds a slave
    world.topic("T", queues=2)
    producer = world.node.producer(ProducerOptions(group="g"))
    ticket = producer.send(Message("T", b"x"), world.now)
    world.until(lambda: ticket.done)

A server is `up`, `refusing` (connections fail, open ones were reset) or `silent` (it reads and never
responds).
"""

from collections.abc import Callable
from enum import Enum
from random import Random

from tandemq.boundary import Closed, Event, LinkKind, Now, Opened, Turn
from tandemq.client.core.settings import ClientConfig
from tandemq.client.node import ClientNode
from tandemq.codec.record.record import decode_batch, encode_host, encode_record
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode as Answered
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.java_hash import java_hash
from tandemq.model.message import decode_properties, encode_properties
from tandemq.model.topic import RETRY_PREFIX

NAME_SERVER = "127.0.0.1:9876"
WALL_MS = 1_700_000_000_000
HOST = encode_host(b"\x7f\0\0\1", 10911)
STEP_MS = 20
"""The clock moves in steps of at most this, so that tests see when something happened."""


_NEEDS: dict[int, str] = {
    Code.SEND_MESSAGE_V2: "w",
    Code.SEND_BATCH_MESSAGE: "w",
    Code.CONSUMER_SEND_MSG_BACK: "w",
    Code.PULL_MESSAGE: "r",
    Code.QUERY_CONSUMER_OFFSET: "r",
    Code.UPDATE_CONSUMER_OFFSET: "r",
    Code.LOCK_BATCH_MQ: "r",
}
"""The permission that a request needs at a broker in a group that fails over."""


class Health(Enum):
    """How a server handles connections and requests."""

    UP = "up"
    REFUSING = "refusing"
    SILENT = "silent"


class Server:
    """A server that responds to frames."""

    def __init__(self, world: "World", address: str) -> None:
        self.world = world
        self.address = address
        self.health = Health.UP
        self.requests: list[Command] = []
        self.handlers: dict[int, Callable[[Command], Command | None]] = {}
        self.links: dict[int, FrameDecoder] = {}
        self.responses: list[Command] = []
        self._opaque = 0

    def receive(self, link: int, data: bytes) -> None:
        if self.health is Health.SILENT:
            return
        for frame in self.links[link].feed(data):
            command = decode_command(frame)
            if command.is_response:
                self.responses.append(command)
                continue
            self.requests.append(command)
            self.world.trace.append((self.address, command))
            handler = self.handlers.get(command.code)
            answer = self.refusal(command)
            if answer is None:
                answer = handler(command) if handler else command.answer(Answered.REQUEST_CODE_NOT_SUPPORTED)
            if answer is not None and not command.is_oneway:
                self.say(link, answer)

    def refusal(self, _command: Command) -> Command | None:
        """Return the response of a server that may not serve this request; None if it may."""
        return None

    def say(self, link: int, command: Command) -> None:
        self.world.received.append((link, encode_command(command)))

    def ask(self, code: Code, body: bytes = b"", *, oneway: bool = False, **fields: str) -> int:
        """Send a request to the client on the newest connection; returns its opaque."""
        self._opaque += 1
        link = list(self.links)[-1]
        self.say(link, Command(code, self._opaque, FLAG_ONEWAY if oneway else 0, fields=fields, body=body))
        return self._opaque

    def codes(self) -> list[int]:
        return [command.code for command in self.requests]

    def of(self, code: Code) -> list[Command]:
        return [command for command in self.requests if command.code == code]

    def refuse(self) -> None:
        """Behave as after a kill: open connections are reset, new ones are refused."""
        self.health = Health.REFUSING
        for link in list(self.links):
            del self.links[link]
            self.world.events.append(Closed(link, "reset by peer"))

    def recover(self) -> None:
        self.health = Health.UP


class Queue:
    """Records of a queue, shared by master and slave."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, str]] = []
        self.start = 0

    @property
    def end(self) -> int:
        return self.start + len(self.records)


class Group:
    """State shared by the members of a broker group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[tuple[str, int], Queue] = {}
        self.members: dict[int, Broker] = {}
        """Members by broker id, as name servers list them."""
        self.route_fields: dict[str, object] = {}
        """Further fields of the group in routes."""
        self.perm = 7

    def list_as(self, **members: "Broker") -> None:
        """Change the listed ids: list_as(id0=slave, id1=master)."""
        self.members = {int(key[2:]): broker for key, broker in members.items()}


class Broker(Server):
    """The requests of a broker that clients need; tests replace entries of `handlers`."""

    def __init__(self, world: "World", group: Group, broker_id: int) -> None:
        super().__init__(world, f"{group.name}:{10911 + broker_id}")
        self.group = group
        self.broker_id = broker_id
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.clients: dict[str, set[str]] = {}
        self.locks: dict[tuple[str, str, int], str] = {}
        self.held: list[tuple[int, Command]] = []
        self.sent_back: list[Command] = []
        self.is_holding = True
        self.suggested: int | None = None
        self.rights: str | None = None
        """In a group that fails over: "" (nothing), "r", "w" or "rw"; None: `static`."""
        self.handlers = {
            Code.SEND_MESSAGE_V2: self.send,
            Code.SEND_BATCH_MESSAGE: self.send,
            Code.PULL_MESSAGE: self.pull,
            Code.HEART_BEAT: self.heartbeat,
            Code.UNREGISTER_CLIENT: self.unregister,
            Code.GET_CONSUMER_LIST_BY_GROUP: self.list_clients,
            Code.QUERY_CONSUMER_OFFSET: self.query_offset,
            Code.UPDATE_CONSUMER_OFFSET: self.commit,
            Code.GET_MAX_OFFSET: lambda c: c.answer(0, fields={"offset": str(self.queue(c).end)}),
            Code.GET_MIN_OFFSET: lambda c: c.answer(0, fields={"offset": str(self.queue(c).start)}),
            Code.SEARCH_OFFSET_BY_TIMESTAMP: lambda c: c.answer(0, fields={"offset": c.fields["timestamp"][-1]}),
            Code.LOCK_BATCH_MQ: self.lock,
            Code.UNLOCK_BATCH_MQ: self.unlock,
            Code.CONSUMER_SEND_MSG_BACK: self.send_back,
        }

    def refusal(self, command: Command) -> Command | None:
        if self.rights is None or _NEEDS.get(command.code, "") in self.rights:
            return None
        return command.answer(Answered.NO_PERMISSION, remark=f"{self.address} may not serve now")

    def permit(self, rights: str) -> None:
        """Change the permissions; held pulls that it may not answer any more are refused."""
        self.rights = rights
        waiting, self.held = self.held, []
        for link, command in waiting:
            refused = self.refusal(command)
            if refused is None:
                self.held.append((link, command))
            elif link in self.links:
                self.say(link, refused)

    def queue(self, command: Command) -> Queue:
        return self.group.queues.setdefault((command.fields["topic"], int(command.fields["queueId"])), Queue())

    def store(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        reconsume_times: int = 0,
        given: dict[str, str] | None = None,
        sys_flag: int = 0,
        **more: str,
    ) -> int:
        """Put a message into a queue; returns its offset. Held pulls of the queue are answered."""
        properties = {**(given or {}), **more}
        queue = self.group.queues.setdefault((topic, queue_id), Queue())
        offset = queue.end
        record = encode_record(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            log_offset=offset * 1000,
            body=body,
            properties=encode_properties(properties).encode(),
            flag=0,
            sys_flag=sys_flag,
            born_ms=WALL_MS,
            born_host=HOST,
            store_ms=WALL_MS,
            store_host=HOST,
            reconsume_times=reconsume_times,
        )
        queue.records.append((record, properties.get("TAGS", "")))
        for member in self.group.members.values():
            member.wake(topic, queue_id)
        return offset

    def wake(self, topic: str, queue_id: int) -> None:
        if self.health is Health.SILENT:
            return
        waiting, self.held = self.held, []
        for link, command in waiting:
            wanted = (command.fields["topic"], int(command.fields["queueId"])) == (topic, queue_id)
            answer = self.pull(command) if wanted else None
            if answer is not None and link in self.links:
                self.say(link, answer)
            elif not wanted:
                self.held.append((link, command))

    def send(self, command: Command) -> Command:
        fields = command.fields
        topic, queue_id = fields["b"], int(fields["e"])
        if fields["m"] == "true":
            bodies = [(part.body, decode_properties(part.properties.decode())) for part in decode_batch(command.body)]
        else:
            bodies = [(command.body, decode_properties(fields["i"]))]
        offsets = [self.store(topic, queue_id, body, 0, properties) for body, properties in bodies]
        ids = ",".join(f"ID{offset}" for offset in offsets)
        return command.answer(0, fields={"msgId": ids, "queueId": str(queue_id), "queueOffset": str(offsets[0])})

    def pull(self, command: Command) -> Command | None:
        queue, offset = self.queue(command), int(command.fields["queueOffset"])
        fields = {
            "suggestWhichBrokerId": str(self.broker_id if self.suggested is None else self.suggested),
            "minOffset": str(queue.start),
            "maxOffset": str(queue.end),
        }
        if not queue.start <= offset <= queue.end:
            fields["nextBeginOffset"] = str(min(max(offset, queue.start), queue.end))
            return command.answer(Answered.PULL_OFFSET_MOVED, fields=fields)
        if offset == queue.end:
            link = next((link for link, at in self.links.items() if at is self.world.decoder), 0)
            if self.is_holding:
                self.held.append((link, command))
                return None
            return command.answer(Answered.PULL_NOT_FOUND, fields={**fields, "nextBeginOffset": str(offset)})
        expression = command.fields["subscription"]
        hashes = {java_hash(tag.strip()) for tag in expression.split("||")}
        some = queue.records[offset - queue.start :][: int(command.fields["maxMsgNums"])]
        found = [record for record, tag in some if expression == "*" or java_hash(tag) in hashes]
        fields["nextBeginOffset"] = str(offset + len(some))
        code = Answered.SUCCESS if found else Answered.PULL_RETRY_IMMEDIATELY
        return command.answer(code, fields=fields, body=b"".join(found))

    def heartbeat(self, command: Command) -> Command:
        beat = loads(command.body)
        for consumer in beat["consumerDataSet"]:
            self.clients.setdefault(consumer["groupName"], set()).add(beat["clientID"])
            _, names = self.world.topics.setdefault(RETRY_PREFIX + consumer["groupName"], (1, []))
            if self.group.name not in names:
                names.append(self.group.name)
        return command.answer(0)

    def unregister(self, command: Command) -> Command:
        self.clients.get(command.fields.get("consumerGroup", ""), set()).discard(command.fields["clientID"])
        return command.answer(0)

    def list_clients(self, command: Command) -> Command:
        found = self.clients.get(command.fields["consumerGroup"])
        if not found:
            return command.answer(Answered.SYSTEM_ERROR)
        return command.answer(0, body=dumps({"consumerIdList": sorted(found)}))

    def query_offset(self, command: Command) -> Command:
        offset = self.offsets.get(self.key(command))
        if offset is None:
            return command.answer(Answered.QUERY_NOT_FOUND)
        return command.answer(0, fields={"offset": str(offset)})

    def commit(self, command: Command) -> Command:
        self.offsets[self.key(command)] = int(command.fields["commitOffset"])
        return command.answer(0)

    def key(self, command: Command) -> tuple[str, str, int]:
        return command.fields["consumerGroup"], command.fields["topic"], int(command.fields["queueId"])

    def lock(self, command: Command) -> Command:
        body = loads(command.body)
        granted = []
        for item in body["mqSet"]:
            key = (body["consumerGroup"], item["topic"], item["queueId"])
            if self.locks.setdefault(key, body["clientId"]) == body["clientId"]:
                granted.append(item)
        return command.answer(0, body=dumps({"lockOKMQSet": granted}))

    def unlock(self, command: Command) -> Command:
        body = loads(command.body)
        for item in body["mqSet"]:
            self.locks.pop((body["consumerGroup"], item["topic"], item["queueId"]), None)
        return command.answer(0)

    def send_back(self, command: Command) -> Command:
        self.sent_back.append(command)
        return command.answer(0)


class NameServer(Server):
    """Returns routes of the world's topics; with `drops`, a broker that refuses connections is not listed."""

    def __init__(self, world: "World", address: str) -> None:
        super().__init__(world, address)
        self.drops = False
        self.handlers = {Code.GET_ROUTEINFO_BY_TOPIC: self.route}

    def route(self, command: Command) -> Command:
        topic = command.fields["topic"]
        if topic not in self.world.topics:
            return command.answer(Answered.TOPIC_NOT_EXIST)
        queues, names = self.world.topics[topic]
        brokers = []
        for name in names:
            members = self.world.groups[name].members
            listed = {str(i): b.address for i, b in members.items() if not (self.drops and b.health is Health.REFUSING)}
            more = self.world.groups[name].route_fields
            brokers.append({"brokerAddrs": listed, "brokerName": name, "cluster": "c", **more})
        datas = [
            {
                "brokerName": name,
                "perm": self.world.groups[name].perm,
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "topicSysFlag": 0,
            }
            for name in names
        ]
        return command.answer(0, body=dumps({"brokerDatas": brokers, "queueDatas": datas}))


class World:
    """One client node among servers."""

    def __init__(self, *, client_id: str = "client-1", seed: int = 1, name_servers: int = 1, **settings: int) -> None:
        self.now = Now(1_000, WALL_MS)
        self.servers: dict[str, Server] = {}
        self.groups: dict[str, Group] = {}
        self.topics: dict[str, tuple[int, list[str]]] = {}
        self.received: list[tuple[int, bytes]] = []
        self.events: list[Event] = []
        self.decoder: FrameDecoder | None = None
        self.trace: list[tuple[str, Command]] = []
        """All requests that any server got, in order."""
        addresses = tuple(f"127.0.0.1:{9876 + n}" for n in range(name_servers))
        self.name_servers = [NameServer(self, address) for address in addresses]
        self.servers.update({server.address: server for server in self.name_servers})
        config = ClientConfig(name_servers=addresses, client_id=client_id, **settings)  # type: ignore[arg-type]
        self.node = ClientNode(config, Random(seed), self.now)

    @property
    def name_server(self) -> NameServer:
        return self.name_servers[0]

    def broker(self, name: str, broker_id: int = 0) -> Broker:
        """Add a member to a broker group."""
        group = self.groups.setdefault(name, Group(name))
        broker = group.members[broker_id] = Broker(self, group, broker_id)
        self.servers[broker.address] = broker
        return broker

    def topic(self, topic: str, queues: int = 1, *names: str) -> None:
        """Create a topic on some broker groups, on all if none is named."""
        self.topics[topic] = (queues, list(names or self.groups))

    def turn(self) -> bool:
        """Run one turn of the node; returns whether anything happened."""
        received, self.received = self.received, []
        events, self.events = self.events, []
        turn = self.node.turn(received, events, self.now)
        self._perform(turn)
        return bool(received or events or turn.sends or turn.closes or turn.connects)

    def _perform(self, turn: Turn) -> None:
        for link, buffers in turn.sends.items():
            for server in self.servers.values():
                if link in server.links:
                    self.decoder = server.links[link]
                    server.receive(link, b"".join(bytes(buffer) for buffer in buffers))
        for link, _reason in turn.closes:
            for server in self.servers.values():
                server.links.pop(link, None)
            self.events.append(Closed(link, "closed here"))
        for connect in turn.connects:
            target = self.servers.get(connect.address)
            if target is None or target.health is Health.REFUSING:
                self.events.append(Closed(connect.link, "connection refused"))
            else:
                target.links[connect.link] = FrameDecoder()
                self.events.append(Opened(connect.link, LinkKind.PEER, connect.address))

    def settle(self) -> None:
        """Run turns until nothing more happens at the current time."""
        for _ in range(1_000):
            due = self.node.deadline_ms()
            if not self.turn() and (due is None or due > self.now.mono_ms):
                return
        raise AssertionError("the client never comes to rest")

    def run(self, ms: int, step_ms: int = STEP_MS) -> None:
        """Let time pass. `step_ms`: the clock moves by at most this; longer steps make a long time shorter."""
        end = self.now.mono_ms + ms
        self.settle()
        while self.now.mono_ms < end:
            due = self.node.deadline_ms()
            step = min(end - self.now.mono_ms, step_ms, max(1, (due or end) - self.now.mono_ms))
            self.now = Now(self.now.mono_ms + step, self.now.wall_ms + step)
            self.settle()

    def until(self, probe: Callable[[], object], within_ms: int = 10_000) -> int:
        """Let time pass until `probe` is true; returns how long it took, milliseconds."""
        start = self.now.mono_ms
        self.settle()
        while not probe():
            assert self.now.mono_ms - start < within_ms, f"not so after {within_ms} ms"
            self.run(1)
        return self.now.mono_ms - start
