"""Reports of the proxy's consumers to brokers, so that operators see them and reach them there.

    every `REPORT_MS`, for each master: consumers that it knows ≠ those that there are? ─► a report of the difference

A broker knows what was reported on the connection that is open. On a new connection, and after a report whose outcome
is unknown, all are reported again. Brokers that do not know the request get no reports while their connection lasts.

Source: docs/reference/grpc.md, "What operators see".
"""

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from tandemq.boundary import Now
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.codec.remoting.bodies import decode_body
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.proxied import ProxiedAnswer, ProxiedKey, ProxiedReport
from tandemq.proxy.clients import GrpcClients
from tandemq.proxy.consumers import GrpcConsumer

log = logging.getLogger(__name__)
REPORT_MS = 1_000
AGAIN_MS = 30_000
"""Pause after a report that a broker refused."""
CHANGES_MAX = 500
"""Maximum number of consumers in a report."""
CHARACTERS_MAX = 1 << 20
"""The report is sent when the subscriptions in it have so many."""


class _Known(msgspec.Struct, eq=False):
    """What a broker knows, by the reports on one connection."""

    link: int
    consumers: dict[ProxiedKey, GrpcConsumer] = {}
    is_asked: bool = False
    """Whether a report is in flight."""
    again_ms: int | None = 0
    """When the next report may be sent; None: never."""


class ConsumerReports:
    """What the masters know of the proxy's consumers."""

    def __init__(self, clients: GrpcClients, remoting: RemotingClient, masters: Callable[[], list[str]]) -> None:
        """`masters`: returns the addresses of all masters that the proxy knows."""
        self._clients = clients
        self._remoting = remoting
        self._masters = masters
        self._known: dict[str, _Known] = {}

    def report(self, now: Now) -> None:
        """Report what has changed; to be called every `REPORT_MS`."""
        consumers = self._clients.consumers()
        for address in list(self._known):
            if self._remoting.link_to(address) != self._known[address].link:
                del self._known[address]
        wanted = self._masters() if consumers else []
        for address in dict.fromkeys([*wanted, *self._known]):
            if not self._remoting.is_down(address):
                self._report(address, consumers, now)

    def _report(self, address: str, consumers: dict[ProxiedKey, GrpcConsumer], now: Now) -> None:
        known = self._known.get(address) or _Known(0)
        if known.is_asked or known.again_ms is None or now.mono_ms < known.again_ms:
            return
        left = [key for key in known.consumers if key not in consumers][:CHANGES_MAX]
        joined: dict[ProxiedKey, GrpcConsumer] = {}
        room = CHARACTERS_MAX
        for key, consumer in consumers.items():
            if known.consumers.get(key) is not consumer and len(joined) < CHANGES_MAX and room > 0:
                joined[key] = consumer
                room -= sum(len(data.topic) + len(data.sub_string) for data in consumer.subscriptions)
        if not left and not joined:
            return
        report = ProxiedReport([consumer.proxied(key.client_id) for key, consumer in joined.items()], left)
        command = Command(RequestCode.TANDEM_PROXIED_CONSUMERS, body=msgspec.json.encode(report))
        known.is_asked = True
        self._remoting.request(address, command, now, partial(self._reported, address, known, left, joined))
        known.link = self._remoting.link_to(address)
        self._known[address] = known

    def _reported(
        self,
        address: str,
        known: _Known,
        left: list[ProxiedKey],
        joined: dict[ProxiedKey, GrpcConsumer],
        answer: Answer,
        now: Now,
    ) -> None:
        known.is_asked = False
        if not isinstance(answer, Command):
            # It may have been taken: another one says everything again.
            known.consumers = {}
        elif answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            log.info("the broker %s takes no reports of consumers: its operators do not see those of gRPC", address)
            known.again_ms = None
        elif answer.code != ResponseCode.SUCCESS:
            log.warning("the broker %s refuses a report of consumers: %.300s", address, answer.remark)
            known.again_ms = now.mono_ms + AGAIN_MS
        else:
            for key in left:
                known.consumers.pop(key, None)
            known.consumers |= joined
            self._note_refused(address, answer)

    def _note_refused(self, address: str, answer: Command) -> None:
        try:
            refused = decode_body(answer.body, ProxiedAnswer, "response to a report").refused
        except ProtocolError as error:
            log.warning("the broker %s: %s", address, error)
            return
        if refused:
            first = refused[0]
            text = "the broker %s does not take %d consumers; %.200s of group %.255s: %.200s"
            log.warning(text, address, len(refused), first.client_id, first.group, first.reason)
