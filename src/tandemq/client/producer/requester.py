"""Requests that expect a reply: correlation, time limits, replies that nobody waits for any more.

    request ─► brokers introduced? ─► send ─► wait ─► reply: settle the ticket
                  └► route, heartbeats         ├► no reply in time: NoReply
                                               └► the message cannot be sent: its error

A reply comes by any broker of the cluster that knows this client as a producer. So before the first request to a topic
the brokers of the topic and of the cluster's reply topic get a heartbeat; the request waits for their responses for
`INTRODUCTION_MS` at most.

Invariants: a request is settled once, by its own reply, which is found by a random id; a reply without a waiting
request (late, repeated, of a forgotten one) is counted and dropped. At most `WAITING_MAX` requests wait.

Owner: the node. Source: docs/reference/requests.md, "request-reply"; RocketMQ RequestFutureHolder.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from uuid import UUID

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timer, Timers
from tandemq.client.core.operations import void
from tandemq.client.core.routes import Routes
from tandemq.client.producer.encoder import SendRequest, prepare
from tandemq.client.producer.machine import ProducerCore
from tandemq.client.producer.publish_info import Select
from tandemq.client.producer.unique_keys import UniqueKeys
from tandemq.codec.record.record import inflate
from tandemq.errors import ClosedError, LocalError, NoReply, ProtocolError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendResult, SysFlag, decode_properties
from tandemq.model.replies import ARRIVE_TIME, CORRELATION_ID, REPLY_TO_CLIENT, TTL, ReplyMessage
from tandemq.model.topic import reply_topic

log = logging.getLogger(__name__)
WAITING_MAX = 10_000
INTRODUCTION_MS = 500
"""Maximum time that a request waits until the brokers know this client; never more than a quarter of its timeout."""
TIMEOUT_MS_MAX = 3_600_000
Introduce = Callable[[Sequence[str], Now], Ticket[None]]
"""Fetches the routes of topics and sends a heartbeat to their brokers."""


class RequestTicket(Ticket[ReplyMessage], eq=False):
    """Outcome of a request."""

    correlation_id: str = ""
    sent: SendResult | None = None
    """Where the request is stored, once that is known."""
    timer: Timer | None = None


class Requester:
    """The requests of all producers of one client."""

    def __init__(
        self,
        client_id: str,
        introduce: Introduce,
        routes: Routes,
        timers: Timers,
        keys: UniqueKeys,
        random: Random,
    ) -> None:
        """Nothing waits."""
        self._client_id = client_id
        self._introduce = introduce
        self._routes = routes
        self._timers = timers
        self._keys = keys
        self._random = random
        self._waiting: dict[str, RequestTicket] = {}
        self._introductions: dict[str, Ticket[None]] = {}
        """By topic."""
        self.unclaimed = 0
        """Number of replies that nobody waited for."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    @property
    def is_used(self) -> bool:
        """Whether there were requests, so that brokers have to know this client."""
        return bool(self._introductions)

    def request(
        self, producer: ProducerCore, message: Message, now: Now, *, timeout_ms: int, select: Select | None = None
    ) -> RequestTicket:
        """Send a request by a producer.

        The ticket fails with NoReply (the request may have been carried out), or as the ticket of a send.

        Args:
            timeout_ms: for how long to wait for the reply, from now on; the responder sees it as the property TTL.
            select: chooses the queue; the message is not retried then.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise LocalError(f"the timeout of a request is {timeout_ms} ms; it must be 1 to {TIMEOUT_MS_MAX}")
        if len(self._waiting) >= WAITING_MAX:
            raise LocalError(f"{WAITING_MAX} requests already wait for their replies")
        ticket = RequestTicket(correlation_id=str(UUID(int=self._random.getrandbits(128), version=4)))
        asked = {CORRELATION_ID: ticket.correlation_id, REPLY_TO_CLIENT: self._client_id, TTL: str(timeout_ms)}
        prepared = prepare(
            replace(message, properties=message.properties | asked), self._keys.next(now.wall_ms), producer.options
        )
        self._waiting[ticket.correlation_id] = ticket
        ticket.timer = self._timers.at(now.mono_ms + timeout_ms, partial(self._expire, ticket, timeout_ms))
        begin = partial(self._send, producer, prepared, select, ticket)
        introduction = self._introduced(message.topic, now)
        if introduction.done:
            begin(now)
            if isinstance(ticket.error, LocalError):
                ticket.result()
        else:
            latest = self._timers.at(now.mono_ms + min(INTRODUCTION_MS, timeout_ms // 4), begin)
            introduction.then(lambda _: self._hurry(latest, begin))
        return ticket

    def _hurry(self, latest: Timer, begin: Callable[[Now], None]) -> None:
        """Send a request in the next turn, unless it is sent already."""
        if latest.action is not None:
            latest.cancel()
            self._timers.at(0, begin)

    def _introduced(self, topic: str, now: Now) -> Ticket[None]:
        """Return the ticket of a topic's introduction, begun now if it is the first."""
        known = self._introductions.get(topic)
        if known is not None and (not known.done or self._routes.get(topic) is not None):
            return known
        done: Ticket[None] = Ticket()
        self._introductions[topic] = done
        first = self._introduce([topic], now)
        first.then(lambda _: void(self._timers.at(0, partial(self._introduce_to_cluster, topic, done))))
        return done

    def _introduce_to_cluster(self, topic: str, done: Ticket[None], now: Now) -> None:
        """Have the brokers of the reply topic know this client too: a reply may go to any of them."""
        route = self._routes.get(topic)
        clusters = {group.cluster for group in route.brokers.values() if group.cluster} if route is not None else set()
        topics = sorted(map(reply_topic, clusters))
        self._introduce(topics, now).then(lambda _: done.settle(None))

    def _send(
        self, producer: ProducerCore, prepared: SendRequest, select: Select | None, ticket: RequestTicket, now: Now
    ) -> None:
        if ticket.done:
            return
        try:
            producer.send_prepared(prepared, now, select=select).then(partial(self._sent, ticket))
        except TandemError as error:
            self._fail(ticket, error)

    def _sent(self, ticket: RequestTicket, sent: Ticket[SendResult]) -> None:
        if sent.error is None:
            ticket.sent = sent.result()
        elif not ticket.done:
            self._fail(ticket, sent.error)

    # The end of a request.

    def take_reply(self, _address: str, command: Command, now: Now) -> Command:
        """Handle a reply that a broker passes on; returns the response to it."""
        properties = decode_properties(command.fields.get("properties", ""))
        ticket = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if ticket is None:
            self.unclaimed += 1
            log.info("reply: nobody waits for it (any more) unclaimed=%d", self.unclaimed)
            return command.answer(ResponseCode.SUCCESS)
        try:
            reply = _read_reply(command, properties | {ARRIVE_TIME: str(now.wall_ms)})
        except (ProtocolError, KeyError, ValueError) as error:
            self._fail(ticket, ProtocolError(f"the reply cannot be read: {error!r}"))
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="process reply message fail")
        self.forget(ticket)
        ticket.settle(reply)
        return command.answer(ResponseCode.SUCCESS)

    def forget(self, ticket: RequestTicket) -> None:
        """Wait no longer for a reply; one that comes later is dropped. The ticket is not settled."""
        self._waiting.pop(ticket.correlation_id, None)
        if ticket.timer is not None:
            ticket.timer.cancel()

    def _fail(self, ticket: RequestTicket, error: TandemError) -> None:
        if self._waiting.get(ticket.correlation_id) is ticket:
            self.forget(ticket)
            ticket.fail(error)

    def _expire(self, ticket: RequestTicket, timeout_ms: int, _now: Now) -> None:
        where = "is stored" if ticket.sent is not None else "may be stored"
        self._fail(ticket, NoReply(f"no reply came within {timeout_ms} ms; the request {where}"))

    def close(self) -> None:
        """Fail all requests that wait, after the producers were closed: each is stored, or was not sent."""
        for ticket in list(self._waiting.values()):
            if ticket.sent is not None:
                self._fail(ticket, NoReply("the producer was closed before a reply came; the request is stored"))
            else:
                self._fail(ticket, ClosedError("the producer was closed, nothing was sent"))


def _read_reply(command: Command, properties: dict[str, str]) -> ReplyMessage:
    """Return the reply in a broker's request.

    Raises:
        ProtocolError, KeyError, ValueError: it is malformed, or its body cannot be decompressed.
    """
    fields = command.fields
    sys_flag = int(fields["sysFlag"])
    body = inflate(command.body, sys_flag) if sys_flag & SysFlag.COMPRESSED else command.body
    return ReplyMessage(
        fields["topic"],
        body,
        properties,
        int(fields["flag"]),
        int(fields["bornTimestamp"]),
        fields.get("bornHost", "").removeprefix("/"),
        int(fields.get("storeTimestamp", "0")),
        fields.get("storeHost", "").removeprefix("/"),
    )
