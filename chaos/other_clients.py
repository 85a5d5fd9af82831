"""Clients of RocketMQ in other languages, unmodified, under the faults of `chaos.kills`.

    name                  producers        consumers of TOPIC               in order (ORDERED)   transactions
    4.9.8, 5.3.3, 5.5.0   Java, remoting   push; of 5.x also one that pops  push                 yes
    go                    Go, remoting     push                             push                 yes
    cpp                   C++, remoting    push                             push                 the binding has none
    java-5.2.0, …         gRPC             push and simple (Rust: simple)   push, FIFO           yes

Each sends from two producers to one topic, and from one to another topic, whose queues are consumed in order. Drivers
are those of the interop tests; what they print becomes `chaos.client_events.Observed`.

A gRPC client does not tell queues and offsets: the order of its message groups is judged by what the queues hold.
"""

from __future__ import annotations

import re
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from chaos.client_events import SEND_OK, Decided, Delivered, Observed, Sent
from chaos.recorder import SENDS_MAX
from tests.interop.cpp_client import CppDriver
from tests.interop.driver import Event, JavaDriver, Running
from tests.interop.gopeer import GoPeer
from tests.interop.grpc_clients import CAN_PUSH, LANGUAGES, GrpcClient, GrpcProducer, GrpcSimpleConsumer, Opened
from tests.interop.java import CLIENT_VERSIONS, PeerError, wait_until
from tests.interop.peers import NEWEST_VERSION

TOPIC, ORDERED, QUEUES = "Killed", "KilledInOrder", 4
READERS, ORDERED_READERS = "killed-readers", "killed-ordered-readers"
SIMPLE_READERS, POPPERS = "killed-simple-readers", "killed-poppers"
JAVA = (*CLIENT_VERSIONS, NEWEST_VERSION)
POPPING = JAVA[1:]
"""Java clients whose push consumers can pop."""
GO, CPP = "go", "cpp"
NAMES = (*JAVA, GO, CPP, *LANGUAGES)
"""Clients by name."""
DRAIN_S = 120.0
"""How long the last messages and decisions may take."""
INVISIBLE_MS = 15_000
_LOOK_S = 0.3
_PRODUCERS = ("a", "b")
_IN_ORDER, _TRANSACTIONS = "o", "t"
_RETRIES = 1_000
"""Of a Java producer: attempts at an address that refuses connections take no time."""
_SENDS = 3
_TRANSACTION_PACE_S = 0.02
_END_S = 60.0
KEEP_STREAM = ("python", "rust")
"""Clients that no check of a transaction reaches after their proxy was killed: Rust never opens its stream of commands
again, Python notices its end within 300 s. They make transactions in runs without such kills."""
_SINGLE_ADDRESS = ("node", "rust")
"""Clients that take the address of one proxy only."""
_MESSAGE_GROUPS = 4
_OF_ONE_REQUEST = re.compile(r"request-id=[^,\]]*,? ?| \(\d{4}-[^)]*\)|after [\d.]+s")
"""What differs between errors of one kind."""


class OtherClients(ABC):
    """The clients of one run."""

    def __init__(self, name: str, sends: int) -> None:
        """`sends`: how often a client sends a message at most."""
        self.name = name
        self.observed = Observed(sends=sends)
        self.groups: dict[str, str] = {}
        """Consumer groups and their topics."""

    @abstractmethod
    def stop_sending(self) -> None:
        """Stop the producers; those of transactions go on answering checks."""

    @abstractmethod
    def collect(self) -> Observed:
        """Return what was reported so far."""

    @abstractmethod
    def close(self) -> Observed:
        """Stop the consumers; return all that was reported."""

    def drain(self) -> None:
        """Wait until each group has what it must get, or the time is over."""
        until = time.monotonic() + DRAIN_S
        while time.monotonic() < until:
            observed = self.collect()
            silent = set(self.groups) - {one.group for one in observed.delivered}
            if not (silent or observed.undecided() or observed.missing()):
                return
            time.sleep(_LOOK_S)

    def wait_started(self) -> None:
        """Wait until each group has got a message.

        Raises:
            TimeoutError: one has not.
        """
        for group in self.groups:
            wait_until(partial(self._has_got, group), what=f"{group} gets messages", within_s=15)

    def _has_got(self, group: str) -> bool:
        return any(one.group == group for one in self.collect().delivered)


def _delivered(group: str, event: Event) -> Delivered:
    """Return a delivery that a remoting client has reported; those of pops may have offsets of a retry topic."""
    is_first = not event.get("reconsumeTimes", event.get("times", 0)) and group != POPPERS
    queue_id, offset = event.get("queueId", event.get("queue")), event.get("queueOffset", event.get("offset"))
    topic, body = str(event["topic"]), str(event["body"])
    if not is_first or queue_id is None or offset is None:
        return Delivered(group, topic, body, event["at_ms"])
    return Delivered(group, topic, body, event["at_ms"], int(queue_id), int(offset))


