"""One name server as a plain object: bytes of all links in, answers out.

    received ─► FrameDecoder ─► Command ─► handler by code ─► routes, kv ─► answer ─► sends

Every request is answered in the turn it arrives in, in order, in the form (JSON or binary) it came in; one-way
requests are never answered. A code nobody here knows is answered REQUEST_CODE_NOT_SUPPORTED, a request that cannot be
carried out SYSTEM_ERROR, both with a remark that says why. Bytes that are no frame close their link.

A registration that is refused takes nothing away: the one before stays good, and counts as heard.

Time: a link nobody sent on for `connection_idle_ms` is closed, and a broker silent for `broker_expiry_ms` (or what it
asked for itself) is dropped and its link closed. Both are looked at every 24th part of the shorter one, 5 s by default.

With `registry_enable` it hosts the registry too (`registry`), whose answers leave when what they tell is on disk.

Limits: `connections_max` links; per link one unfinished frame, `unfinished_bytes_max` of all of them; 64 MiB of answers
in a turn, beyond which requests are answered SYSTEM_BUSY; and as many that a link did not take: then it is closed.

Owner: the shell. Does not know: sockets, the clock, other name servers.
Source: docs/requests.md, "Name server"; RocketMQ DefaultRequestProcessor.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from tandemq.boundary import Buffer, Closed, Disk, Event, JobDone, Now, Opened, Outbox, Turn
from tandemq.codec.proofs import Keyring
from tandemq.codec.remoting.fastjson import dumps_java, loads
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.codec.remoting.partial_frames import TooMuch, Unfinished
from tandemq.codec.remoting.response_budget import Answered
from tandemq.config.files import as_properties, changed
from tandemq.config.settings import NameServerConfig
from tandemq.errors import ConfigError, ProtocolError, RemoteError, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.text import brief
from tandemq.nameserver.kv_config import ORDER_NAMESPACE, KeyValues
from tandemq.nameserver.registration import (
    boolean_field,
    integer_field,
    name_field,
    read_queue_datas,
    read_registration,
    read_version,
    required,
)
from tandemq.nameserver.registry_service import CODES as REGISTRY_CODES
from tandemq.nameserver.registry_service import RegistryHost
from tandemq.nameserver.routes import UNIT_FLAG, UNIT_SUB_FLAG, RouteTable
from tandemq.refusals import Refusals

BACKLOG_BYTES_MAX = 64 << 20
SCANS_PER_TIMEOUT = 24
_STRICT_JSON_FROM_VERSION = 401
"""Clients from 4.9.4 on get standard JSON; older ones cut Java's dialect apart as text."""
_log = logging.getLogger(__name__)

_Handler = Callable[[Command, int, Now], Command | None]


class _Link:
    """An open link: its unfinished frame, when it was last heard, what it was sent in this turn."""

    __slots__ = ("decoder", "heard_ms", "peer", "sent_bytes")

    def __init__(self, peer: str, decoder: FrameDecoder, now_ms: int) -> None:
        self.peer = peer
        self.decoder = decoder
        self.heard_ms = now_ms
        self.sent_bytes = 0


