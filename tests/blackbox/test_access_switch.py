"""Access control switched on in a cluster under load, with the commands of docs/reference/access.md.

    clients without keys ─► users are created ─► clients have keys ─► brokers and proxies restarted ─► others refused

Clients on both protocols send and receive all the time.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import pytest
from google.protobuf.message import Message as Protobuf

from chaos.grpc_clients import GROUP as GRPC_GROUP
from chaos.grpc_clients import GrpcReceiver, GrpcSender
from chaos.grpc_connection import ProxyClient
from chaos.history import History
from chaos.pops import PopHistory
from tandemq import Admin, Message
from tandemq.client.blocking import BlockingProducer
from tandemq.client.credentials import read_credentials
from tandemq.coordination.registry.records import Mode
from tandemq.errors import RemoteError
from tandemq.model.access import Credentials
from tandemq.model.attributes import MESSAGE_TYPE, MIXED
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.run.children import Child, synced_slaves
from tandemq.run.groups import configure
from tandemq.run.ports import FAST_PORT_DISTANCE, LOOPBACK, ReservedPorts
from tandemq.run.secret import make_secret_file
from tests.blackbox.programs import QUICK, Caller, wait_until
from tests.blackbox.traffic import Traffic
from tests.pages import Page
from tests.request_fields import pull_fields

pytestmark = pytest.mark.timeout(600)
PAGE = Page("docs/reference/access.md")
GROUP = "broker-a"
TOPIC, CONSUMERS, QUEUES = "Orders", "billing", 4
SHELL_S = 300
SYSTEMCTL = """#!/bin/sh
test "$1" = restart && echo "$2" > {directory}/wanted && read -r name < {directory}/done && test "$name" = "$2"
"""
R = TypeVar("R", bound=Protobuf)


class Services:
    """A name server, a master and its slave, and two proxies, whose settings are in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self.children: dict[str, Child] = {}
        self.restarted: list[str] = []
        self.name_server = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        ports = stack.enter_context(closing(ReservedPorts()))
        secret = self.directory / "secret"
        make_secret_file(secret)
        self.name_server = f"{LOOPBACK}:{ports.reserve()}"
        self._write(
            "namesrv",
            listenPort=self.name_server.partition(":")[2],
            kvConfigPath=self.directory / "names",
            registryEnable="true",
            haSecretFile=secret,
        )
        self._begin(stack, "namesrv", "namesrv")
        registry = f"namesrv://{self.name_server}"
        configure(registry, [GROUP], Mode.ELECT, 2, secret_file=str(secret))
        known = {"namesrvAddr": self.name_server, "haSecretFile": secret}
        for number in range(2):
            self._write(
                f"{GROUP}-{number}",
                **QUICK
                | known
                | {
                    "brokerName": GROUP,
                    "brokerId": number,
                    "registryAddr": registry,
                    "listenPort": ports.reserve(-FAST_PORT_DISTANCE),
                    "haListenPort": ports.reserve(),
                    "storePathRootDir": self.directory / f"store-{number}",
                    "enableMixedMessageType": "true",
                    "recallMessageEnable": "true",
                },
            )
            self._begin(stack, f"{GROUP}-{number}", "broker")
            self._write(f"proxy-{number}", **known | {"grpcServerPort": ports.reserve()})
            self._begin(stack, f"proxy-{number}", "proxy")
        for fifo in ("wanted", "done"):
            os.mkfifo(self.directory / fifo)
        tool = self.directory / "bin" / "systemctl"
        tool.parent.mkdir()
        tool.write_text(SYSTEMCTL.format(directory=self.directory), encoding="utf-8")
        tool.chmod(0o755)
        (tool.parent / "tandemq").write_text(f'#!/bin/sh\nexec {sys.executable} -m tandemq "$@"\n', encoding="utf-8")
        (tool.parent / "tandemq").chmod(0o755)
        threading.Thread(target=self._restart, daemon=True).start()
        wait_until(lambda: synced_slaves(self.children["broker-a-0"].address) == 1, "the slave is in sync")

    def _write(self, service: str, **settings: object) -> None:
        lines = [f"{key}={value}\n" for key, value in {"bindAddress": LOOPBACK, **settings}.items()]
        (self.directory / f"{service}.conf").write_text("".join(lines), encoding="utf-8")

    def _begin(self, stack: ExitStack, service: str, verb: str) -> None:
        child = Child(service, self.directory, lambda: [verb, "-c", str(self.directory / f"{service}.conf")])
        self.children[service] = child
        stack.callback(child.stop)
        child.start()

    def _restart(self) -> None:
        """Restart what `systemctl` asks for."""
        while True:
            service = (self.directory / "wanted").read_text(encoding="utf-8").strip()
            child = self.children[service]
            assert child.stop()
            child.start()
            self.restarted.append(service)
            (self.directory / "done").write_text(f"{service}\n", encoding="utf-8")

    @property
    def admin(self) -> dict[str, str]:
        """The environment of commands after that of the page."""
        return {"TANDEMQ_CREDENTIALS": str(self.directory / "admin.yml")}

    def run(self, text: str, **environment: str) -> None:
        """Run lines of a shell in the directory of the files."""
        found = {
            "PATH": f"{self.directory / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": ":".join(str(Path(entry).absolute()) for entry in sys.path),
            "TANDEMQ_NAMESRV": self.name_server,
        }
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=self.directory,
            env=os.environ | found | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SHELL_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"