def _add_send(observed: Observed, process: str, topic: str, body: str, event: Event, *, is_half: bool = False) -> None:
    if event["event"] != "sent":
        text = _OF_ONE_REQUEST.sub("", str(event.get("text", "")))
        observed.errors[f"{event.get('class', '')}: {text[:100]}"] += 1
        observed.sent.append(Sent(process, topic, body, event["at_ms"], is_half=is_half))
        return
    status = str(event.get("status", SEND_OK))
    queue_id, offset = event.get("queueId", -1), event.get("queueOffset", -1)
    observed.sent.append(Sent(process, topic, body, event["at_ms"], status, int(queue_id), int(offset), is_half))
    if is_half and status != SEND_OK:  # the client rolls it back by itself
        observed.decided.append(Decided(process, body, is_commit=False, at_ms=event["at_ms"]))


def _add_decision(observed: Observed, process: str, event: Event) -> None:
    is_commit = event["outcome"] == "commit"
    observed.decided.append(Decided(process, str(event["body"]), is_commit, event["at_ms"], bool(event["check"])))


class RemotingClients(OtherClients):
    """Clients of the remoting protocol; subclasses start them."""

    def __init__(self, name: str, sends: int) -> None:
        super().__init__(name, sends)
        self.groups = {READERS: TOPIC, ORDERED_READERS: ORDERED}
        self.observed.ordered = {ORDERED_READERS}
        self._producers: dict[str, Running | GoPeer] = {}
        self._transacting: Running | GoPeer | None = None
        self._consumers: dict[str, Running | GoPeer] = {}

    def stop_sending(self) -> None:
        """Stop the producers; that of transactions rests."""
        if self._transacting is not None:
            self._transacting.rest()
        for running in self._producers.values():
            running.end(_END_S)

    def collect(self) -> Observed:
        """Return what was reported so far."""
        observed = Observed(sends=self.observed.sends, ordered=self.observed.ordered)
        for name, running in self._producers.items():
            topic = ORDERED if name == _IN_ORDER else TOPIC
            for event in _events(running):
                if event["event"] in ("sent", "failed"):
                    body = str(event.get("body") or f"{name}-{event['index']}")
                    _add_send(observed, name, topic, body, event)
        for event in _events(self._transacting):
            if event["event"] in ("sent", "failed"):
                _add_send(observed, _TRANSACTIONS, TOPIC, str(event["body"]), event, is_half=True)
            elif event["event"] == "decided":
                _add_decision(observed, _TRANSACTIONS, event)
        for group, running in self._consumers.items():
            observed.delivered += [_delivered(group, event) for event in _events(running) if "topic" in event]
        observed.decided.sort(key=lambda one: one.at_ms)
        self.observed = observed
        return observed

    def close(self) -> Observed:
        """End all clients."""
        if self._transacting is not None:
            self._transacting.end(_END_S)
        for running in self._consumers.values():
            running.end(_END_S)
        return self.collect()


def _events(source: Running | GoPeer | None) -> list[Event]:
    if source is None:
        return []
    return source.events() if isinstance(source, Running) else list(source.events)


class JavaClients(RemotingClients):
    """An unmodified Java client, in one JVM."""

    def __init__(self, version: str, java: JavaDriver) -> None:
        super().__init__(version, _RETRIES + 1)
        limits: dict[str, str | int] = {"poll_ms": 1_000, "heartbeat_ms": 1_000, "deadline_ms": 3_600_000}
        sending: dict[str, str | int] = {"timeout_ms": 10_000, "attempt_ms": 3_000, "retries": _RETRIES, **limits}
        for name in _PRODUCERS:
            self._producers[name] = java.begin(
                "produce", topic=TOPIC, prefix=name, group=f"killed-{name}", interval_ms=5, **sending
            )
        self._producers[_IN_ORDER] = java.begin(
            "produce", topic=ORDERED, prefix=_IN_ORDER, group="killed-o", interval_ms=10, queues=QUEUES, **sending
        )
        self._transacting = java.begin(
            "transact", topic=TOPIC, name=_TRANSACTIONS, group="killed-t", interval_ms=20, **sending
        )
        reading: dict[str, str | int] = {"pull_error_ms": 500, **limits}
        self._consumers = {
            READERS: java.begin("push", topic=TOPIC, group=READERS, **reading),
            ORDERED_READERS: java.begin("push", topic=ORDERED, group=ORDERED_READERS, orderly=True, **reading),
        }
        if version in POPPING:
            mode = ("-c", "DefaultCluster", "-t", TOPIC, "-g", POPPERS, "-m", "POP", "-q", "0")
            told = java.mqadmin("setConsumeMode", "-n", str(java.defaults["namesrv"]), *mode)
            if "success" not in told:
                raise PeerError(f"the group {POPPERS} cannot pop: {told}")
            self.groups[POPPERS] = TOPIC
            self._consumers[POPPERS] = java.begin("push", topic=TOPIC, group=POPPERS, pop=True, **reading)


