"""The proxy without input and output: a gRPC server in front of a client of the brokers.

    bytes of clients ─► GrpcServer ─► MessagingService ─► operations ─┐
    bytes of clients ◄─ GrpcServer ◄─ responses ◄─────────────────────┴─ ClientNode ◄─► bytes of brokers

One turn: what clients sent, then what brokers sent and timers; both outputs leave together. It implements
`boundary.Node`.
"""

import logging
from collections.abc import Mapping, Sequence
from random import Random

from tandemq.boundary import Closed, Event, LinkKind, Now, Opened, Outbox, Turn
from tandemq.client.core.settings import ClientConfig
from tandemq.client.node import ClientNode
from tandemq.config.monitoring import labels_of
from tandemq.config.settings import ProxyConfig
from tandemq.grpc.server import GrpcServer, Method
from tandemq.model.codes import RequestCode
from tandemq.model.topic import AUTO_CREATE_TOPIC
from tandemq.proxy.access import ProxyAccess
from tandemq.proxy.acknowledging import Acknowledging
from tandemq.proxy.brokers import Brokers
from tandemq.proxy.clients import GrpcClients
from tandemq.proxy.commands import ClientCommands
from tandemq.proxy.extras import Health, Reflection
from tandemq.proxy.metrics import ProxyMetrics
from tandemq.proxy.receiving import Receiving
from tandemq.proxy.renewals import RENEW_EVERY_MS, Renewals
from tandemq.proxy.reports import REPORT_MS, ConsumerReports
from tandemq.proxy.routing import Routing
from tandemq.proxy.sending import Sending, producer_options
from tandemq.proxy.service import MessagingService
from tandemq.proxy.transactions import GrpcTransactions
from tandemq.telemetry.families import Metrics
from tandemq.turn_budget import TurnBudget

log = logging.getLogger(__name__)
PRODUCER_GROUP = "TANDEMQ_PROXY"
SWEEP_MS = 5_000
"""Period at which silent clients and connections are looked for."""
SLICE_BYTES = 16 * 1024
"""Received bytes that are handled without a look at the clock."""


