"""A name server, brokers, proxies and gRPC clients in one thread, on a clock that tests move.

    cluster = ProxyCluster()
    cluster.topic("T", kind="FIFO")                       # attribute message.type
    client = cluster.client("c-1")
    sent = client.send(message("T", b"body", message_group="g"))
    found = client.receive("G", "T")                      # Received: status, messages, delivery timestamp
    client.ack("G", "T", found.messages)

All nodes are real; the machines, the network and the clock are those of the simulation, with the same clocks
everywhere. Each method of a client returns when the response is there.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as Protobuf

from lab.grpc_client import ClientCall, GrpcClient
from lab.samples import tiny, tiny_name_server
from lab.sim.world.disk import SimDisk
from lab.sim.world.network import Network, SimConnection
from lab.sim.world.process import Process, SimMachine
from lab.sim.world.world import MS, World
from tandemq.boundary import Closed, Connect, Event, LinkKind, Now, Opened, Turn
from tandemq.broker.kernel.context import Machine as MachineFacts
from tandemq.broker.node import Broker
from tandemq.client.core.calls import Ticket
from tandemq.client.core.operations import Steps, ask_any_code
from tandemq.client.core.pulled import decode_pulled
from tandemq.client.core.settings import ClientConfig
from tandemq.client.node import ClientNode
from tandemq.codec.remoting.fastjson import dumps
from tandemq.config.settings import BrokerConfig, ProxyConfig, parse_delay_levels
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage
from tandemq.nameserver.node import NameServer
from tandemq.proxy.node import ProxyNode
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.service import AUTHORIZATION, CLIENT_ID, DATE, NAME

NAME_SERVER = "10.0.9.1:9876"
WALL_MS = 1_790_000_000_000
SIGNED_DATE = "20261128T101112Z"
STEP_US = 5 * MS
WITHIN_MS = 30_000
"""How long a test waits for what it expects."""
R = TypeVar("R", bound=Protobuf)
T = TypeVar("T")


@dataclass(eq=False)
class Received:
    """What a ReceiveMessage call was answered, in order."""

    call: ClientCall
    kinds: list[str] = field(default_factory=list)
    status: pb.Status = field(default_factory=pb.Status)
    messages: list[pb.Message] = field(default_factory=list)

    def take(self, data: bytes) -> None:
        """Take one message of the stream."""
        response = pb.ReceiveMessageResponse.FromString(data)
        kind = response.WhichOneof("content")
        assert kind is not None
        self.kinds.append(kind)
        if kind == "status":
            self.status = response.status
        elif kind == "message":
            self.messages.append(response.message)

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of the messages."""
        return [message.body for message in self.messages]

    @property
    def code(self) -> str:
        """Name of the status code."""
        return code(self.status)


class Stream:
    """A telemetry stream: what the proxy has said on it."""

    def __init__(self, client: "Client", call: ClientCall) -> None:
        self._client = client
        self.call = call
        self.commands: list[pb.TelemetryCommand] = []
        call.on_message = lambda data: self.commands.append(pb.TelemetryCommand.FromString(data))

    def say(self, command: pb.TelemetryCommand) -> None:
        """Send a command."""
        self._client.grpc.send(self.call, command.SerializeToString())
        self._client.process.wake()

    def end(self) -> None:
        """Send nothing more."""
        self._client.grpc.send(self.call, is_end=True)
        self._client.process.wake()

    @property
    def settings(self) -> pb.Settings:
        """The newest settings that the proxy has sent."""
        return next(command.settings for command in reversed(self.commands) if command.HasField("settings"))

    @property
    def to_consume(self) -> list[pb.VerifyMessageCommand]:
        """Commands to consume a message."""
        return [each.verify_message_command for each in self.commands if each.HasField("verify_message_command")]

    @property
    def to_print(self) -> list[pb.PrintThreadStackTraceCommand]:
        """Commands to report the stacks of all threads."""
        name = "print_thread_stack_trace_command"
        return [getattr(each, name) for each in self.commands if each.HasField(name)]

    @property
    def checks(self) -> list[pb.RecoverOrphanedTransactionCommand]:
        """Checks of transactions."""
        name = "recover_orphaned_transaction_command"
        return [getattr(command, name) for command in self.commands if command.HasField(name)]


