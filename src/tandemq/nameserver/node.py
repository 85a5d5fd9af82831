"""One name server as a plain object: bytes received on all connections in, responses out.

    received ─► frames ─► requests ─► DefaultRequestProcessor ─► routes, kvConfig, registry ─► responses ─► sends
                ConnectionTable

Every request is answered in order, in the turn it arrives in, or in a later one if that turn has no time left, and in
the encoding (JSON or binary) it came in; one-way requests are never answered. Malformed bytes close their connection.
Responses of the registry (`registry_enable`) leave when the changes they rest on are on disk.

Timers: a connection on which nothing arrived for `connection_idle_ms` is closed; a broker silent for `broker_expiry_ms`
(or for the timeout it registered with) is removed and its connection closed. Both are checked every 24th part of the
shorter one, 5 s by default.

Limits: see `connections`.
Owner: the shell. Does not know: sockets, the clock, other name servers.
Source: docs/reference/requests.md, "Name server"; RocketMQ NamesrvController.
"""

import logging
from collections.abc import Callable, Sequence

from tandemq.boundary import Closed, Disk, Event, JobDone, Now, Opened, Outbox, Turn
from tandemq.codec.proofs import Keyring
from tandemq.codec.remoting.frame import encode_command
from tandemq.config.account_files import AccountFiles
from tandemq.config.monitoring import labels_of
from tandemq.config.settings import NameServerConfig
from tandemq.errors import ProtocolError, RemoteError, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.peers import host_of
from tandemq.model.text import brief
from tandemq.nameserver.access import NameServerAccess
from tandemq.nameserver.broker_data import MinIdChange
from tandemq.nameserver.connections import ConnectionTable
from tandemq.nameserver.kv_config import KeyValues
from tandemq.nameserver.metrics import NameServerMetrics
from tandemq.nameserver.processor import DefaultRequestProcessor
from tandemq.nameserver.registry_service import CODES as REGISTRY_CODES
from tandemq.nameserver.registry_service import RegistryHost
from tandemq.nameserver.routes import RouteTable
from tandemq.nameserver.running_config import RunningConfig
from tandemq.refusals import Refusals
from tandemq.telemetry.families import Metrics
from tandemq.turn_budget import TurnBudget

SCANS_PER_TIMEOUT = 24
_log = logging.getLogger(__name__)