class GoClients(RemotingClients):
    """RocketMQ's Go client, a process for each producer and consumer."""

    def __init__(self, address: str, directory: Path, stack: ExitStack) -> None:
        super().__init__(GO, _SENDS)

        def start_peer(verb: str, instance: str, **values: str | int) -> GoPeer:
            peer = GoPeer(verb, directory / f"go-{instance}", namesrv=address, instance=instance, **values)
            return stack.enter_context(peer)

        for name in _PRODUCERS:
            self._producers[name] = start_peer("produce", name, topic=TOPIC, prefix=name, interval_ms=5)
        self._producers[_IN_ORDER] = start_peer(
            "produce", _IN_ORDER, topic=ORDERED, prefix=_IN_ORDER, interval_ms=10, queues=QUEUES
        )
        self._transacting = start_peer(
            "transact", _TRANSACTIONS, topic=TOPIC, name=_TRANSACTIONS, group="killed-t", interval_ms=20
        )
        self._consumers = {
            READERS: start_peer("consume", "c", topic=TOPIC, group=READERS, count=0),
            ORDERED_READERS: start_peer("consume", "d", topic=ORDERED, group=ORDERED_READERS, model="orderly", count=0),
        }


class CppClients(RemotingClients):
    """RocketMQ's C++ client, a process for each producer and consumer."""

    def __init__(self, address: str, directory: Path, stack: ExitStack) -> None:
        super().__init__(CPP, _RETRIES)

        def begin(verb: str, name: str, **values: str | int | bool) -> Running:
            driver = CppDriver(directory / f"cpp-{name}", namesrv=address)
            return stack.enter_context(driver).begin(verb, **values)

        for name in _PRODUCERS:
            self._producers[name] = begin(
                "produce", name, topic=TOPIC, prefix=name, group=f"killed-{name}", interval_ms=5
            )
        self._producers[_IN_ORDER] = begin(
            "produce", _IN_ORDER, topic=ORDERED, prefix=_IN_ORDER, group="killed-o", interval_ms=10, queues=QUEUES
        )
        self._consumers = {
            READERS: begin("push", "c", topic=TOPIC, group=READERS),
            ORDERED_READERS: begin("push", "d", topic=ORDERED, group=ORDERED_READERS, orderly=True),
        }