class Calls:
    """Calls of a client that is restarted with the key of a user."""

    def __init__(self, proxies: Sequence[str], name: str, settings: pb.Settings) -> None:
        self._proxies, self._name, self._settings = proxies, name, settings
        self._client = self._make(None)
        self._next: ProxyClient | None = None

    def _make(self, user: Credentials | None) -> ProxyClient:
        return ProxyClient(self._proxies, self._name, self._settings, user)

    def sign(self, user: Credentials) -> None:
        """Sign from the next call on."""
        self._next = self._make(user)

    def call(self, method: str, request: Protobuf, response: type[R], timeout_s: float) -> R:
        """See `ProxyClient`."""
        return self._newest().call(method, request, response, timeout_s)

    def stream(self, method: str, request: Protobuf, timeout_s: float) -> list[bytes]:
        """See `ProxyClient`."""
        return self._newest().stream(method, request, timeout_s)

    def _newest(self) -> ProxyClient:
        if self._next is not None:
            self._client.close()
            self._client, self._next = self._next, None
        return self._client

    def close(self) -> None:
        self._newest().close()


class GrpcTraffic:
    """A producer and a simple consumer of the gRPC protocol that go on and on, and the outcomes of both."""

    def __init__(self, services: Services) -> None:
        proxies = [services.children[name].address for name in ("proxy-0", "proxy-1")]
        topic, group = pb.Resource(name=TOPIC), pb.Resource(name=GRPC_GROUP)
        publishing = pb.Publishing(topics=[topic])
        subscription = pb.Subscription(group=group, subscriptions=[pb.SubscriptionEntry(topic=topic)])
        self.producer = Calls(proxies, "producer", pb.Settings(client_type=pb.PRODUCER, publishing=publishing))
        consumer = pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription)
        self.consumer = Calls(proxies, "consumer", consumer)
        self.history, self.popped = History(), PopHistory(elects=True, group=GRPC_GROUP)
        self.sender = GrpcSender(self.producer, TOPIC, QUEUES, self.history)
        self._receiver = GrpcReceiver(self.consumer, TOPIC, GROUP, self.popped)
        self._ends = (threading.Event(), threading.Event())
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]

    def _send(self) -> None:
        while not self._ends[0].wait(0.005):
            self.sender.send_next()

    def _receive(self) -> None:
        while not self._ends[1].is_set():
            self._receiver.receive()

    def wait_for_more(self, count: int = 30) -> None:
        """Until so many more messages were sent, and as many acknowledged."""
        sent, received = self.sender.sent, len(self.popped.bodies)
        wait_until(lambda: self.sender.sent >= sent + count, f"{count} more are sent: {self.history.errors}")
        wait_until(lambda: len(self.popped.bodies) >= received + count, f"{count} more are acknowledged")

    def stop_sending(self) -> None:
        self._ends[0].set()
        self._threads[0].join()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_sending()
        self._ends[1].set()
        self._threads[1].join()
        self.producer.close()
        self.consumer.close()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with Services(tmp_path) as services:
        asyncio.run(_create_topic(services.name_server))
        yield services