class ProxyNode:
    """The proxy; see `boundary.Node`."""

    def __init__(
        self,
        config: ProxyConfig,
        client: ClientConfig,
        random: Random,
        now: Now,
        outbox: Outbox | None = None,
    ) -> None:
        """Begin without connections.

        Args:
            config: the settings.
            client: those of the client that speaks to brokers.
            random: chooses among producers.
            now: the time.
            outbox: measures the time of a turn; by default turns are not interrupted.
        """
        self.client = ClientNode(client, random, now)
        self._budget = TurnBudget(outbox)
        routes, runner, timers = self.client.routes, self.client.runner, self.client.timers
        brokers = Brokers(routes)
        renewals = self._renewals = Renewals(routes, runner)
        self._clients = GrpcClients(brokers, random, config.clients_max, renewals.client_gone)
        transactions = self._transactions = GrpcTransactions(self.client, brokers, self._clients.tell_producer)
        producer = self.client.producer(producer_options(PRODUCER_GROUP))
        sending = Sending(brokers, producer, transactions)
        receiving = Receiving(routes, brokers, renewals, self._clients.seen, config.invisible_ms_min)
        acknowledging = Acknowledging(brokers, renewals)
        access = self._access = ProxyAccess(config, routes)
        commands = self.commands = ClientCommands(
            self._clients, self.client.remoting, timers, random, client.name_servers
        )
        self._clients.on_stream_end = commands.stream_ended
        self._clients.on_answer = commands.take_answer
        self.client.answer_with(RequestCode.CONSUME_MESSAGE_DIRECTLY, commands.consume_directly)
        self.client.answer_with(RequestCode.GET_CONSUMER_RUNNING_INFO, commands.running_info)
        reports = ConsumerReports(self._clients, self.client.remoting, self.client.broker_addresses)
        self._service = MessagingService(
            runner, access, self._clients, Routing(brokers), sending, receiving, acknowledging, transactions
        )
        self._health = Health()
        self.methods: Mapping[str, Method] = {
            **self._service.methods,
            **self._health.methods,
            **Reflection().methods,
        }
        """By path: what it answers."""
        self._server = GrpcServer(self.methods, config.frame_bytes_max, config.unfinished_bytes_max)
        access.is_open = self._server.is_open
        self._now = now
        counts = ProxyMetrics(
            self._server, self._service, self._clients, renewals, sending, receiving, acknowledging, commands
        )
        self._times = counts.times
        self.metrics = Metrics({}, labels_of(config.metrics_label))
        self.metrics.add(counts.collect)
        timers.at(now.mono_ms, self._greet)
        timers.every(RENEW_EVERY_MS, renewals.renew, first_ms=now.mono_ms + RENEW_EVERY_MS)
        timers.every(REPORT_MS, reports.report, first_ms=now.mono_ms + REPORT_MS)
        timers.every(SWEEP_MS, self._sweep, first_ms=now.mono_ms + SWEEP_MS)

    def _sweep(self, now: Now) -> None:
        self._clients.expire(now)
        self._transactions.forget_unpublished(self._clients.published(), now)
        self._service.forget_ended()
        self._server.probe(now)
        self._greet(now)

    def _greet(self, now: Now) -> None:
        """Keep a connection to a name server."""
        if self.not_ready(now):
            self.client.routes.fetch(AUTO_CREATE_TOPIC, now)

    def turn_took(self, duration_ns: int) -> None:
        """See `telemetry.collection.MonitoredNode`."""
        self._times.turn_took(duration_ns)

    def not_ready(self, _now: Now) -> list[str]:
        """See `telemetry.collection.MonitoredNode`."""
        if any(self.client.remoting.is_open(address) for address in self.client.config.name_servers):
            return []
        return ["no name server responds"]

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        self._now = now
        self._service.begin_turn(now)
        for event in events:
            if isinstance(event, Opened) and event.kind is LinkKind.GRPC:
                self._server.opened(event.link, event.peer, now)
        of_clients = [piece for piece in received if piece[0] > 0]
        unread = self._budget.serve(of_clients, self._take) if of_clients else []
        for event in events:
            if isinstance(event, Closed) and event.link > 0:
                self._server.closed(event.link, now)
                self._access.link_closed(event.link)
        of_brokers = [piece for piece in received if piece[0] < 0]
        turn = self.client.turn(of_brokers, [event for event in events if _is_of_broker(event)], now)
        sends, ended = self._server.take_output(now)
        for link, buffers in sends:
            turn.send(link, *buffers)
        turn.closes += ended
        turn.unread = unread
        return turn

    def _take(self, link: int, data: bytes) -> bytes:
        """Take the bytes of a client until the time is over; return the rest."""
        if len(data) <= SLICE_BYTES:
            self._server.receive(link, data, self._now)
            return b""
        for at in range(0, len(data), SLICE_BYTES):
            if at and self._budget.is_over():
                return data[at:]
            self._server.receive(link, data[at : at + SLICE_BYTES], self._now)
        return b""

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        return self.client.deadline_ms()

    def leave(self, now: Now) -> None:
        """Send clients elsewhere: long polls end, and no more calls are wanted."""
        self._health.leave()
        self._server.leave()
        self._service.leave(now)

    @property
    def renewed_handles(self) -> int:
        """Number of received messages whose invisible time the proxy extends."""
        return self._renewals.count

    @property
    def streams(self) -> int:
        """Number of telemetry streams."""
        return self._service.streams

    @property
    def is_left(self) -> bool:
        """Whether no call is open any more."""
        return not self._server.open_calls

    def close(self, now: Now) -> Turn:
        """End all connections; return the last bytes."""
        self._server.close(now)
        self.client.end(now)
        turn = self.client.remoting.take_turn()
        sends, ended = self._server.take_output(now)
        for link, buffers in sends:
            turn.send(link, *buffers)
        turn.closes += ended
        return turn


def _is_of_broker(event: Event) -> bool:
    return isinstance(event, Opened | Closed) and event.link < 0