class GrpcClients(OtherClients):
    """A gRPC client, in one process, at the proxies."""

    def __init__(self, language: str, client: GrpcClient, *, has_transactions: bool) -> None:
        super().__init__(language, SENDS_MAX)
        self._is_over, self._drained = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._decisions: list[Decided] = []
        self._halves: list[tuple[str, Event]] = []
        self._simple: list[Event] = []
        self._confirmed: list[str] = []
        self._refused: list[Event] = []
        # A broker may ask any producer of a topic about a transaction.
        self._producers: dict[str, GrpcProducer] = {
            name: client.producer(topics=TOPIC, check="commit") for name in (*_PRODUCERS, _TRANSACTIONS)
        }
        self._producers[_IN_ORDER] = client.producer(topics=ORDERED)
        self._bursts: dict[str, Running] = {
            name: self._producers[name].burst(topic=TOPIC, prefix=name, every_ms=10) for name in _PRODUCERS
        }
        self._bursts[_IN_ORDER] = self._producers[_IN_ORDER].burst(
            topic=ORDERED, prefix=_IN_ORDER, every_ms=20, groups=_MESSAGE_GROUPS
        )
        self.groups = {SIMPLE_READERS: TOPIC}
        self._pushed: dict[str, Opened] = {}
        if language in CAN_PUSH:
            self.groups |= {READERS: TOPIC, ORDERED_READERS: ORDERED}
            self.observed.fifo = {ORDERED_READERS: _MESSAGE_GROUPS}
            self._pushed = {
                group: client.push(group=group, topic=self.groups[group]) for group in (READERS, ORDERED_READERS)
            }
        self._consumer: GrpcSimpleConsumer = client.simple(group=SIMPLE_READERS, topic=TOPIC, await_ms=2_000)
        self._receiving = threading.Thread(target=self._receive)
        self._transacting = threading.Thread(target=self._transact if has_transactions else self._is_over.wait)
        self._receiving.start()
        self._transacting.start()

    def _transact(self) -> None:
        """Of ten transactions commit five, roll back two, leave three to checks."""
        number = 0
        while not self._is_over.wait(_TRANSACTION_PACE_S):
            body, turn = f"{_TRANSACTIONS}-{number}", number % 10
            end = "" if turn > 6 else "rollback" if turn in (5, 6) else "commit"
            now_ms = time.time() * 1_000
            first = self._producers[_TRANSACTIONS].transact(topic=TOPIC, body=body, end=end)[0]
            with self._lock:
                self._halves.append((body, first))
                if first["event"] == "sent" and end:
                    self._decisions.append(Decided(_TRANSACTIONS, body, end == "commit", now_ms))
            number += 1

    def _receive(self) -> None:
        """Receive and acknowledge."""
        while not self._drained.is_set():
            values: dict[str, str | int] = {"max": 16, "invisible_ms": INVISIBLE_MS}
            order = self._consumer.client.begin("receive", client=self._consumer.name, **values)
            *messages, last = order.result()
            with self._lock:
                self._simple += messages
                self._refused += [last] * (last["event"] == "refused")
            for message in messages:
                answer = self._consumer.ack(message)
                with self._lock:
                    if answer["event"] == "acked" and message.get("attempt") == 1:
                        self._confirmed.append(str(message["body"]))
            if last["event"] == "refused":
                self._drained.wait(_LOOK_S)

    def stop_sending(self) -> None:
        """Stop the producers; that of transactions stays open."""
        self._is_over.set()
        self._transacting.join()
        for running in self._bursts.values():
            running.end(_END_S)

    def collect(self) -> Observed:
        """Return what was reported so far."""
        observed = Observed(sends=self.observed.sends, fifo=self.observed.fifo)
        for name, running in self._bursts.items():
            for event in running.events():
                if event["event"] in ("sent", "refused"):
                    _add_send(observed, name, ORDERED if name == _IN_ORDER else TOPIC, str(event["body"]), event)
        checks = [event for producer in self._producers.values() for event in producer.running.events("check")]
        for event in checks:
            decided = Decided(_TRANSACTIONS, str(event["body"]), True, event["at_ms"], is_check=True)
            observed.decided.append(decided)
        for group, opened in self._pushed.items():
            observed.delivered += [_grpc_delivered(group, event) for event in opened.messages()]
        with self._lock:
            for body, event in self._halves:
                _add_send(observed, _TRANSACTIONS, TOPIC, body, event, is_half=True)
            observed.decided += self._decisions
            observed.delivered += [_grpc_delivered(SIMPLE_READERS, event) for event in self._simple]
            observed.confirmed.update(self._confirmed)
            texts = [_OF_ONE_REQUEST.sub("", str(event.get("text"))) for event in self._refused]
            observed.errors.update(f"receive: {text[:100]}" for text in texts)
        observed.decided.sort(key=lambda one: one.at_ms)
        self.observed = observed
        return observed

    def end_threads(self) -> None:
        """End the threads that give orders; the process must still run."""
        self._is_over.set()
        self._drained.set()
        self._transacting.join()
        self._receiving.join()

    def close(self) -> Observed:
        """End all clients."""
        self.end_threads()
        all_opened = (*self._pushed.values(), self._consumer, *self._producers.values())
        for opened in all_opened:
            opened.running.stop()
        unclean: list[str] = []
        for opened in all_opened:
            try:
                opened.running.result(_END_S)
            except PeerError as error:  # the Rust client tells its proxy, which may not know it any more
                unclean.append(f"close: {str(error)[:100]}")
        observed = self.collect()
        observed.errors.update(unclean)
        return observed


def _grpc_delivered(group: str, event: Event) -> Delivered:
    return Delivered(group, str(event["topic"]), str(event["body"]), event["at_ms"])


def start(
    name: str, address: str, endpoints: list[str], directory: Path, stack: ExitStack, *, loses_proxies: bool
) -> OtherClients:
    """Start clients.

    Args:
        name: one of `NAMES`.
        address: of the name server.
        endpoints: of the proxies.
        directory: homes and logs.
        stack: ends the processes.
        loses_proxies: whether proxies are killed.

    Raises:
        PeerError: a client cannot be made or started; the message has the end of its log.
    """
    if name in JAVA:
        return JavaClients(name, stack.enter_context(JavaDriver(name, directory, namesrv=address)))
    if name == GO:
        return GoClients(address, directory, stack)
    if name == CPP:
        return CppClients(address, directory, stack)
    if name in LANGUAGES:
        proxies = endpoints[0] if name in _SINGLE_ADDRESS else ";".join(endpoints)
        has_transactions = not (loses_proxies and name in KEEP_STREAM)
        client = stack.enter_context(GrpcClient(name, directory, proxies))
        clients = GrpcClients(name, client, has_transactions=has_transactions)
        stack.callback(clients.end_threads)
        return clients
    raise PeerError(f"no client {name}: choose one of {', '.join(NAMES)}")