async def _create_topic(name_server: str) -> None:
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES, broker_name=GROUP, attributes={MESSAGE_TYPE: MIXED})


def test_access_control_is_switched_on_under_load_without_a_failed_send(services: Services) -> None:
    users, switch = (PAGE.blocks(heading)[0] for heading in ("Users", "A running cluster"))
    name_server = services.name_server
    with ExitStack() as running:
        grpc = running.enter_context(GrpcTraffic(services))
        first = Traffic(name_server, topic=TOPIC, group=CONSUMERS, prefix=b"first ")
        with first:
            first.wait_for_more()
            grpc.wait_for_more()
            services.run(PAGE.replaced(users, {"127.0.0.1:9876": name_server}))
            services.run(f"tandemq acl allow billing Group:{GRPC_GROUP} --action Sub", **services.admin)
            shop, billing = (read_credentials(str(services.directory / f"{name}.yml")) for name in ("shop", "billing"))
            second = Traffic(name_server, topic=TOPIC, group=CONSUMERS, prefix=b"second ", users=(shop, billing))
            running.enter_context(second)
            second.wait_for_more()
        grpc.producer.sign(shop)
        grpc.consumer.sign(billing)
        services.run(switch, **services.admin)
        assert services.restarted == ["broker-a-1", "broker-a-0", "proxy-0", "proxy-1"]
        second.wait_for_more()
        grpc.wait_for_more()
        assert_others_are_refused(services)
        grpc.stop_sending()
        second.end_producing()
        stored = first.stored | second.stored | {body.encode() for body in grpc.history.due}
        wait_until(lambda: stored <= first.delivered.keys() | second.delivered.keys(), "all were delivered")
        wait_until(lambda: not grpc.popped.missing(body.decode() for body in stored), "all were acknowledged by gRPC")
    assert first.failed == second.failed == []
    assert grpc.sender.failed == 0, grpc.history.errors
    assert grpc.history.violations == grpc.popped.check(body.decode() for body in stored) == []
    # A message that one consumer has, and has not committed when the other takes its queue, goes to both.
    assert first.repeated_since(0.0) == second.repeated_since(0.0) == []


def assert_others_are_refused(services: Services) -> None:
    """Assert that no client without a key can send or receive, on either protocol."""
    with (
        BlockingProducer(services.name_server, group="unsigned-group") as unsigned,
        pytest.raises(RemoteError, match="authentication failed"),
    ):
        unsigned.send(Message(TOPIC, b"unsigned"))
    for number in range(2):
        with Caller(int(services.children[f"{GROUP}-{number}"].address.rpartition(":")[2])) as caller:
            pulled = caller.ask(RequestCode.PULL_MESSAGE, pull_fields(TOPIC, consumerGroup=CONSUMERS))
            assert pulled.code == ResponseCode.NO_PERMISSION, pulled.remark
    topic, group = pb.Resource(name=TOPIC), pb.Resource(name=GRPC_GROUP)
    message = pb.Message(topic=topic, system_properties=pb.SystemProperties(message_id="1"), body=b"unsigned")
    wanted = pb.ReceiveMessageRequest(group=group, message_queue=pb.MessageQueue(topic=topic))
    wanted.invisible_duration.FromSeconds(10)
    for number in range(2):
        client = ProxyClient([services.children[f"proxy-{number}"].address], "unsigned", pb.Settings())
        sent = client.call("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse, 5)
        received = pb.ReceiveMessageResponse.FromString(client.stream("ReceiveMessage", wanted, 5)[0])
        assert sent.status.code == received.status.code == pb.UNAUTHORIZED
        client.close()