class GrpcNode:
    """The node of a client: one connection to a proxy; see `boundary.Node`."""

    def __init__(self, address: str, window: int) -> None:
        self.address = address
        self.grpc = GrpcClient(window=window)
        self.is_open = False
        self.is_lost = False
        self._has_begun = False

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], _now: Now) -> Turn:
        turn = Turn()
        if not self._has_begun:
            self._has_begun = True
            turn.connects.append(Connect(-1, LinkKind.GRPC, self.address))
        for event in events:
            if isinstance(event, Opened):
                self.is_open = True
        for _, data in received:
            self.grpc.receive(data)
        for event in events:
            if isinstance(event, Closed):
                self.is_open, self.is_lost = False, True
                self.grpc.lost()
        if self.is_open and (out := self.grpc.take_output()):
            turn.send(-1, out)
        return turn

    def deadline_ms(self) -> int | None:
        return None


class Client:
    """A gRPC client on a connection of its own."""

    def __init__(self, cluster: "ProxyCluster", client_id: str, proxy: int, window: int) -> None:
        self._cluster = cluster
        self.client_id = client_id
        self.user: Credentials | None = None
        """User that signs the calls."""
        self.node = GrpcNode(cluster.proxies[proxy].address, window)
        self.process = cluster.process(f"10.0.8.{cluster.next_client()}", client_id or "nobody")
        self.process.start(self.node)
        cluster.until(lambda: self.node.is_open)

    @property
    def grpc(self) -> GrpcClient:
        return self.node.grpc

    # Calls.

    def start(self, method: str, *requests: Protobuf, timeout_ms: int = 0, is_open: bool = False) -> ClientCall:
        """Begin a call of the messaging service, without waiting for its response."""
        return self.start_at(f"/{NAME}/{method}", *requests, timeout_ms=timeout_ms, is_open=is_open)

    def start_at(self, path: str, *requests: Protobuf, timeout_ms: int = 0, is_open: bool = False) -> ClientCall:
        """Begin a call of any method."""
        metadata = {CLIENT_ID: self.client_id} if self.client_id else {}
        if self.user is not None:
            metadata |= {DATE: SIGNED_DATE, AUTHORIZATION: authorization(self.user)}
        messages = [request.SerializeToString() for request in requests]
        call = self.grpc.start(path, *messages, metadata=metadata, timeout_ms=timeout_ms, is_open=is_open)
        self.process.wake()
        return call

    def call(self, method: str, request: Protobuf, response: type[R], *, timeout_ms: int = 0) -> R:
        """Call a method with one response."""
        call = self.start(method, request, timeout_ms=timeout_ms)
        return self.answer(call, response)

    def answer(self, call: ClientCall, response: type[R]) -> R:
        """Wait for the response of a call."""
        self._cluster.until(lambda: call.status is not None)
        assert call.status == 0, (call.status, call.text)
        assert len(call.messages) == 1
        return response.FromString(call.messages[0])

    def cancel(self, call: ClientCall) -> None:
        """Give up a call."""
        self.grpc.cancel(call)
        self.process.wake()

    def lose(self) -> None:
        """Have the connection reset."""
        self._cluster.network.cut(self.connection)

    @property
    def connection(self) -> SimConnection:
        """The connection to the proxy."""
        return next(c for c in self._cluster.network.connections if c.owners[0] is self.process)

    # Settings.

    def telemetry(self, settings: pb.Settings | None = None) -> Stream:
        """Open a stream, and send settings on it; wait until they come back."""
        stream = Stream(self, self.start("Telemetry", is_open=True))
        if settings is not None:
            stream.say(pb.TelemetryCommand(settings=settings))
            self._cluster.until(lambda: stream.commands or stream.call.status is not None)
        return stream

    def produce(self, *topics: str) -> Stream:
        """Send the settings of a producer."""
        publishing = pb.Publishing(topics=[resource(topic) for topic in topics])
        return self.telemetry(pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing))

    def consume(self, group: str, *topics: str, kind: pb.ClientType = pb.ClientType.PUSH_CONSUMER) -> Stream:
        """Send the settings of a consumer."""
        entries = [pb.SubscriptionEntry(topic=resource(topic)) for topic in topics]
        subscription = pb.Subscription(group=resource(group), subscriptions=entries)
        return self.telemetry(pb.Settings(client_type=kind, subscription=subscription))

    # Messages.

    def send(self, *messages: pb.Message, timeout_ms: int = 0) -> pb.SendMessageResponse:
        """Send messages in one request."""
        request = pb.SendMessageRequest(messages=messages)
        return self.call("SendMessage", request, pb.SendMessageResponse, timeout_ms=timeout_ms)

    def receiving(self, group: str, topic: str, *, timeout_ms: int = 0, **more: Any) -> Received:
        """Begin to receive; `more`: as `receive_request`."""
        found = Received(self.start("ReceiveMessage", receive_request(group, topic, **more), timeout_ms=timeout_ms))
        found.call.on_message = found.take
        return found

    def receive(self, group: str, topic: str, *, timeout_ms: int = 0, **more: Any) -> Received:
        """Receive; by default without waiting for messages."""
        more.setdefault("poll_ms", 0)
        found = self.receiving(group, topic, timeout_ms=timeout_ms, **more)
        self._cluster.until(lambda: found.call.status is not None)
        assert found.call.status == 0, (found.call.status, found.call.text)
        return found

    def ack(self, group: str, topic: str, messages: Sequence[pb.Message]) -> pb.AckMessageResponse:
        """Acknowledge messages."""
        return self.call("AckMessage", ack_request(group, topic, messages), pb.AckMessageResponse)

    def change(
        self, group: str, topic: str, message: pb.Message, invisible_ms: int
    ) -> pb.ChangeInvisibleDurationResponse:
        """Change when a message comes back."""
        request = pb.ChangeInvisibleDurationRequest(
            group=resource(group),
            topic=resource(topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            invisible_duration=duration(invisible_ms),
        )
        return self.call("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)

    def end_transaction(
        self,
        topic: str,
        transaction_id: str,
        resolution: pb.TransactionResolution,
        source: pb.TransactionSource = pb.TransactionSource.SOURCE_CLIENT,
    ) -> pb.EndTransactionResponse:
        """End a transaction."""
        request = pb.EndTransactionRequest(
            topic=resource(topic),
            message_id="id",
            transaction_id=transaction_id,
            resolution=resolution,
            source=source,
        )
        return self.call("EndTransaction", request, pb.EndTransactionResponse)


def authorization(user: Credentials, date: str = SIGNED_DATE) -> str:
    """Return the metadata with which official clients sign."""
    digits = hmac.digest(user.secret_key.encode(), date.encode(), "sha1").hex().upper()
    return f"MQv2-HMAC-SHA1 Credential={user.access_key}/region, SignedHeaders=x-mq-date-time, Signature={digits}"


class BrokerHost:
    """A broker's machine, and the process on it while it runs."""

    def __init__(self, cluster: "ProxyCluster", config: BrokerConfig) -> None:
        self._cluster = cluster
        self.config = config
        self.machine = cluster.machine(config.advertised_ip, config.broker_name)
        self.address = f"{config.advertised_ip}:{config.listen_port}"
        self.process: Process | None = None
        self.node: Broker | None = None
        self._starts = 0

    def start(self) -> None:
        """Start the broker on what its disk holds."""
        self._starts += 1
        cluster, config = self._cluster, self.config
        process = self.process = cluster.process(config.advertised_ip, config.broker_name, self.machine)
        self.machine.disk.wall_ms = self.machine.now().wall_ms
        self.node = Broker(
            config,
            self.machine.disk,
            process,
            Random(f"{config.broker_name}-{self._starts}"),
            MachineFacts("boot-1", 1 << 30),
            self.machine.now(),
            parse_delay_levels(config.delay_levels),
        )
        cluster.network.listen(self.address, process, LinkKind.REMOTING)
        self.node.listening(self.address, f"{config.advertised_ip}:{config.ha_port}", self.machine.now())
        process.start(self.node)

    def kill(self) -> None:
        """Kill the process: its written bytes stay, its connections are reset."""
        assert self.process is not None, "it runs"
        self.process.kill()
        self._cluster.network.forget(self.process, notify=True)
        self.machine.disk.kill()
        self.process = self.node = None

    def restart_after(self, ms: int) -> None:
        """Kill the broker now, and start it again later."""
        self.kill()
        self._cluster.world.after(ms * MS, self.start)


class ProxyHost:
    """A proxy's machine, and the process on it while it runs."""

    def __init__(self, cluster: "ProxyCluster", number: int, config: ProxyConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._number = number
        self.ip = f"10.0.7.{number + 1}"
        self.machine = cluster.machine(self.ip, f"proxy-{number}")
        self.address = f"{self.ip}:8081"
        self.process: Process
        self.node: ProxyNode
        self._starts = 0

    def start(self) -> None:
        """Start the proxy."""
        self._starts += 1
        cluster = self._cluster
        self.process = cluster.process(self.ip, f"proxy-{self._number}", self.machine)
        name = f"{self.ip}@proxy-{self._starts}"
        client = ClientConfig(name_servers=(NAME_SERVER,), client_id=name, ip=self.ip, credentials=cluster.credentials)
        self.node = ProxyNode(self._config, client, Random(name), self.machine.now(), self.process)
        cluster.network.listen(self.address, self.process, LinkKind.GRPC)
        self.process.start(self.node)

    def kill(self) -> None:
        """Kill the process: its connections are reset."""
        self.process.kill()
        self._cluster.network.forget(self.process, notify=True)

    def leave(self) -> None:
        """Have the proxy send its clients away."""
        self.node.leave(self.machine.now())
        self.process.wake()


class ProxyCluster:
    """A name server, broker groups of one master each, and proxies."""

    def __init__(
        self,
        *,
        groups: int = 1,
        proxies: int = 1,
        seed: int = 1,
        proxy: dict[str, Any] | None = None,
        credentials: Credentials | None = None,
        **settings: Any,
    ) -> None:
        """Start everything.

        Args:
            proxy: settings of the proxies.
            credentials: of the super user as which the proxies and the administrator sign.
            settings: those of the brokers.
        """
        self.credentials = credentials
        self.world = World(seed)
        self.network = Network(self.world)
        self.network.split_rate = 0.0
        self.network.jitter_us = 0
        self._clients = 0
        self._start_name_server()
        base = tiny(
            listen_port=10911,
            ha_port=10912,
            name_servers=(NAME_SERVER,),
            auto_create_topic=False,
            recall_enable=True,
            property_filter_enable=True,
            message_bytes_max=4 << 20,
            frame_bytes_max=16 << 20,
            segment_bytes=16 << 20,
            queue_file_bytes=20 * 1000,
        )
        base = replace(base, **settings)
        names = [f"broker-{chr(ord('a') + number)}" for number in range(groups)]
        self.brokers = [
            BrokerHost(
                self,
                replace(base, broker_name=name, advertised_ip=f"10.0.{n}.1", ha_advertised_ip=f"10.0.{n}.1"),
            )
            for n, name in enumerate(names, start=1)
        ]
        for broker in self.brokers:
            broker.start()
        config = ProxyConfig(name_servers=(NAME_SERVER,), listen_port=8081, **(proxy or {}))
        self.proxies = [ProxyHost(self, number, config) for number in range(proxies)]
        for host in self.proxies:
            host.start()
        machine = self.machine("10.0.6.1", "admin")
        self._admin = ClientNode(
            ClientConfig(name_servers=(NAME_SERVER,), client_id="admin", credentials=credentials),
            Random(seed),
            machine.now(),
        )
        self._admin_process = self.process("10.0.6.1", "admin", machine)
        self._admin_process.start(self._admin)
        self.run(200)

    def _start_name_server(self) -> None:
        ip = NAME_SERVER.partition(":")[0]
        machine = self.machine(ip, "namesrv")
        process = self.process(ip, "namesrv", machine)
        self.network.listen(NAME_SERVER, process, LinkKind.REMOTING)
        process.start(NameServer(tiny_name_server(listen_port=9876), machine.disk, process))

    # Machines, for the parts.

    def machine(self, ip: str, name: str) -> SimMachine:
        """Return a machine with the common clocks."""
        machine = SimMachine(self.world, name, ip, SimDisk(Random(name)))
        machine.mono_ms, machine.wall_ms = 1_000, WALL_MS
        return machine

    def process(self, ip: str, name: str, machine: SimMachine | None = None) -> Process:
        """Return a process that runs no node yet."""
        process = Process(self.world, self.network, machine or self.machine(ip, name), name)
        process.sync_delay_us = (800, 1_000)
        return process

    def next_client(self) -> int:
        """Return the number of the next client."""
        self._clients += 1
        return self._clients

    @property
    def broker(self) -> BrokerHost:
        """The first broker."""
        return self.brokers[0]

    @property
    def proxy(self) -> ProxyHost:
        """The first proxy."""
        return self.proxies[0]

    @property
    def wall_ms(self) -> int:
        """The time, ms since 1970."""
        return WALL_MS + self.world.now_us // MS

    # Time.

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now_us + ms * MS)

    def until(self, probe: Callable[[], object], within_ms: int = WITHIN_MS) -> int:
        """Let time pass until `probe` is true; return how long it took, milliseconds."""
        start_us = self.world.now_us
        while not probe():
            assert self.world.now_us - start_us < within_ms * MS, f"not so after {within_ms} ms"
            self.world.run_until(self.world.now_us + STEP_US)
        return (self.world.now_us - start_us) // MS

    # Administration.

    def operate(self, steps: Steps[T]) -> T:
        """Run an operation of the administrator's client and return its result."""
        ticket = self._admin.runner.start(steps, self._admin_process.machine.now())
        self._admin_process.wake()
        self.until(lambda: ticket.done)
        return ticket.result()

    def ask(self, command: Command, broker: int = 0) -> Command:
        """Return a broker's response to a request."""
        return self.operate(ask_any_code(self.brokers[broker].address, command))

    def asking(self, command: Command, broker: int = 0) -> Ticket[Command]:
        """Send a request to a broker without waiting for the response."""
        steps = ask_any_code(self.brokers[broker].address, command, WITHIN_MS)
        ticket = self._admin.runner.start(steps, self._admin_process.machine.now())
        self._admin_process.wake()
        return ticket

    def topic(self, name: str, kind: str = "", queues: int = 4, perm: int = 6, brokers: Sequence[int] = ()) -> None:
        """Create or change a topic, at all brokers by default; `kind`: its attribute message.type."""
        for broker in brokers or range(len(self.brokers)):
            fields = {
                "topic": name,
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": str(perm),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
                "attributes": f"+message.type={kind}" if kind else "",
                "defaultTopic": "TBW102",
            }
            answer = self.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields), broker)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    def delete_topic(self, name: str) -> None:
        """Delete a topic, at the first broker and the name server."""
        for address in (self.broker.address, NAME_SERVER):
            code = RequestCode.DELETE_TOPIC_IN_NAMESRV if address == NAME_SERVER else RequestCode.DELETE_TOPIC_IN_BROKER
            answer = self.operate(ask_any_code(address, Command(code, fields={"topic": name})))
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    def group(self, name: str, *, is_ordered: bool = False, retries: int = 16, **more: Any) -> None:
        """Create or change a consumer group at all brokers; `more`: other properties of its configuration."""
        config = {"groupName": name, "consumeMessageOrderly": is_ordered, "retryMaxTimes": retries} | more
        for broker in range(len(self.brokers)):
            command = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps(config))
            assert self.ask(command, broker).code == ResponseCode.SUCCESS

    def stored(self, topic: str, broker: int = 0, queues: int = 4) -> list[StoredMessage]:
        """Return all messages of a topic at a broker, by queue and offset."""
        found: list[StoredMessage] = []
        for queue_id in range(queues):
            fields = {
                "consumerGroup": "reader",
                "topic": topic,
                "queueId": str(queue_id),
                "queueOffset": "0",
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            }
            answer = self.ask(Command(RequestCode.PULL_MESSAGE, fields=fields), broker)
            if answer.code == ResponseCode.SUCCESS:
                found += decode_pulled(answer.body).messages
        return found

    # Clients.

    def client(self, client_id: str = "c-1", *, proxy: int = 0, window: int = 1 << 30) -> Client:
        """Connect a client; `window`: bytes that the proxy may send before the client takes them."""
        return Client(self, client_id, proxy, window)


