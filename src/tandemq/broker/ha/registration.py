"""Registration of the broker and its topics at the name servers, which return the address of the master.

Many topics are sent in pieces of at most `PIECE_TOPICS` topics and `PIECE_BYTES`, each a complete registration, as with
RocketMQ 5's `enableSplitRegistration`: name servers merge topics, they never remove the missing ones. RocketMQ's
name servers skip the topics of a registration whose data version equals the last one, so each piece has a version of
its own: the last piece that of the table, each before it a timestamp one millisecond smaller than the next. A TandemQ
name server uses the table's own version, which is the same in all pieces (`TABLE_VERSION`). A broker is registered
where every piece was accepted. At most one table per name server is in flight, except after a change of the role.

A name server that has accepted all topics is sent only those that change, at once, in a registration with the new data
version, as RocketMQ brokers do, or with `enableSingleTopicRegister` each in a request of its own. Above `CHANGES_MAX`
requests without a response changes are gathered. If one fails, all topics are sent again, with a timestamp of their
own: the name server may know the version already.

Source: docs/reference/requests.md, "REGISTER_BROKER"; RocketMQ BrokerOuterAPI, RouteInfoManager.
"""

import logging
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.peers import OnAnswer
from tandemq.broker.kernel.serving import Registered, Serving
from tandemq.codec.remoting.fastjson import dumps
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief
from tandemq.model.topic import Permission, TopicConfig

log = logging.getLogger(__name__)
PIECE_TOPICS = 2_000
PIECE_BYTES = 2 << 20
CHANGES_MAX = 64
"""Maximum number of registrations of changed topics in flight to a name server."""
TABLE_VERSION = "tandemDataVersion"
REGISTER_AGAIN_MS = 2_000
WEIGHT_DEFAULT = 100
"""Weight of broker groups that publish none."""
MasterFound = Callable[[str, str, Now], None]
"""Called with the remoting address and the HA address of the master; "" where unknown."""


@dataclass(slots=True)
class _Round:
    """The pieces of one registration at one name server."""

    pieces: int
    left: int
    """Pieces without a response yet."""
    failure: str = ""
    """Why a piece was not accepted."""
    is_shifted: bool = False
    """Whether its data version differs from that of the table."""


@dataclass(slots=True)
class _NameServer:
    """What is known of the registration at one name server."""

    last_round: _Round = field(default_factory=lambda: _Round(0, 0))
    """Its last registration of all topics."""
    names: dict[str, None] = field(default_factory=dict)
    """Topics that changed since, and were not sent."""
    needs_all: bool = False
    """Whether all topics are to be sent again, once `last_round` is answered."""
    changes_in_flight: int = 0
    """Registrations of changed topics without a response."""
    is_complete: bool = False
    """Whether it accepted all topics on the present connection, and all later changes that it has answered."""
    is_uncertain: bool = False
    """Whether a change was refused since `last_round`: the server may know our data version without the topics."""


