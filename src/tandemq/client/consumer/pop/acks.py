"""Acknowledgements of popped messages: one request at a time per broker, which takes all that have gathered meanwhile.

    add ─► pending ─► ACK_MESSAGE, of several BATCH_ACK_MESSAGE ─► the ticket is settled
              ▲            │ no response, or not the master now: again after a growing pause, until the message's time
              └────────────┘ is over
                           └► the broker has no such request, or refuses the batch: each by a request of its own

Source: docs/reference/pop.md; RocketMQ MQClientAPIImpl.batchAckMessageAsync.
"""

import logging
from collections import deque
from collections.abc import Iterable
from functools import partial

import msgspec

from tandemq.boundary import Now
from tandemq.client.consumer.pop.pop_delivery import PopDelivery
from tandemq.client.core.calls import Ticket, Timer, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import NOT_NOW_CODES, refusal
from tandemq.client.core.routes import Routes
from tandemq.codec.remoting.pops import AckedMessage, ack_request, batch_ack_request
from tandemq.errors import NotConnected, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

log = logging.getLogger(__name__)
BATCH_MAX = 512
"""Maximum number of messages that one request acknowledges."""
ALONE_MAX = 64
"""Maximum number of requests in flight to a broker that takes no batches."""
PAUSE_MS = 100
PAUSE_MAX_MS = 1_000


class _Pending(msgspec.Struct, eq=False):
    """A message to acknowledge."""

    delivery: PopDelivery
    ticket: Ticket[None]
    is_alone: bool = False
    """Whether it needs a request of its own."""
    error: TandemError | None = None
    """Why the last attempt failed."""

    @property
    def acked(self) -> AckedMessage:
        """The message, by its newest handle."""
        return AckedMessage(self.delivery.handle, self.delivery.topic)


class _BrokerAcks:
    """Messages of one broker group to acknowledge."""

    __slots__ = ("failures", "in_flight", "name", "pause", "pending", "takes_batches")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pending: deque[_Pending] = deque()
        self.in_flight = 0
        """Number of requests."""
        self.pause: Timer | None = None
        self.failures = 0
        self.takes_batches = True


class AckSender:
    """Acknowledges the messages of one consumer."""

    def __init__(self, group: str, remoting: RemotingClient, routes: Routes, timers: Timers) -> None:
        """Nothing is pending."""
        self._group = group
        self._remoting = remoting
        self._routes = routes
        self._timers = timers
        self._brokers: dict[str, _BrokerAcks] = {}
        self.open_count = 0
        """Number of messages whose acknowledgement has not ended."""

    def add(self, delivery: PopDelivery) -> Ticket[None]:
        """Acknowledge a message, in the next turn with others.

        The ticket is settled when the broker has confirmed it. It fails with the reason of the last attempt when the
        message's time is over, and when the broker refuses.
        """
        pending = _Pending(delivery, Ticket())
        self.open_count += 1
        name = delivery.handle.broker
        broker = self._brokers.get(name)
        if broker is None:
            broker = self._brokers[name] = _BrokerAcks(name)
        broker.pending.append(pending)
        if not broker.in_flight and broker.pause is None:
            broker.pause = self._timers.at(0, partial(self._go_on, broker))
        return pending.ticket

    def _go_on(self, broker: _BrokerAcks, now: Now) -> None:
        broker.pause = None
        self._send(broker, now)

    def _send(self, broker: _BrokerAcks, now: Now) -> None:
        if broker.in_flight or broker.pause is not None:
            return
        if broker.failures:
            self._expire(broker, now)
        if not broker.pending:
            return
        address = self._routes.leader(broker.name)
        if address is None or self._remoting.is_down(address):
            self._not_now(broker, self._take(broker), NotConnected(f"no master of {broker.name} is connected"), now)
            return
        taken = self._take(broker)
        alone = [p for p in taken if p.is_alone or not broker.takes_batches or not p.acked.fits_batch]
        batch = [p for p in taken if not (p.is_alone or not p.acked.fits_batch)] if broker.takes_batches else []
        if len(batch) == 1:
            alone += batch
            batch = []
        requests = [([p], ack_request(p.delivery.handle, self._group, p.delivery.topic)) for p in alone]
        if batch:
            requests.append((batch, batch_ack_request([p.acked for p in batch], self._group, broker.name)))
        broker.in_flight = len(requests)
        for some, command in requests:
            self._remoting.request(address, command, now, partial(self._on_answer, broker, some))

    @staticmethod
    def _take(broker: _BrokerAcks) -> list[_Pending]:
        """Take messages for the next requests."""
        taken: list[_Pending] = []
        alone = 0
        while broker.pending and len(taken) < BATCH_MAX and alone < ALONE_MAX:
            pending = broker.pending.popleft()
            taken.append(pending)
            alone += pending.is_alone or not broker.takes_batches
        return taken

    def _expire(self, broker: _BrokerAcks, now: Now) -> None:
        """Give up on messages that have come back; each had one attempt at least."""
        kept: deque[_Pending] = deque()
        for pending in broker.pending:
            if pending.error is None or now.mono_ms < pending.delivery.until_ms:
                kept.append(pending)
                continue
            log.warning(
                "acknowledgement failed, the message comes back group=%s queue=%s offset=%d error=%s",
                self._group,
                pending.delivery.queue,
                pending.delivery.message.queue_offset,
                pending.error,
            )
            self._fail(pending, pending.error)
        broker.pending = kept

    def _fail(self, pending: _Pending, error: TandemError) -> None:
        self.open_count -= 1
        pending.ticket.fail(error)

    def _not_now(self, broker: _BrokerAcks, some: Iterable[_Pending], error: TandemError, now: Now) -> None:
        """Send acknowledgements again after a pause."""
        some = list(some)
        for pending in some:
            pending.error = error
        broker.pending.extendleft(reversed(some))
        if some:
            self._routes.refresh(some[0].delivery.topic, now)
        if broker.pause is None:
            pause_ms = min(PAUSE_MAX_MS, PAUSE_MS << min(broker.failures, 16))
            broker.failures += 1
            broker.pause = self._timers.at(now.mono_ms + pause_ms, partial(self._go_on, broker))

    def _on_answer(self, broker: _BrokerAcks, some: list[_Pending], answer: Answer, now: Now) -> None:
        broker.in_flight -= 1
        is_batch = len(some) > 1
        if isinstance(answer, TandemError):
            self._not_now(broker, some, answer, now)
        elif answer.code == ResponseCode.SUCCESS:
            broker.failures = 0
            for pending in some:
                self.open_count -= 1
                pending.ticket.settle(None)
        elif answer.code in NOT_NOW_CODES:
            self._not_now(broker, some, refusal(answer), now)
        elif is_batch:
            self._batch_refused(broker, some, answer)
        else:
            self._fail(some[0], refusal(answer))
        self._send(broker, now)

    def _batch_refused(self, broker: _BrokerAcks, some: list[_Pending], answer: Command) -> None:
        """Acknowledge each message of a batch by a request of its own: another one may be the reason."""
        log.info("batch of acknowledgements refused broker=%s error=%s", broker.name, refusal(answer))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            broker.takes_batches = False
        for pending in some:
            pending.is_alone = True
        broker.pending.extendleft(reversed(some))
