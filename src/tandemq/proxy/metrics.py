"""Metrics of a proxy.

Source: docs/guides/monitoring.md.
"""

from collections.abc import Iterator

from tandemq.boundary import Now
from tandemq.grpc.server import GrpcServer
from tandemq.proxy.acknowledging import Acknowledging
from tandemq.proxy.clients import GrpcClients
from tandemq.proxy.commands import ClientCommands
from tandemq.proxy.protocol.messaging_pb2 import Code
from tandemq.proxy.receiving import Receiving
from tandemq.proxy.renewals import Renewals
from tandemq.proxy.sending import Sending
from tandemq.proxy.service import MessagingService
from tandemq.telemetry.families import Batch, Values, counter, gauge, single
from tandemq.telemetry.turn_times import TurnTimes

CALLS = counter("tandemq_proxy_calls_total", "Calls answered, by method and status code.", "method", "code")
CLIENTS = gauge("tandemq_proxy_clients", "GrpcClients that have sent their settings.")
LINKS = gauge("tandemq_proxy_connections", "Open connections of clients.")
OPEN_CALLS = gauge("tandemq_proxy_open_calls", "Calls that are not answered: long polls and telemetry streams too.")
HANDLES = gauge("tandemq_proxy_renewed_handles", "Received messages whose invisible time the proxy extends.")
SENT = counter("tandemq_proxy_messages_sent_total", "Messages of clients that brokers have stored.")
RECEIVED = counter("tandemq_proxy_messages_received_total", "Messages given to clients.")
ACKNOWLEDGED = counter("tandemq_proxy_messages_acknowledged_total", "Messages that clients have acknowledged.")
COMMANDS = counter("tandemq_proxy_commands_total", "Commands of operators handed to clients.")
CHECKS = counter("tandemq_proxy_transaction_checks_total", "Checks of transactions handed to clients.")


class ProxyMetrics:
    """The source of the families above."""

    def __init__(
        self,
        server: GrpcServer,
        service: MessagingService,
        clients: GrpcClients,
        renewals: Renewals,
        sending: Sending,
        receiving: Receiving,
        acknowledging: Acknowledging,
        commands: ClientCommands,
    ) -> None:
        """Read the counts of these."""
        self.times = TurnTimes()
        self._server = server
        self._service = service
        self._clients = clients
        self._renewals = renewals
        self._sending = sending
        self._receiving = receiving
        self._acknowledging = acknowledging
        self._commands = commands

    def collect(self, _now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        yield from self.times.collect()
        names = Code.DESCRIPTOR.values_by_number
        calls: Values = {
            (method, names[code].name if code in names else str(code)): count
            for (method, code), count in self._service.outcomes.items()
        }
        yield Batch(CALLS, calls)
        yield single(CLIENTS, self._clients.count)
        yield single(LINKS, self._server.connection_count)
        yield single(OPEN_CALLS, self._server.open_calls)
        yield single(HANDLES, self._renewals.count)
        yield single(SENT, self._sending.sent)
        yield single(RECEIVED, self._receiving.received)
        yield single(ACKNOWLEDGED, self._acknowledging.acknowledged)
        yield single(COMMANDS, self._commands.sent)
        yield single(CHECKS, self._service.checked)