# Requests.


def resource(name: str) -> pb.Resource:
    """Return a topic or group by its name, "namespace%name" if it has one."""
    namespace, percent, rest = name.partition("%")
    return pb.Resource(resource_namespace=namespace, name=rest) if percent else pb.Resource(name=name)


def duration(ms: int) -> Duration:
    """Return a duration."""
    found = Duration()
    found.FromMilliseconds(ms)
    return found


_ids = iter(range(1, 1 << 62))


def message(topic: str, body: bytes = b"body", **system: Any) -> pb.Message:
    """Return a message; `system`: its system properties, and `user`: those of its own."""
    user = system.pop("user", {})
    delivery_ms = system.pop("delivery_ms", None)
    system.setdefault("message_id", f"ID{next(_ids)}")
    system.setdefault("message_type", pb.MessageType.NORMAL)
    properties = pb.SystemProperties(**system)
    if delivery_ms is not None:
        properties.delivery_timestamp.FromMilliseconds(delivery_ms)
    return pb.Message(topic=resource(topic), user_properties=user, system_properties=properties, body=body)


def receive_request(
    group: str,
    topic: str,
    *,
    broker: str = "broker-a",
    queue_id: int = -1,
    batch: int = 32,
    invisible_ms: int | None = 30_000,
    is_renewed: bool = False,
    poll_ms: int | None = None,
    expression: str = "*",
    kind: pb.FilterType = pb.FilterType.TAG,
    attempt_id: str | None = None,
) -> pb.ReceiveMessageRequest:
    """Return a request for messages."""
    return pb.ReceiveMessageRequest(
        group=resource(group),
        message_queue=pb.MessageQueue(topic=resource(topic), id=queue_id, broker=pb.Broker(name=broker)),
        filter_expression=pb.FilterExpression(type=kind, expression=expression),
        batch_size=batch,
        invisible_duration=None if invisible_ms is None or is_renewed else duration(invisible_ms),
        auto_renew=is_renewed,
        long_polling_timeout=None if poll_ms is None else duration(poll_ms),
        attempt_id=attempt_id,
    )


def ack_request(group: str, topic: str, messages: Sequence[pb.Message]) -> pb.AckMessageRequest:
    """Return the request that acknowledges messages."""
    return pb.AckMessageRequest(
        group=resource(group),
        topic=resource(topic),
        entries=[
            pb.AckMessageEntry(
                message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
            )
            for each in messages
        ],
    )


def code(status: pb.Status) -> str:
    """Return the name of a status code."""
    return pb.Code.Name(status.code)
