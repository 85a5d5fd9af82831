"""Proxies and brokers that are killed or restarted while unmodified gRPC clients send and receive.

No client is restarted, nothing that was sent is lost, and the times until receiving resumes are printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandemq.coordination.registry.records import Mode
from tests.interop.driver import Event, Running
from tests.interop.flights import now_ms
from tests.interop.grpc_clients import GrpcClient, GrpcProducer, Opened
from tests.interop.grpc_proxies import proxy
from tests.interop.grpc_stacks import QUICK_PROXY, Stack, stack
from tests.interop.java import wait_until
from tests.interop.outages import cluster
from tests.samples import slow

CLIENTS = ("java-5.2.0", slow("python"), slow("node"))
PROXIES = ("ours", slow("5.3.3"))
GROUP = "broker-a"
AHEAD = 20
"""Messages that are received before something is killed."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A producer that sends without a pause, and a push consumer."""

    sending: Running
    consumer: Opened

    def sent(self) -> list[Event]:
        """Return the successful sends."""
        return self.sending.events("sent")

    def refused(self) -> list[Event]:
        """Return the failed sends."""
        return self.sending.events("refused")

    def wait_sent(self, since_ms: int, count: int = AHEAD, within_s: float = 60) -> Event:
        """Wait for sends after a time; return the first one."""
        found = self.sending.wait_for(
            lambda event: event["event"] == "sent" and event["at_ms"] > since_ms, within_s, count
        )
        return found[0]

    def wait_received(self, since_ms: int, count: int = AHEAD, within_s: float = 60) -> Event:
        """Wait for messages that are received after a time; return the first one."""
        return self.consumer.running.wait_for(
            lambda event: event["event"] == "message" and event["at_ms"] > since_ms, within_s, count
        )[0]

    def wait_received_attempt(self, since_ms: int, within_s: float = 60) -> Event:
        """Wait for a message whose send ended after a time, with or without success; return the message.

        A master without a slave stores messages, but a Java proxy responds HA_NOT_AVAILABLE, which clients raise.
        """
        found = self.consumer.running.events

        def fresh() -> list[Event]:
            ended = {event["body"] for event in (*self.sent(), *self.refused()) if event["at_ms"] > since_ms}
            return [event for event in found("message") if event["at_ms"] > since_ms and event["body"] in ended]

        return wait_until(fresh, what="message sent after the fault", within_s=within_s)[0]

    def land(self, within_s: float = 120) -> None:
        """Stop sending and wait until everything that was sent has been received.

        A message that a killed proxy had is invisible for a minute.
        """
        self.sending.end()
        missing = {str(event["body"]) for event in self.sent()}
        received = {event["body"] for event in self.consumer.messages()}
        print(f"{len(missing)} sent, {len(self.refused())} refused, {len(missing - received)} not yet received")
        self.consumer.wait_bodies(missing, within_s)
        copies = len(self.consumer.messages()) - len({event["body"] for event in self.consumer.messages()})
        print(f"{copies} received more than once")


@contextmanager
def traffic(servers: Stack, language: str, endpoints: str, directory: Path) -> Iterator[Traffic]:
    """Send and receive; the first messages have been received."""
    topic, group = servers.topic(), servers.group()
    with GrpcClient(language, directory / "client", endpoints) as client:
        producer: GrpcProducer = client.producer(topics=topic)
        consumer = client.push(group=group, topic=topic)
        found = Traffic(producer.burst(topic=topic, prefix="x", every_ms=20), consumer)
        consumer.running.wait_for(lambda event: event["event"] == "message", within_s=60, count=AHEAD)
        yield found


@pytest.mark.parametrize(
    ("kind", "language"),
    [("ours", "java-5.2.0"), slow(("ours", "python")), slow(("ours", "node")), slow(("5.3.3", "java-5.2.0"))],
)
def test_clients_continue_after_proxy_was_killed(kind: str, language: str, tmp_path: Path) -> None:
    """With RocketMQ's proxy 5.3.3 the Python client does not come back within minutes, whatever the brokers."""
    with stack(kind, "ours", tmp_path) as servers, traffic(servers, language, servers.proxy.address, tmp_path) as found:
        servers.proxy.kill()
        servers.proxy.start()
        back_ms = now_ms()
        sent = found.wait_sent(back_ms)
        received = found.wait_received(back_ms)
        print(
            f"{language}, proxy {kind}: sent {sent['at_ms'] - back_ms} ms and received "
            f"{received['at_ms'] - back_ms} ms after the return of the proxy"
        )
        found.land()


@pytest.mark.parametrize("language", CLIENTS)
@pytest.mark.parametrize("kind", PROXIES)
def test_clients_continue_after_master_was_killed(kind: str, language: str, tmp_path: Path) -> None:
    """The broker group elects a new master; the proxy finds it."""
    with (
        cluster(Mode.ELECT, [GROUP], tmp_path, enablePropertyFilter=True) as brokers,
        proxy(kind, tmp_path / "proxy", brokers.namesrv.address, settings=QUICK_PROXY) as front,
    ):
        front.start()
        master, slave = brokers.pairs[0]
        with traffic(Stack(brokers.namesrv, master, front), language, front.address, tmp_path) as found:
            tables = slave.store / "config" / "topics.json"
            topic = str(found.consumer.messages()[0]["topic"])
            wait_until(lambda: tables.exists() and topic in tables.read_text(), what="topic at slave", within_s=30)
            killed_ms = now_ms()
            master.kill()
            received = found.wait_received_attempt(killed_ms)
            print(f"{language}, proxy {kind}: received {received['at_ms'] - killed_ms} ms after the end of the master")
            master.start()
            sent = found.wait_sent(now_ms())
            print(f"{language}, proxy {kind}: sent {sent['at_ms'] - killed_ms} ms after the end of the master")
            found.land()


@pytest.mark.parametrize("language", ["java-5.2.0", slow("python")])
@pytest.mark.parametrize("kind", PROXIES)
def test_rolling_restart_of_proxies_fails_no_send(kind: str, language: str, tmp_path: Path) -> None:
    """The Node.js client cannot be given two addresses: it resolves them as one name."""
    with ExitStack() as exits:
        servers = exits.enter_context(stack(kind, "ours", tmp_path))
        second = proxy(kind, tmp_path / "second", servers.namesrv.address, settings=QUICK_PROXY)
        exits.enter_context(second).start()
        fronts = (servers.proxy, second)
        endpoints = ";".join(front.address for front in fronts)
        found = exits.enter_context(traffic(servers, language, endpoints, tmp_path))
        for front in fronts:
            stopped_ms = now_ms()
            front.stop()
            found.wait_sent(stopped_ms)
            front.start()
            back_ms = now_ms()
            found.wait_sent(back_ms)
            found.wait_received(back_ms)
        failed = found.refused()
        print(f"{language}, proxy {kind}: {len(failed)} of {len(failed) + len(found.sent())} sends failed {failed[:2]}")
        found.land()
        assert not failed