class NameServer:
    """A name server, driven as `boundary.Node` describes."""

    def __init__(
        self,
        config: NameServerConfig,
        disk: Disk,
        outbox: Outbox | None = None,
        keyring: Keyring | None = None,
        account_files: AccountFiles | None = None,
    ) -> None:
        """A name server without registered brokers.

        Args:
            config: the settings.
            disk: holds kvConfig.json and the registry.
            outbox: knows the bytes that peers have not read, and how long the turn has taken; without it only the
                responses of one turn are bounded.
            keyring: secrets that sessions of the registry have to prove, and by which brokers are users; None: no proof
                is required.
            account_files: files whose accounts are users.

        Raises:
            ConfigError: a file of accounts cannot be read, or is malformed.
            StoreDamaged: kvConfig.json or the registry cannot be read.
            StoreError: the disk failed.
        """
        self._config = RunningConfig(config)
        self._connections = ConnectionTable(self._config, outbox)
        self._budget = TurnBudget(outbox)
        self._routes = RouteTable(config.broker_expiry_ms)
        kv_config = KeyValues(disk)
        self.registry = RegistryHost(disk, keyring) if config.registry_enable else None
        self.processor = DefaultRequestProcessor(self._config, self._routes, kv_config, self.registry)
        self.access = NameServerAccess(self._config, keyring, account_files)
        self._logged_requests = Refusals()
        self._clients: set[int] = set()
        """Connections of clients that understand GO_AWAY and have not got it."""
        self._is_stopping = False
        self._next_scan_ms: int | None = None
        self.metrics = Metrics({}, labels_of(config.metrics_label))
        self._name_server_metrics = NameServerMetrics(self._routes, self._connections, self.registry, self.access)
        self.metrics.add(self._name_server_metrics.collect)

    @property
    def config(self) -> NameServerConfig:
        """The settings in force: the initial ones, with the changes of UPDATE_NAMESRV_CONFIG."""
        return self._config.present

    def broker_hosts(self) -> set[str]:
        """The hosts of the registered brokers."""
        return self._routes.hosts()

    def stop(self) -> None:
        """From now on refuse every request, with GO_AWAY if the client understands it; `close` follows."""
        self._is_stopping = True

    @property
    def is_left(self) -> bool:
        """Whether, after `stop`, all clients that understand GO_AWAY have got it."""
        return self._is_stopping and not self._clients

    def close(self) -> None:
        """Close the registry's files."""
        if self.registry is not None:
            self.registry.close()

    def deadline_ms(self) -> int | None:
        """When connections, brokers and sessions are checked next; None if there are none."""
        if self._is_stopping:
            return None
        registry_ms = self.registry.deadline_ms() if self.registry is not None else None
        times = (self._next_scan_ms, registry_ms, self.access.deadline_ms())
        return min((time for time in times if time is not None), default=None)

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`.

        Requests of connections that closed are carried out first, all of them, then those connections are removed, then
        the others are read: so a killed broker that restarts within one turn can register again.
        """
        turn = Turn()
        self._connections.begin_turn(now.mono_ms)
        closed = self._take_events(events, turn, now)
        if closed:
            for link, data in received:
                if link in closed:
                    self._receive(link, data, turn, now, lambda: False)
            for link, reason in closed.items():
                self._remove(link, reason)
                turn.sends.pop(link, None)
        turn.unread = self._budget.serve(
            [piece for piece in received if piece[0] not in closed],
            lambda link, data: self._receive(link, data, turn, now, self._budget.is_over),
        )
        for link in self._connections.over_partial_budget():
            self._drop_incomplete(link, turn)
        if self.registry is not None:
            self._turn_registry(self.registry, turn, now)
        self._connections.end_turn(turn)
        reading = self.access.look(now)
        if reading is not None:
            turn.jobs.append(reading)
        if self._next_scan_ms is not None and now.mono_ms >= self._next_scan_ms:
            self._scan(turn, now.mono_ms)
        self._notify_min_ids(turn)
        return turn

    def _take_events(self, events: Sequence[Event], turn: Turn, now: Now) -> dict[int, str]:
        """Open connections, note finished jobs; return the reasons of closed connections by number."""
        closed: dict[int, str] = {}
        for event in events:
            if isinstance(event, Opened):
                self._open(event, turn, now)
            elif isinstance(event, Closed):
                closed[event.link] = event.reason
            elif isinstance(event, JobDone):
                event.job.done(event, turn, now)
        return closed

    def turn_took(self, duration_ns: int) -> None:
        """See `telemetry.collection.MonitoredNode`."""
        self._name_server_metrics.times.turn_took(duration_ns)

    def not_ready(self, _now: Now) -> list[str]:
        """See `telemetry.collection.MonitoredNode`."""
        failed = self.registry.failed if self.registry is not None else None
        return [] if failed is None else [f"the registry: {failed}"]

    # Connections.

    def _open(self, event: Opened, turn: Turn, now: Now) -> None:
        refusal = self._connections.open(event, now.mono_ms)
        if refusal is not None:
            turn.closes.append((event.link, refusal))
        elif self._next_scan_ms is None:
            self._next_scan_ms = now.mono_ms + self._scan_interval_ms()

    def _remove(self, link: int, reason: str) -> None:
        self._clients.discard(link)
        if self._connections.remove(link):
            self._routes.link_closed(link, reason)
            if self.registry is not None:
                self.registry.link_closed(link)

    def _close(self, link: int, reason: str, turn: Turn) -> None:
        """Close a connection; bytes and events that still come from it are ignored."""
        self._connections.log_close(link, reason)
        self._remove(link, reason)
        turn.closes.append((link, reason))

    def _drop_incomplete(self, link: int, turn: Turn) -> None:
        self._remove(link, "frame not completed")
        turn.closes.append((link, "frame not completed"))

    def _scan_interval_ms(self) -> int:
        config = self._config.present
        return max(1, min(config.broker_expiry_ms, config.connection_idle_ms) // SCANS_PER_TIMEOUT)

    def _scan(self, turn: Turn, now_ms: int) -> None:
        for link in self._routes.expire(now_ms):
            if link in self._connections:
                self._close(link, "the broker that registered through it was silent for too long", turn)
        for link in self._connections.idle(now_ms):
            self._close(link, f"nothing came for {self._config.present.connection_idle_ms} ms", turn)
        for link in self._connections.with_overdue_frame():
            self._drop_incomplete(link, turn)
        self._next_scan_ms = now_ms + self._scan_interval_ms() if len(self._connections) else None

    # Requests.

    def _receive(self, link: int, data: bytes, turn: Turn, now: Now, is_over: Callable[[], bool]) -> bytes:
        """Answer requests, at least one; return what is left when the connection has had its part of the turn."""
        try:
            return self._connections.receive(
                link, data, now.mono_ms, lambda request: self._answer(link, request, turn, now), is_over
            )
        except ProtocolError as error:
            self._close(link, str(error), turn)
        except Exception:  # noqa: BLE001  # the outermost loop of a connection: an error there ends that connection only
            _log.exception("link: %d closed, an error of ours", link)
            self._close(link, "an error of ours", turn)
        return b""

    def _answer(self, link: int, request: Command, turn: Turn, now: Now) -> None:
        if self._is_stopping:
            self._send_away(link, request, turn)
            return
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and request.takes_go_away:
            self._clients.add(link)
        busy = None if request.is_oneway else self._connections.busy(link)
        if busy is not None:
            response: Command | None = request.answer(ResponseCode.SYSTEM_BUSY, remark=busy)
        else:
            response = self._process(request, link, now)
        if response is not None:
            self._name_server_metrics.answered(request.code, response.code)
        if response is not None and not request.is_oneway:
            self._connections.respond(link, response, turn)

    def _send_away(self, link: int, request: Command, turn: Turn) -> None:
        """Refuse a request because this name server stops; disconnect sessions, and peers that do not understand it."""
        if link not in self._connections:
            return  # closed upon an earlier request
        if not request.takes_go_away or request.code in REGISTRY_CODES:
            self._close(link, "the name server is stopping", turn)
        elif not request.is_oneway:
            self._connections.respond(link, request.go_away(), turn)
            self._clients.discard(link)

    def _process(self, request: Command, link: int, now: Now) -> Command | None:
        try:
            self._check(request, link)
            return self.processor.process(request, link, now)
        except (RemoteError, StoreError) as error:
            self._log_refused(request, link, error, now)
            return request.answer(error.code or ResponseCode.SYSTEM_ERROR, remark=str(error))

    def _check(self, request: Command, link: int) -> None:
        """Raise RemoteError if the client may not send a request. A code without a handler needs no right."""
        handler = self.processor.handlers.get(request.code)
        why = None
        if handler is not None and self._config.present.authentication_enable:
            why = self.access.refusal(request, handler.right, host_of(self._connections.peer(link)))
        if why is not None:
            raise RemoteError(why, code=ResponseCode.NO_PERMISSION)

    def _log_refused(self, request: Command, link: int, error: Exception, now: Now) -> None:
        """Log one line per address, request code and minute."""
        times = self._logged_requests.note(f"{self._connections.host(link)} {request.code}", now.mono_ms)
        if times:
            _log.warning(
                "request refused code=%d peer=%s times=%d reason=%s",
                request.code,
                self._connections.peer(link),
                times,
                brief(error, 1_000),
            )

    def _turn_registry(self, registry: RegistryHost, turn: Turn, now: Now) -> None:
        registry.tick(turn, now)
        for answer in registry.answers():
            if answer.link not in self._connections:
                continue
            try:
                self._connections.respond(answer.link, answer.response, turn)
            except ProtocolError as error:
                self._close(answer.link, str(error), turn)

    def _notify_min_ids(self, turn: Turn) -> None:
        """Notify the members of groups whose smallest broker id changed, if that is enabled (5.x)."""
        changes = self._routes.take_min_id_changes()
        for change in changes if self._config.present.notify_min_id else ():
            frame = _min_id_notification(change)
            for link in change.links:
                if link in self._connections:
                    turn.send(link, frame)


def _min_id_notification(change: MinIdChange) -> bytes:
    fields = {
        "minBrokerId": str(change.broker_id),
        "brokerName": change.broker_name,
        "minBrokerAddr": change.address,
        "offlineBrokerAddr": change.offline,
        "haBrokerAddr": change.ha_address,
    }
    present = {name: value for name, value in fields.items() if value}
    return encode_command(Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, 0, FLAG_ONEWAY, fields=present))
