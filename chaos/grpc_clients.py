"""A producer and a simple consumer of the gRPC protocol, over proxies that faults kill, pause, restart and cut off.

    number of a message ─► normal | of a message group (FIFO) | timed, half of these recalled ─► `history`, as of others
    received ─┬─► acknowledged, confirmed ──────────────► never received again from its queue, see `pops`
              ├─► made invisible for longer ─► acknowledged by its new handle
              └─► the first time: made visible soon ────► received again, from the retry topic

I14  after the faults each proxy takes a message for the brokers
I25  as of the consumer in `pops`. An acknowledgement that came too late does not count: the message comes back

A message group's queue follows from its name, so the places of its messages are checked. Other responses have only the
offset.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from threading import Event
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message as Protobuf

from chaos import filters, timers
from chaos.grpc_connection import ProxyClient
from chaos.history import History, Place
from chaos.pops import PopHistory, is_returned
from tandemq.errors import LocalError, NetworkError
from tandemq.proxy.handles import parse_receipt
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.sending import queue_index
from tandemq.proxy.status import OF_SENDS
from tandemq.run.ports import Setting

GROUP = "chaos-grpc"
NAME = "g"
"""Tag of the messages, and beginning of their bodies."""
SETTINGS: dict[str, Setting] = {"enableMixedMessageType": "true"}
"""Setting of brokers whose topics take messages of all types."""
INVISIBLE_S, LONGER_S, SOON_S = 10, 12, 1
_EXTENDED_EVERY, _FIFO_EVERY = 13, 3
_MESSAGE_GROUPS = 8
_ATTEMPTS = 3
PACE_S, _AGAIN_S = 0.005, 0.1
_SEND_S, _CALL_S, _POLL_S = 3.0, 6.0, 1
_BATCH = 16
R = TypeVar("R", bound=Protobuf)


class Calls(Protocol):
    """Calls of a client; see `ProxyClient`."""

    def call(self, method: str, request: Protobuf, response: type[R], timeout_s: float) -> R:
        """Return the response of a method that has one."""
        ...

    def stream(self, method: str, request: Protobuf, timeout_s: float) -> list[bytes]:
        """Return the messages of a response."""
        ...


def message_group(number: int) -> str:
    """Return the message group of a message; "": it has none."""
    turn, rest = divmod(number, _FIFO_EVERY)
    return "" if rest else f"group-{turn % _MESSAGE_GROUPS}"


class GrpcSender:
    """Sends messages, and records the outcomes."""

    def __init__(self, calls: Calls, topic: str, queues: int, history: History) -> None:
        """`queues`: number of queues of the topic."""
        self._calls = calls
        self._topic = pb.Resource(name=topic)
        self._queues = queues
        self._history = history
        self._number = 0
        self.sent = 0
        """Messages that were confirmed."""
        self.failed = 0
        """Messages that no response calls stored."""

    def send_next(self, calls: Calls | None = None) -> bool:
        """Send the next message, as often as official clients do; return whether it was confirmed.

        Args:
            calls: of another client.
        """
        calls = calls or self._calls
        self._number += 1
        history, number = self._history, self._number
        body = f"{NAME}-{number}"
        wait_s = timers.delay_of(number)
        group = "" if wait_s else message_group(number)
        history.sending(body, NAME, due=time.monotonic() + wait_s if wait_s else 0.0, is_timed=bool(wait_s))
        request = pb.SendMessageRequest(messages=[self._message(body, group, wait_s)])
        is_stored = False
        for _ in range(_ATTEMPTS):
            try:
                response = calls.call("SendMessage", request, pb.SendMessageResponse, _SEND_S)
            except NetworkError:
                history.refused("gRPC: no response")
                continue
            if response.status.code != pb.Code.OK:
                is_stored |= response.status.code in OF_SENDS.values()
                history.refused(f"gRPC: {pb.Code.Name(response.status.code)}: {response.status.message[:120]}")
                continue
            self.sent += 1
            self._confirmed(body, group, number, response.entries[0])
            return True
        self.failed += not is_stored
        return False

    def _message(self, body: str, group: str, wait_s: float) -> pb.Message:
        system = pb.SystemProperties(
            message_id=f"grpc{body}", tag=NAME, keys=[body], born_host="chaos", body_encoding=pb.Encoding.IDENTITY
        )
        if group:
            system.message_group = group
        if wait_s:
            system.delivery_timestamp.FromMilliseconds(int((time.time() + wait_s) * 1000))
        own = filters.properties_of(body)
        return pb.Message(topic=self._topic, system_properties=system, user_properties=own, body=body.encode())

    def _confirmed(self, body: str, group: str, number: int, entry: pb.SendResultEntry) -> None:
        if entry.recall_handle:  # it waits in queue 0 of the topic of timed messages
            self._history.answered(body, "OK", Place(0, entry.offset), is_ok=True)
            if timers.is_recalled(number):
                self._recall(body, entry.recall_handle)
        elif group:
            queue_id = queue_index(group, self._queues)
            self._history.answered(body, "OK", Place(queue_id, entry.offset), is_ok=True)
        else:
            self._history.answered_without_queue(body, entry.offset)

    def _recall(self, body: str, handle: str) -> None:
        self._history.recalling(body)
        request = pb.RecallMessageRequest(topic=self._topic, recall_handle=handle)
        try:
            self._calls.call("RecallMessage", request, pb.RecallMessageResponse, _CALL_S)
        except NetworkError:
            pass  # it may be recalled


class GrpcReceiver:
    """Receives messages and acknowledges them, and records what was confirmed."""

    def __init__(self, calls: Calls, topic: str, broker: str, history: PopHistory) -> None:
        """`broker`: name of the broker group that has the topic."""
        self._calls = calls
        self._topic = pb.Resource(name=topic)
        self._group = pb.Resource(name=GROUP)
        self._history = history
        self._returned: set[str] = set()
        self.extended = 0
        """Messages that were acknowledged by a later handle."""
        self.late = 0
        """Acknowledgements that were refused because they came too late."""
        self.unknown: Counter[str] = Counter()
        """Codes of acknowledgements that may count: also of those that are in the log of too few brokers."""
        self._request = pb.ReceiveMessageRequest(
            group=self._group,
            message_queue=pb.MessageQueue(topic=self._topic, broker=pb.Broker(name=broker)),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=_BATCH,
        )
        self._request.invisible_duration.FromSeconds(INVISIBLE_S)
        self._request.long_polling_timeout.FromSeconds(_POLL_S)

    def receive(self) -> bool:
        """Receive once, and acknowledge what is to be acknowledged; return whether there were messages."""
        try:
            responses = self._calls.stream("ReceiveMessage", self._request, _CALL_S)
        except NetworkError:
            return False  # what it had comes back
        parsed = map(pb.ReceiveMessageResponse.FromString, responses)
        taken = [self._take(response.message) for response in parsed if response.HasField("message")]
        if handles := {handle: one for one, handle in taken if handle}:
            self._acknowledge(handles)
        return bool(taken)

    def _take(self, message: pb.Message) -> tuple[pb.Message, str]:
        """Record a delivery; return it with the handle to acknowledge it by, "" for none."""
        body, system = message.body.decode(errors="replace"), message.system_properties
        self._history.received(body, _place(message), parse_receipt(system.receipt_handle).handle.pop_ms / 1000)
        number = body.rpartition("-")[2]
        if is_returned(body) and body not in self._returned:
            self._returned.add(body)
            self._change(message, SOON_S)
            return message, ""
        if number.isdecimal() and not int(number) % _EXTENDED_EVERY:
            handle = self._change(message, LONGER_S)
            self.extended += bool(handle)
            return message, handle
        return message, system.receipt_handle

    def _change(self, message: pb.Message, seconds: int) -> str:
        """Change when a message comes back; return its new handle, "" if it is not known."""
        system = message.system_properties
        request = pb.ChangeInvisibleDurationRequest(
            group=self._group, topic=self._topic, receipt_handle=system.receipt_handle, message_id=system.message_id
        )
        request.invisible_duration.FromSeconds(seconds)
        method, kind = "ChangeInvisibleDuration", pb.ChangeInvisibleDurationResponse
        op = self._history.changing(_place(message), seconds)
        try:
            response = self._calls.call(method, request, kind, _CALL_S)
        except NetworkError:
            response = kind()
        is_confirmed = response.status.code == pb.Code.OK
        self._history.changed(op, is_confirmed=is_confirmed)
        return response.receipt_handle if is_confirmed else ""

    def _acknowledge(self, handles: Mapping[str, pb.Message]) -> None:
        """Acknowledge messages, by their handles."""
        entries = [
            pb.AckMessageEntry(message_id=message.system_properties.message_id, receipt_handle=handle)
            for handle, message in handles.items()
        ]
        request = pb.AckMessageRequest(group=self._group, topic=self._topic, entries=entries)
        ops = {handle: self._history.acknowledging(_place(message)) for handle, message in handles.items()}
        try:
            response = self._calls.call("AckMessage", request, pb.AckMessageResponse, _CALL_S)
        except NetworkError:
            self._history.unknown.update(message.body.decode(errors="replace") for message in handles.values())
            return
        for entry in response.entries:
            message = handles[entry.receipt_handle]
            body = message.body.decode(errors="replace")
            self._history.outcome(ops[entry.receipt_handle], is_confirmed=entry.status.code == pb.Code.OK)
            if entry.status.code == pb.Code.OK:
                self._history.acknowledged(body, _place(message))
            elif entry.status.code == pb.Code.INVALID_RECEIPT_HANDLE:
                self.late += 1
            else:
                self.unknown[pb.Code.Name(entry.status.code)] += 1
                self._history.unknown.add(body)


def _place(message: pb.Message) -> Place | None:
    """Return the place of a message in the topic's queues; None: it is from a retry topic."""
    system = message.system_properties
    return Place(system.queue_id, system.queue_offset) if system.delivery_attempt == 1 else None