class Registration(Feature):
    """Registers at every name server: at the start, periodically, and when a topic changes."""

    def __init__(self, kernel: Kernel, master_found: MasterFound) -> None:
        """`master_found`: called with the master that a name server names. Nothing is sent before `listening`."""
        self._current = kernel.current
        self._topics = kernel.topics
        self._peers = kernel.peers
        self._schedule = kernel.schedule
        self._turn = kernel.turn
        self._master_found = master_found
        self._own = kernel.own
        self._as = Registered(None)
        self.registered: set[str] = set()
        """Name servers that accepted the last registration."""
        self._is_due = False
        """Whether a registration is scheduled because a connection closed."""
        self._logged: dict[str, str] = {}
        """By name server: the failure that was logged last; "": success."""
        self._name_servers: dict[str, _NameServer] = {}
        self._has_gathered = False
        """Whether changes that were gathered can be sent now."""

    @property
    def _config(self) -> BrokerConfig:
        return self._current.config

    @property
    def is_due(self) -> bool:
        """Whether changes are to be registered at the end of this turn."""
        return bool(self._own.address) and (self._topics.changed or self._has_gathered)

    def register(self, turn: Turn, now: Now, *, is_urgent: bool = False) -> None:
        """Register all topics. `is_urgent`: also where the last registration of all is not answered yet."""
        self._topics.take_unregistered()
        if self.broker_id is None:
            return
        addresses = [
            address for address in self._config.name_servers if is_urgent or not self._at(address).last_round.left
        ]
        if is_urgent:
            for address in addresses:
                self._at(address).is_complete = False
        self._send_all(addresses, turn, now)

    def register_changes(self, turn: Turn, now: Now) -> None:
        """Register the topics that changed; all of them where they are not known."""
        names, is_whole = self._topics.take_unregistered()
        self._has_gathered = False
        if self.broker_id is None:
            return
        incomplete: list[str] = []
        for address in self._config.name_servers:
            server = self._at(address)
            server.names.update(names)
            server.needs_all = server.needs_all or is_whole
            if server.is_complete and not server.needs_all:
                self._send_changes(address, server, turn, now)
            elif (server.needs_all or server.names) and not server.last_round.left:
                incomplete.append(address)
        self._send_all(incomplete, turn, now)

    def _at(self, address: str) -> _NameServer:
        return self._name_servers.setdefault(address, _NameServer())

    def _send_all(self, addresses: list[str], turn: Turn, now: Now) -> None:
        bodies: dict[bool, list[bytes]] = {}
        for address in addresses:
            server = self._at(address)
            shift = server.is_uncertain
            if shift not in bodies:
                bodies[shift] = self._bodies(self._topics.table, shift)
            server.names.clear()
            server.needs_all = server.is_uncertain = False
            count = len(bodies[shift])
            current = server.last_round = _Round(count, count, is_shifted=shift)
            for body in bodies[shift]:
                on_answer = self._answered(address, current)
                self._peers.call(
                    address, self._registration(body), self._config.register_timeout_ms, on_answer, turn, now
                )

    def _send_changes(self, address: str, server: _NameServer, turn: Turn, now: Now) -> None:
        room = CHANGES_MAX - server.changes_in_flight
        if room <= 0:
            return
        names = list(server.names)[: room if self._config.single_topic_register else None]
        for name in names:
            del server.names[name]
        for command in self._changes([name for name in names if name in self._topics.table]):
            server.changes_in_flight += 1
            on_answer = self._changes_answered(address, server)
            self._peers.call(address, command, self._config.register_timeout_ms, on_answer, turn, now)

    def _changes(self, names: list[str]) -> list[Command]:
        """Return the requests that register changed topics."""
        if not self._config.single_topic_register:
            return [self._registration(body) for body in self._bodies(names)] if names else []
        # The request for a single topic has no place for the mapping of a static one.
        static = [name for name in names if name in self._topics.mappings.table]
        whole = [self._registration(body) for body in self._bodies(static)] if static else []
        # The topic counts for the whole group, so that a slave, whose table may be older, leaves it to the master.
        single = [name for name in names if name not in self._topics.mappings.table] if self.broker_id == 0 else []
        return whole + [self._single_topic(name) for name in single]

    def _single_topic(self, name: str) -> Command:
        config = self._allowed({name: self._topics.table[name].config})[name]
        queues = {
            "brokerName": self._config.broker_name,
            "perm": config.perm,
            "readQueueNums": config.read_queue_nums,
            "topicSysFlag": config.topic_sys_flag,
            "writeQueueNums": config.write_queue_nums,
        }
        body = dumps({"brokerDatas": [], "filterServerTable": {}, "queueDatas": [queues]})
        return Command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, fields={"topic": name}, body=body)

    def _registration(self, body: bytes) -> Command:
        return Command(RequestCode.REGISTER_BROKER, fields=self._fields(body), body=body)

    def closed(self, address: str, now: Now) -> None:
        """Register again soon if a name server's connection closed: it removes the broker with the connection."""
        if address in self._name_servers:
            self._name_servers[address].is_complete = False
        if address in self._config.name_servers and not self._is_due:
            self._is_due = True
            self._schedule.at(now.mono_ms + min(REGISTER_AGAIN_MS, self._config.register_ms), self._register_again)

    def _register_again(self, now: Now) -> None:
        self._is_due = False
        if self._own.address:
            self.register(self._turn.out, now)

    def _fields(self, body: bytes) -> dict[str, str]:
        return self._identity(self.broker_id) | {
            "haServerAddr": self._own.ha_address,
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            **self._selection_fields(),
        }

    def _bodies(self, names: Iterable[str], shift: int = 0) -> list[bytes]:
        """Encode topics, in as many pieces as they need.

        `shift`: milliseconds by which the data version of the last piece differs from that of the table.
        """
        pieces = self._pieces(names)
        return [
            dumps(
                {
                    "filterServerList": [],
                    "topicConfigSerializeWrapper": self._wrapper(piece, len(pieces) - number + shift),
                }
            )
            for number, piece in enumerate(pieces, start=1)
        ]

    def _pieces(self, names: Iterable[str]) -> list[list[str]]:
        pieces: list[list[str]] = [[]]
        size = 0
        for name in names:
            size += self._bytes_of(name)
            # At least two: RocketMQ 5 refuses an unknown broker with a single topic.
            if len(pieces[-1]) >= PIECE_TOPICS or (size > PIECE_BYTES and len(pieces[-1]) > 1):
                pieces.append([])
                size = self._bytes_of(name)
            pieces[-1].append(name)
        return pieces

    def _bytes_of(self, name: str) -> int:
        mapping = self._topics.mappings.table.get(name)
        return self._topics.table[name].bytes_in_table + (0 if mapping is None else 400 + 20 * mapping.total_queues)

    def _identity(self, broker_id: int | None) -> dict[str, str]:
        return {
            "brokerName": self._config.broker_name,
            "brokerAddr": self._own.address,
            "clusterName": self._config.cluster,
            "brokerId": str(broker_id),
        }

    def _selection_fields(self) -> dict[str, str]:
        """Return the fields by which producers choose broker groups; RocketMQ name servers pass on only the zone."""
        weight = self._config.weight if self._as.weight is None else self._as.weight
        fields = {
            "brokerWeight": str(weight) if weight != WEIGHT_DEFAULT else "",
            "failoverMode": self._as.mode,
            "__ZONE_NAME": self._config.zone,
        }
        return {name: value for name, value in fields.items() if value}

    def _wrapper(self, names: list[str], following: int) -> dict[str, object]:
        """Return topics limited to the permission of the broker, in the form that 4.9 and 5.x name servers read.

        Args:
            names: names of the topics.
            following: number of pieces that follow this one.
        """
        table = self._topics.as_json(names)
        if self.epoch:
            table["dataVersion"]["stateVersion"] = self.epoch
        table[TABLE_VERSION] = dict(table["dataVersion"])
        table["dataVersion"]["timestamp"] -= following
        table["topicConfigTable"] = self._allowed(table["topicConfigTable"])
        mappings = self._topics.mappings.table
        infos = {name: mappings[name].as_info() for name in names if name in mappings} if mappings else {}
        return table | ({"topicQueueMappingInfoMap": infos} if infos else {})

    def _allowed(self, configs: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
        """Return topics limited to the permission of the broker."""
        allowed = self._config.permission
        if allowed & Permission.READ_WRITE == Permission.READ_WRITE:
            return configs
        return {
            name: msgspec.structs.replace(config, perm=config.perm & (allowed | Permission.INHERIT))
            for name, config in configs.items()
        }

    def _answered(self, address: str, current: _Round) -> OnAnswer:
        def on_answer(answer: Command | None, now: Now) -> None:
            current.left -= 1
            current.failure = current.failure or _failure(answer)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._master_found(answer.fields.get("masterAddr", ""), answer.fields.get("haServerAddr", ""), now)
            if current.left == 0 or current.failure:
                self._note(address, current.failure)
            if current.left == 0 and current is self._at(address).last_round:
                self._round_ended(self._at(address), current)

        return on_answer

    def _round_ended(self, server: _NameServer, current: _Round) -> None:
        if current.failure:
            server.is_complete = False
            server.is_uncertain = server.is_uncertain or current.is_shifted
        else:
            server.is_complete = not server.is_uncertain
            server.needs_all = server.needs_all or server.is_uncertain
        if server.names or server.needs_all:
            self._has_gathered = True

    def _changes_answered(self, address: str, server: _NameServer) -> OnAnswer:
        def on_answer(answer: Command | None, _now: Now) -> None:
            server.changes_in_flight -= 1
            failure = _failure(answer)
            if failure:
                server.is_complete, server.is_uncertain = False, True
                self._note(address, failure)
            elif server.names:
                self._has_gathered = True

        return on_answer

    def _note(self, server: str, failure: str) -> None:
        """Record the outcome at a name server; log a line when it changes."""
        if failure:
            self.registered.discard(server)
        else:
            self.registered.add(server)
        if self._logged.get(server) != failure:
            self._logged[server] = failure
            if failure:
                log.warning("registration: name_server=%s failure=%r", server, failure)
            else:
                log.info(
                    "registration: name_server=%s registered as %s id=%d at %s",
                    server,
                    self._config.broker_name,
                    self.broker_id,
                    self._own.address,
                )

    @property
    def broker_id(self) -> int | None:
        """The registered broker id, 0 for the master; None: not registered at present."""
        return self._as.broker_id

    @property
    def epoch(self) -> int:
        """The registered epoch."""
        return self._as.epoch

    def listening(self, _address: str, _ha_address: str, now: Now) -> None:
        """Register from now on."""
        self._schedule.every(
            lambda: self._config.register_ms, lambda now: self.register(self._turn.out, now), first_ms=now.mono_ms
        )

    def on_serving_change(self, _before: Serving, serving: Serving, turn: Turn, now: Now) -> None:
        """Register again after a change of the role in the broker group, or unregister."""
        before, self._as = self._as, serving.registered
        if before == self._as or not self._own.address:
            return
        if self.broker_id != before.broker_id and before.broker_id is not None:
            self._unregister(before.broker_id, turn)
        self.register(turn, now, is_urgent=True)

    def unregister(self, turn: Turn) -> None:
        """Unregister at every name server."""
        if self.broker_id is not None:
            self._unregister(self.broker_id, turn)

    def _unregister(self, broker_id: int, turn: Turn) -> None:
        for server in sorted(self.registered):
            self._peers.send_oneway(
                server, Command(RequestCode.UNREGISTER_BROKER, fields=self._identity(broker_id)), turn
            )


def _failure(answer: Command | None) -> str:
    """Return why a registration was not accepted; "" if it was."""
    if answer is None:
        return "no answer"
    return "" if answer.code == ResponseCode.SUCCESS else f"refused: {brief(answer.remark)}"