class NameServer:
    """A name server; `boundary.Node` says how it is driven."""

    def __init__(
        self, config: NameServerConfig, disk: Disk, outbox: Outbox | None = None, keyring: Keyring | None = None
    ) -> None:
        """A name server that has heard of no broker yet.

        `disk` holds kvConfig.json and the registry. `outbox` tells what links have not taken yet; without it only
        what one turn produces is bounded. `keyring`: the registry's sessions prove that they know its secret.

        Raises:
            StoreDamaged: kvConfig.json or the registry cannot be read.
            StoreError: the disk failed.
        """
        self._config = config
        self._outbox = outbox
        self._kv = KeyValues(disk)
        self.registry = RegistryHost(disk, keyring) if config.registry_enable else None
        self._routes = RouteTable(config.broker_expiry_ms)
        self._links: dict[int, _Link] = {}
        self._unfinished = Unfinished()
        self._refusals = Refusals()
        self._closings = Refusals()
        self._refused_requests = Refusals()
        self._answered = Answered()
        self._next_scan_ms: int | None = None
        self._handlers = self._table()

    @property
    def config(self) -> NameServerConfig:
        """The settings in force: those given, and what UPDATE_NAMESRV_CONFIG changed since."""
        return self._config

    @property
    def broker_count(self) -> int:
        """Registered brokers."""
        return self._routes.broker_count

    @property
    def link_count(self) -> int:
        """Open links."""
        return len(self._links)

    def deadline_ms(self) -> int | None:
        """When links, brokers and sessions are looked at again; None while there are none."""
        due_ms = self.registry.deadline_ms() if self.registry is not None else None
        return min((time for time in (self._next_scan_ms, due_ms) if time is not None), default=None)

    def broker_hosts(self) -> set[str]:
        """Hosts of the registered brokers."""
        return self._routes.hosts()

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`.

        What a link sent before it closed is carried out first, then it is gone, then the other links are heard: so a
        broker that was killed and comes back within one turn finds its place free.
        """
        turn = Turn()
        self._unfinished.now_ms = now.mono_ms
        self._answered.begin_turn()
        closed: dict[int, str] = {}
        for event in events:
            if isinstance(event, Opened):
                self._open(event, turn, now)
            elif isinstance(event, Closed):
                closed[event.link] = event.reason
            elif isinstance(event, JobDone) and self.registry is not None:
                self.registry.job_done(event)
        if closed:
            for link, data in received:
                if link in closed:
                    self._receive(link, data, turn, now)
            for link, reason in closed.items():
                self._forget(link, reason)
                turn.sends.pop(link, None)
        for link, data in received:
            if link not in closed:
                self._receive(link, data, turn, now)
        self._make_room(turn)
        if self.registry is not None:
            self._turn_registry(self.registry, turn, now)
        for link in turn.sends:
            if link in self._links:
                self._links[link].sent_bytes = 0
        if self._next_scan_ms is not None and now.mono_ms >= self._next_scan_ms:
            self._scan(turn, now.mono_ms)
        self._tell_min_ids(turn)
        return turn

    # Links.

    def _open(self, event: Opened, turn: Turn, now: Now) -> None:
        if len(self._links) >= self._config.connections_max:
            turn.closes.append((event.link, f"there are {len(self._links)} links, more are not allowed"))
            return
        decoder = FrameDecoder(self._config.frame_bytes_max, self._unfinished, event.link)
        self._links[event.link] = _Link(event.peer, decoder, now.mono_ms)
        if self._next_scan_ms is None:
            self._next_scan_ms = now.mono_ms + self._scan_interval_ms()

    def _forget(self, link: int, reason: str) -> None:
        if self._links.pop(link, None) is not None:
            self._unfinished.drop(link)
            self._routes.link_closed(link, reason)
            if self.registry is not None:
                self.registry.link_closed(link)

    def _close(self, link: int, reason: str, turn: Turn) -> None:
        """Close a link; what it still sends, and the news that it is closed, are of no interest any more."""
        peer = self._links[link].peer
        times = self._closings.note(peer.rpartition(":")[0], self._unfinished.now_ms)
        if times:
            _log.warning("link closed peer=%s times=%d reason=%s", peer, times, reason)
        self._forget(link, reason)
        turn.closes.append((link, reason))

    def _make_room(self, turn: Turn) -> None:
        for frame in self._unfinished.surplus(self._config.unfinished_bytes_max):
            self._close_unfinished(frame, "more than unfinishedFramesMax begun on all connections", turn)

    def _close_unfinished(self, frame: TooMuch, why: str, turn: Turn) -> None:
        """Somebody begins frames and does not end them: one line per address and minute."""
        peer = self._links[frame.link].peer
        times = self._refusals.note(peer.rpartition(":")[0], self._unfinished.now_ms)
        if times:
            _log.warning(
                "link closed peer=%s times=%d reason=%d bytes of a frame begun %d ms ago: %s",
                peer,
                times,
                frame.size,
                frame.age_ms,
                why,
            )
        self._forget(frame.link, "frame not ended")
        turn.closes.append((frame.link, "frame not ended"))

    def _scan_interval_ms(self) -> int:
        return max(1, min(self._config.broker_expiry_ms, self._config.connection_idle_ms) // SCANS_PER_TIMEOUT)

    def _scan(self, turn: Turn, now_ms: int) -> None:
        for link in self._routes.expire(now_ms):
            if link in self._links:
                self._close(link, "the broker that registered through it was silent for too long", turn)
        idle_since_ms = now_ms - self._config.connection_idle_ms
        for link in [number for number, link in self._links.items() if link.heard_ms < idle_since_ms]:
            self._close(link, f"nothing came for {self._config.connection_idle_ms} ms", turn)
        for frame in self._unfinished.overdue(self._config.connection_idle_ms):
            self._close_unfinished(frame, f"not ended within {self._config.connection_idle_ms} ms", turn)
        self._next_scan_ms = now_ms + self._scan_interval_ms() if self._links else None

    def _receive(self, number: int, data: bytes, turn: Turn, now: Now) -> None:
        link = self._links.get(number)
        if link is None:
            return
        link.heard_ms = now.mono_ms
        try:
            for frame in link.decoder.feed(data):
                request = decode_command(frame)
                if not request.is_response:
                    self._answer(number, link, request, turn, now)
        except ProtocolError as error:
            self._close(number, str(error), turn)
            return
        if link.decoder.error is not None:
            self._close(number, str(link.decoder.error), turn)

    def _answer(self, number: int, link: _Link, request: Command, turn: Turn, now: Now) -> None:
        busy = None if request.is_oneway else self._answered.refusal(number)
        if busy is not None:
            answer: Command | None = request.answer(ResponseCode.SYSTEM_BUSY, remark=busy)
        else:
            answer = self._handle(request, number, now)
        if answer is not None and not request.is_oneway:
            self._send(number, link, answer, turn)

    def _send(self, number: int, link: _Link, answer: Command, turn: Turn) -> None:
        data: Buffer = encode_command(answer)
        link.sent_bytes += len(data)
        self._answered.note(number, len(data))
        waiting = link.sent_bytes + (self._outbox.backlog(number) if self._outbox is not None else 0)
        if waiting > BACKLOG_BYTES_MAX:
            raise ProtocolError(f"{waiting} bytes of answers wait for this link, which does not read them")
        turn.send(number, data)

    def _tell_min_ids(self, turn: Turn) -> None:
        """Tell the members of a group that another one has the smallest id now, if that is wanted (5.x)."""
        if not self._routes.min_id_changes:
            return
        changes, self._routes.min_id_changes = self._routes.min_id_changes, []
        for change in changes if self._config.notify_min_id else ():
            fields = {
                "minBrokerId": str(change.broker_id),
                "brokerName": change.broker_name,
                "minBrokerAddr": change.address,
                "offlineBrokerAddr": change.offline,
                "haBrokerAddr": change.ha_address,
            }
            told = {name: value for name, value in fields.items() if value}
            frame = encode_command(Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, 0, FLAG_ONEWAY, fields=told))
            for link in change.links:
                if link in self._links:
                    turn.send(link, frame)

    # Requests.

    def _handle(self, request: Command, link: int, now: Now) -> Command | None:
        """Answer a request; None: the registry answers it later."""
        handler = self._handlers.get(request.code)
        if handler is None:
            return request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        try:
            return handler(request, link, now)
        except (RemoteError, StoreError) as error:
            self._log_refused(request, link, error, now)
            return request.answer(error.code or ResponseCode.SYSTEM_ERROR, remark=str(error))

    def _log_refused(self, request: Command, link: int, error: Exception, now: Now) -> None:
        """One line per address, request code and minute."""
        peer = self._links[link].peer
        times = self._refused_requests.note(f"{peer.rpartition(':')[0]} {request.code}", now.mono_ms)
        if times:
            _log.warning(
                "request refused code=%d peer=%s times=%d reason=%s", request.code, peer, times, brief(error, 1_000)
            )

    def _turn_registry(self, registry: RegistryHost, turn: Turn, now: Now) -> None:
        registry.tick(turn, now)
        for number, answer in registry.answers():
            link = self._links.get(number)
            if link is None:
                continue
            try:
                self._send(number, link, answer, turn)
            except ProtocolError as error:
                self._close(number, str(error), turn)

    def close(self) -> None:
        """Give the registry's files back."""
        if self.registry is not None:
            self.registry.close()

    def _table(self) -> dict[int, _Handler]:
        handlers: dict[int, _Handler] = {}
        if self.registry is not None:
            handlers.update(dict.fromkeys(REGISTRY_CODES, self.registry.take))
        return handlers | {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._get_route,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._get_member_group,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._get_cluster_info,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_sub_but_no_unit_topics,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._get_kv_list,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    def _get_route(self, request: Command, _link: int, _now: Now) -> Command:
        topic = required(request, "topic")
        strict = request.version >= _STRICT_JSON_FROM_VERSION or boolean_field(request, "acceptStandardJsonOnly")
        order = self._kv.get(ORDER_NAMESPACE, topic) if self._config.order_message_enable else None
        body = self._routes.route(topic, strict=strict, order=order)
        if body is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info in name server for the topic: {topic}"
            )
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _register_broker(self, request: Command, link: int, now: Now) -> Command:
        try:
            told = read_registration(request)
        except ProtocolError:
            self._keep_registered(request, now)
            raise
        master = self._routes.register(told, link, now.mono_ms)
        fields = {"haServerAddr": master.ha_address, "masterAddr": master.address} if master.address else {}
        order = self._kv.namespace(ORDER_NAMESPACE)
        return request.answer(
            ResponseCode.SUCCESS, fields=fields, body=b"" if order is None else dumps_java({"table": order})
        )

    def _keep_registered(self, request: Command, now: Now) -> None:
        """A registration cannot be read: the one before stays good, and its broker is known to live."""
        names = ("clusterName", "brokerName", "brokerAddr")
        cluster, name, address = (request.fields.get(key, "") for key in names)
        with suppress(ProtocolError):
            if self._routes.is_registered(cluster, name, integer_field(request, "brokerId"), address):
                self._routes.heard(cluster, address, now.mono_ms)

    def _unregister_broker(self, request: Command, _link: int, _now: Now) -> Command:
        self._routes.unregister(required(request, "brokerName"), required(request, "brokerAddr"))
        return request.answer(ResponseCode.SUCCESS)

    def _query_data_version(self, request: Command, _link: int, now: Now) -> Command:
        asked = read_version(loads(request.body)) if request.body else None
        known = self._routes.heard(required(request, "clusterName"), required(request, "brokerAddr"), now.mono_ms)
        return request.answer(
            ResponseCode.SUCCESS,
            fields={"changed": "false" if known is not None and known == asked else "true"},
            body=b"" if known is None else dumps_java(known.as_json()),
        )

    def _broker_heartbeat(self, request: Command, _link: int, now: Now) -> Command:
        self._routes.heard(required(request, "clusterName"), required(request, "brokerAddr"), now.mono_ms)
        return request.answer(ResponseCode.SUCCESS)

    def _get_member_group(self, request: Command, _link: int, _now: Now) -> Command:
        cluster, name = required(request, "clusterName"), required(request, "brokerName")
        group = {"brokerAddrs": self._routes.addresses(cluster, name), "brokerName": name, "cluster": cluster}
        return request.answer(ResponseCode.SUCCESS, body=dumps_java({"brokerMemberGroup": group}))

    def _get_cluster_info(self, request: Command, _link: int, _now: Now) -> Command:
        return request.answer(ResponseCode.SUCCESS, body=dumps_java(self._routes.clusters()))

    def _register_topic(self, request: Command, _link: int, _now: Now) -> Command:
        self._routes.add_topic(name_field(request, "topic"), read_queue_datas(request.body))
        return request.answer(ResponseCode.SUCCESS)

    def _delete_topic(self, request: Command, _link: int, _now: Now) -> Command:
        self._routes.delete_topic(required(request, "topic"), request.fields.get("clusterName", ""))
        return request.answer(ResponseCode.SUCCESS)

    def _wipe_write_permission(self, request: Command, _link: int, _now: Now) -> Command:
        count = self._routes.wipe_write_permission(required(request, "brokerName"))
        return request.answer(ResponseCode.SUCCESS, fields={"wipeTopicCount": str(count)})

    def _add_write_permission(self, request: Command, _link: int, _now: Now) -> Command:
        count = self._routes.add_write_permission(required(request, "brokerName"))
        return request.answer(ResponseCode.SUCCESS, fields={"addTopicCount": str(count)})

    def _all_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return _topic_list(request, self._routes.topics())

    def _topics_by_cluster(self, request: Command, _link: int, _now: Now) -> Command:
        return _topic_list(request, self._routes.topics_of_cluster(required(request, "cluster")))

    def _system_topics(self, request: Command, _link: int, _now: Now) -> Command:
        topics, address = self._routes.system_topics()
        return _topic_list(request, topics, address)

    def _unit_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return _topic_list(request, self._routes.topics_with_flag(UNIT_FLAG))

    def _unit_sub_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return _topic_list(request, self._routes.topics_with_flag(UNIT_SUB_FLAG))

    def _unit_sub_but_no_unit_topics(self, request: Command, _link: int, _now: Now) -> Command:
        return _topic_list(request, self._routes.topics_with_flag(UNIT_SUB_FLAG, UNIT_FLAG))

    def _put_kv(self, request: Command, _link: int, _now: Now) -> Command:
        self._kv.put(required(request, "namespace"), required(request, "key"), required(request, "value"))
        return request.answer(ResponseCode.SUCCESS)

    def _get_kv(self, request: Command, _link: int, _now: Now) -> Command:
        namespace, key = required(request, "namespace"), required(request, "key")
        value = self._kv.get(namespace, key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return request.answer(ResponseCode.SUCCESS, fields={"value": value})

    def _delete_kv(self, request: Command, _link: int, _now: Now) -> Command:
        self._kv.delete(required(request, "namespace"), required(request, "key"))
        return request.answer(ResponseCode.SUCCESS)

    def _get_kv_list(self, request: Command, _link: int, _now: Now) -> Command:
        namespace = required(request, "namespace")
        table = self._kv.namespace(namespace)
        if table is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return request.answer(ResponseCode.SUCCESS, body=dumps_java({"table": table}))

    def _update_config(self, request: Command, _link: int, _now: Now) -> Command:
        try:
            self._config, applied = changed(self._config, request.body.decode())
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the settings are not UTF-8: {error}") from error
        except ConfigError as error:
            return request.answer(ResponseCode.NO_PERMISSION, remark=str(error))
        self._routes.expiry_ms = self._config.broker_expiry_ms
        _log.info("settings changed keys=%s", ",".join(applied))
        return request.answer(ResponseCode.SUCCESS)

    def _get_config(self, request: Command, _link: int, _now: Now) -> Command:
        return request.answer(ResponseCode.SUCCESS, body=as_properties(self._config).encode())


def _topic_list(request: Command, topics: list[str], address: str | None = None) -> Command:
    body: dict[str, object] = {} if address is None else {"brokerAddr": address}
    return request.answer(ResponseCode.SUCCESS, body=dumps_java({**body, "topicList": topics}))