class GrpcClients:
    """The producer and the consumer of one run."""

    def __init__(
        self, proxies: Mapping[str, str], topic: str, queues: int, broker: str, history: History, popped: PopHistory
    ) -> None:
        """`proxies`: names and addresses."""
        self._proxies = proxies
        self._queues = queues
        name = pb.Resource(name=topic)
        subscription = pb.Subscription(group=pb.Resource(name=GROUP), subscriptions=[pb.SubscriptionEntry(topic=name)])
        consumer = pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER, subscription=subscription)
        self._producer = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=pb.Publishing(topics=[name]))
        addresses = list(proxies.values())
        self._sending = ProxyClient(addresses, "chaos@producer", self._producer)
        self._receiving = ProxyClient(addresses, "chaos@consumer", consumer)
        self._sender = GrpcSender(self._sending, topic, queues, history)
        self._receiver = GrpcReceiver(self._receiving, topic, broker, popped)
        self.popped = popped

    def begin(self, within_s: float) -> None:
        """Send and receive until a message of each queue is acknowledged: from then on the group has offsets.

        Raises:
            LocalError: it took too long.
        """
        until = time.monotonic() + within_s
        while len({place.queue_id for place in self.popped.ended}) < self._queues:
            self._sender.send_next()
            self._receiver.receive()
            if time.monotonic() > until:
                raise LocalError(f"gRPC clients have not received from each queue within {within_s:g} s")

    def produce(self, is_over: Event, pace_s: float = PACE_S) -> None:
        """Send messages until it is over. `pace_s`: pause after each."""
        while not is_over.wait(pace_s):
            self._sender.send_next()
        self._sending.close()

    def consume(self, drained: Event) -> None:
        """Receive and acknowledge until everything is drained."""
        while not drained.is_set():
            if not self._receiver.receive():
                drained.wait(_AGAIN_S)
        self._receiving.close()

    def send_last(self, within_s: float) -> list[str]:
        """Send a message over each proxy; return the violations of I14: those that take none."""
        found = []
        until = time.monotonic() + within_s
        for name, address in self._proxies.items():
            client = ProxyClient([address], f"chaos@{name}", self._producer)
            while not (is_sent := self._sender.send_next(client)) and time.monotonic() < until:
                time.sleep(_AGAIN_S)
            client.close()
            if not is_sent:
                found.append(f"I14: {name} takes no message within {within_s:g} s after the faults")
        return found

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        receiver = self._receiver
        return self.popped.report() | {
            "sent": self._sender.sent,
            "failed": self._sender.failed,
            "calls_lost": self._sending.lost + self._receiving.lost,
            "extended": receiver.extended,
            "late": receiver.late,
            "acknowledgements": dict(receiver.unknown),
        }
