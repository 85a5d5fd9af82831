"""Load of gRPC clients on a proxy: sends, and receives with acknowledgements. Run in a process of its own.

    python -m bench.grpc_load send 127.0.0.1:8081 --topic T --connections 16 --in-flight 4 --seconds 5

Each connection stands for a client: it keeps so many calls in flight. It prints one line of JSON: messages, seconds and
latencies of the calls, milliseconds. Bodies, properties and keys vary.
"""

import argparse
import json
import selectors
import socket
import time
from collections.abc import Callable
from random import Random

from lab.grpc_client import ClientCall, GrpcClient
from tandemq.proxy.protocol import messaging_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
SIZES = (40, 200, 700, 1_000, 3_000)
BATCH = 32
AUTHORIZATION = "MQv2-HMAC-SHA1 Credential=bench, SignedHeaders=x-mq-date-time, Signature={:040X}"


class _Connection:
    """One client."""

    def __init__(self, address: str, name: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.grpc = GrpcClient()
        self.metadata = {
            "x-mq-client-id": name,
            "x-mq-language": "PYTHON",
            "x-mq-protocol": "v2",
            "x-mq-client-version": "5.1.2",
            "x-mq-date-time": "20261128T000000Z",
            "x-mq-namespace": "",
        }
        self._unsent = b""
        self._calls = 0

    def call(self, method: str, request: bytes, timeout_ms: int = 10_000) -> ClientCall:
        """Begin a call; each has an id and a signature of its own, as with official clients."""
        self._calls += 1
        self.metadata["x-mq-request-id"] = f"{self._calls:036x}"
        self.metadata["authorization"] = AUTHORIZATION.format(self._calls % 1000)
        return self.grpc.start(SERVICE + method, request, metadata=self.metadata, timeout_ms=timeout_ms)

    def flush(self) -> None:
        """Send what is to be sent."""
        data = self._unsent + self.grpc.take_output()
        if data:
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            self._unsent = data[sent:]


class _Load:
    """All connections, and what they measured."""

    def __init__(self, address: str, connections: int) -> None:
        self.random = Random(7)
        self.connections = [
            _Connection(address, f"bench-{number:04d}-{time.time_ns():x}") for number in range(connections)
        ]
        self._selector = selectors.DefaultSelector()
        for connection in self.connections:
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        self.messages = 0
        self.latencies: list[float] = []
        self.failures: dict[str, int] = {}

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Exchange bytes until a time, or until `done`."""
        while time.perf_counter() < until and not done():
            for connection in self.connections:
                connection.flush()
            for key, _ in self._selector.select(0.05):
                data = key.data.sock.recv(1 << 18)
                if not data:
                    raise ConnectionError("the proxy has closed a connection")
                key.data.grpc.receive(data)

    def introduce(self, settings: pb.Settings) -> None:
        """Send the settings of all clients, and wait for the answers."""
        streams = []
        for connection in self.connections:
            command = pb.TelemetryCommand(settings=settings).SerializeToString()
            streams.append(
                connection.grpc.start(SERVICE + "Telemetry", command, metadata=connection.metadata, is_open=True)
            )
        self.run(time.perf_counter() + 10, lambda: all(stream.messages for stream in streams))

    def failed(self, what: str) -> None:
        """Count a failure."""
        self.failures[what] = self.failures.get(what, 0) + 1


def _message(load: _Load, topic: str, number: int, kind: str) -> pb.Message:
    system = pb.SystemProperties(
        message_id=f"{number:020d}{load.random.getrandbits(48):012x}",
        born_host="bench",
        body_encoding=pb.Encoding.IDENTITY,
    )
    if number % 2:
        system.tag = f"tag{number % 5}"
    if number % 3:
        system.keys.append(f"key-{number}")
    if kind == "fifo":
        system.message_group = f"group-{number % 97}"
    own = {f"property{at}": f"value {number}" for at in range(number % 4)}
    body = load.random.randbytes(load.random.choice(SIZES))
    return pb.Message(topic=pb.Resource(name=topic), system_properties=system, user_properties=own, body=body)


def send(load: _Load, topic: str, in_flight: int, kind: str, seconds: float, count: int) -> None:
    """Send messages, so many at a time on each connection."""
    began = 0

    def begin(connection: _Connection) -> None:
        nonlocal began
        began += 1
        request = pb.SendMessageRequest(messages=[_message(load, topic, began, kind)]).SerializeToString()
        started = time.perf_counter()
        call = connection.call("SendMessage", request)

        def ended() -> None:
            response = pb.SendMessageResponse.FromString(call.messages[0]) if call.messages else None
            if response is None or response.status.code != pb.Code.OK:
                load.failed(str(response.status if response else call.text))
            else:
                load.messages += 1
                load.latencies.append((time.perf_counter() - started) * 1000)
            if not count or began < count:
                begin(connection)

        call.on_end = ended

    publishing = pb.Publishing(topics=[pb.Resource(name=topic)])
    load.introduce(pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing))
    for connection in load.connections:
        for _ in range(in_flight):
            begin(connection)
    load.run(time.perf_counter() + seconds, lambda: bool(count) and load.messages >= count)


def receive(load: _Load, topic: str, group: str, in_flight: int, seconds: float) -> None:
    """Receive messages and acknowledge each by a call of its own, as official clients do."""
    broker = ""

    def found(call: ClientCall) -> None:
        nonlocal broker
        broker = pb.QueryRouteResponse.FromString(call.messages[0]).message_queues[0].broker.name

    first = load.connections[0].call(
        "QueryRoute", pb.QueryRouteRequest(topic=pb.Resource(name=topic)).SerializeToString()
    )
    first.on_end = lambda: found(first)
    load.run(time.perf_counter() + 10, lambda: bool(broker))
    entry = pb.SubscriptionEntry(
        topic=pb.Resource(name=topic), expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
    )
    subscription = pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry])
    load.introduce(pb.Settings(client_type=pb.ClientType.PUSH_CONSUMER, subscription=subscription))
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name=broker)),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        batch_size=BATCH,
        auto_renew=True,
    )
    request.long_polling_timeout.FromSeconds(5)
    encoded = request.SerializeToString()

    def poll(connection: _Connection) -> None:
        call = connection.call("ReceiveMessage", encoded)
        call.on_message = lambda data: take(connection, data)
        call.on_end = lambda: poll(connection)

    def take(connection: _Connection, data: bytes) -> None:
        response = pb.ReceiveMessageResponse.FromString(data)
        if not response.HasField("message"):
            return
        system = response.message.system_properties
        acked_one = pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        ack = pb.AckMessageRequest(topic=pb.Resource(name=topic), group=pb.Resource(name=group), entries=[acked_one])
        started = time.perf_counter()
        call = connection.call("AckMessage", ack.SerializeToString())
        call.on_end = lambda: acked(call, started)

    def acked(call: ClientCall, started: float) -> None:
        response = pb.AckMessageResponse.FromString(call.messages[0]) if call.messages else None
        if response is None or response.status.code != pb.Code.OK:
            load.failed(str(response.status if response else call.text))
        else:
            load.messages += 1
            load.latencies.append((time.perf_counter() - started) * 1000)

    for connection in load.connections:
        for _ in range(in_flight):
            poll(connection)
    load.run(time.perf_counter() + seconds)


def main() -> None:
    """Run one load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("send", "receive"))
    parser.add_argument("address")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="bench")
    parser.add_argument("--kind", default="normal", choices=("normal", "fifo"))
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--count", type=int, default=0, help="messages to send; 0: as many as fit")
    args = parser.parse_args()
    load = _Load(args.address, args.connections)
    started = time.perf_counter()
    if args.what == "send":
        send(load, args.topic, args.in_flight, args.kind, args.seconds, args.count)
    else:
        receive(load, args.topic, args.group, args.in_flight, args.seconds)
    latencies = sorted(load.latencies) or [0.0]
    figures = {
        "messages": load.messages,
        "seconds": time.perf_counter() - started,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[len(latencies) * 99 // 100],
        "failures": load.failures,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
