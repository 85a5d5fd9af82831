"""Decoding of broker registrations (REGISTER_BROKER) and of the header fields of requests.

The body has one of three forms:

    JSON        {"topicConfigSerializeWrapper":{"dataVersion":…,"topicConfigTable":{…}},"filterServerList":[]}
    bare JSON   the inner wrapper alone, from brokers before 3.0.11
    compressed  zlib of: n data version JSON · count · count x (n "name read write perm filter [attributes]") ·
                n filter servers JSON · from 5.0 on: count x (n mapping JSON)       every n and count 4 bytes

A compressed body is recognised by its first byte, not by the header: a 5.3 broker compresses and sets the header field
to false.

A body that cannot be read is an error of the sender. A single topic with an invalid name or number is left out and
logged, so that the broker's other topics stay available.

Limits: an inflated body has at most 32 MiB, names 255 printable characters, a topic 65,536 queues,
a broker 100,000 topics.
Source: docs/reference/requests.md, "Name server"; RocketMQ RegisterBrokerBody, TopicConfig.
"""

import json
import logging
import re
import zlib
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, NamedTuple

from tandemq.codec.remoting.bodies import convert, integer
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.command import Command
from tandemq.nameserver.broker_data import NO_VERSION, BrokerRegistration, TopicQueues, Version

INFLATED_BYTES_MAX = 32 << 20
NAME_CHARACTERS_MAX = 255
QUEUES_MAX = 65_536
TOPICS_MAX = 100_000
TIMEOUT_MS_MAX = 3_600_000
TABLE_VERSION_FIELD = "tandemDataVersion"
"""Of a TandemQ broker: the version of its whole table, the same in all pieces of a registration."""
ZONE_FIELD = "__ZONE_NAME"
WEIGHT_MAX = 1_000_000
MODES = frozenset({"slave-consume", "elect"})
_VERSION_WITH_FULL_BODY = 37
_VERSION_WITH_MAPPINGS = 413
_NO_QUEUES = TopicQueues(0, 0, 0)
_TOPIC_DEFAULTS = TopicQueues(6, 16, 16)
"""Used for missing numbers of a topic, as in RocketMQ's TopicConfig."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_LENGTH = Struct(">i")
_log = logging.getLogger(__name__)


def required(request: Command, name: str) -> str:
    """Return a header field that must be present and not empty.

    Raises:
        ProtocolError: it is missing or empty.
    """
    value = request.fields.get(name)
    if not value:
        raise ProtocolError(f"request {request.code}: the header field {name} is missing")
    return value


def name_field(request: Command, name: str) -> str:
    """Return a required header field that is a name or an address: printable and at most NAME_CHARACTERS_MAX long.

    Raises:
        ProtocolError: it is missing or invalid.
    """
    value = required(request, name)
    if not _is_name(value):
        raise ProtocolError(
            f"request {request.code}: the header field {name} is not a valid name: at most "
            f"{NAME_CHARACTERS_MAX} printable characters are allowed, it has {len(value)}"
        )
    return value


def integer_field(request: Command, name: str, default: int | None = None) -> int:
    """Return an integer header field, read as Java does: sign and digits, 64 bits.

    Raises:
        ProtocolError: it is not such a number, or missing without a default.
    """
    if default is not None and not request.fields.get(name):
        return default
    value = required(request, name)
    number = int(value) if _INTEGER.match(value) else None
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise ProtocolError(f"request {request.code}: the header field {name} is not an integer: {value[:32]!r}")
    return number


def boolean_field(request: Command, name: str) -> bool:
    """Return a boolean header field, read as Java does: "true" in any case is true, everything else is false."""
    return request.fields.get(name, "").lower() == "true"


def read_registration(request: Command) -> BrokerRegistration:
    """Decode a REGISTER_BROKER request.

    Raises:
        ProtocolError: fields are missing or wrong, the checksum does not match, or the body cannot be read.
    """
    checksum = integer_field(request, "bodyCrc32", 0)
    if checksum and checksum != zlib.crc32(request.body) & 0x7FFFFFFF:
        raise ProtocolError(
            f"crc32 not match: the header says {checksum}, "
            f"the body of {len(request.body)} bytes has {zlib.crc32(request.body) & 0x7FFFFFFF}"
        )
    broker_id = integer_field(request, "brokerId")
    if broker_id < 0:
        raise ProtocolError(f"brokerId {broker_id}: 0 is the master, slaves count from 1")
    timeout_ms = integer_field(request, "heartbeatTimeoutMillis", 0)
    if not 0 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise ProtocolError(f"heartbeatTimeoutMillis {timeout_ms}: 1 to {TIMEOUT_MS_MAX} are allowed")
    weight = integer_field(request, "brokerWeight", -1)
    if weight > WEIGHT_MAX:
        raise ProtocolError(f"brokerWeight {weight}: 0 to {WEIGHT_MAX} are allowed")
    mode = request.fields.get("failoverMode", "")
    body = _read_body(request)
    return BrokerRegistration(
        cluster=name_field(request, "clusterName"),
        broker_name=name_field(request, "brokerName"),
        broker_id=broker_id,
        address=name_field(request, "brokerAddr"),
        ha_address=request.fields.get("haServerAddr", "")[:NAME_CHARACTERS_MAX],
        version=body.version,
        topics=body.topics,
        mappings=body.mappings,
        filter_servers=body.filter_servers,
        timeout_ms=timeout_ms or None,
        acting_master=boolean_field(request, "enableActingMaster"),
        zone=request.fields.get(ZONE_FIELD, "")[:NAME_CHARACTERS_MAX] or None,
        weight=weight if weight >= 0 else None,
        mode=mode if mode in MODES else "",
    )


def read_version(value: Any) -> Version:
    """Decode a data version from a peer's JSON; missing parts are 0.

    Raises:
        ProtocolError: it is not a data version.
    """
    if value is None:
        return Version()
    table = _table(value, "dataVersion")
    return Version(_integer(table, "counter"), _integer(table, "stateVersion"), _integer(table, "timestamp"))


def read_queue_datas(body: bytes) -> dict[str, TopicQueues]:
    """Decode the queues of one topic by broker name from an encoded route.

    Raises:
        ProtocolError: it is not a route.
    """
    route = _table(loads(body), "the route")
    places: dict[str, TopicQueues] = {}
    for item in _list(route.get("queueDatas"), "queueDatas"):
        value = _table(item, "queueDatas")
        queues = _queues(value)
        name = value.get("brokerName")
        if queues is None or not isinstance(name, str) or not _is_name(name):
            raise ProtocolError("queueDatas: an entry has no brokerName, or numbers out of range")
        places[name] = queues
    return places


class _Body(NamedTuple):
    version: Version
    topics: dict[str, TopicQueues]
    filter_servers: tuple[str, ...]
    mappings: dict[str, dict[str, Any]]


def _read_body(request: Command) -> _Body:
    if not request.body:
        return _Body(NO_VERSION, {}, (), {})
    if request.body[0] == 0x78:  # the first byte of every zlib stream Java writes; JSON begins with { or white space
        return _Compressed(_inflate(request.body)).read(with_mappings=request.version >= _VERSION_WITH_MAPPINGS)
    if boolean_field(request, "compressed"):
        raise ProtocolError("the header says the body is compressed, but it is not a zlib stream")
    outer = _table(loads(request.body), "the body")
    bare = request.version < _VERSION_WITH_FULL_BODY and "topicConfigTable" in outer
    wrapper = outer if bare else _table(outer.get("topicConfigSerializeWrapper") or {}, "topicConfigSerializeWrapper")
    table = _table(wrapper.get("topicConfigTable") or {}, "topicConfigTable")
    topics = _topics(
        (name, _queues(_table(value, "topicConfigTable"), _TOPIC_DEFAULTS))
        for name, value in table.items()
        if value is not None
    )
    mappings: dict[str, dict[str, Any]] = {}
    for value in _table(wrapper.get("topicQueueMappingInfoMap") or {}, "topicQueueMappingInfoMap").values():
        _add_mapping(mappings, _table(value, "topicQueueMappingInfoMap"))
    servers = _servers(outer.get("filterServerList"))
    version = read_version(wrapper.get(TABLE_VERSION_FIELD) or wrapper.get("dataVersion"))
    return _Body(version, topics, servers, mappings)


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise ProtocolError(f"the compressed body cannot be read: {error}") from error
    if inflater.unconsumed_tail or not inflater.eof:
        raise ProtocolError(f"the compressed body is cut, or has more than {INFLATED_BYTES_MAX} bytes")
    return data


class _Compressed:
    """Reader of an inflated body, front to back."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read(self, *, with_mappings: bool) -> _Body:
        version = read_version(loads(self._block()))
        topics = _topics(_parse_topic(self._text()) for _ in range(self._count()))
        servers = _servers(loads(self._block()))
        mappings: dict[str, dict[str, Any]] = {}
        if with_mappings:
            for _ in range(self._count()):
                _add_mapping(mappings, _table(loads(self._block()), "a mapping"))
        return _Body(version, topics, servers, mappings)

    def _count(self) -> int:
        end = self._position + 4
        if end > len(self._data):
            raise ProtocolError("the compressed body ends too early")
        count: int = _LENGTH.unpack_from(self._data, self._position)[0]
        # Everything counted has at least its own length of four bytes, so no count can exceed the rest.
        if not 0 <= count <= len(self._data) - end:
            raise ProtocolError(f"the compressed body announces {count} where {len(self._data) - end} bytes are left")
        self._position = end
        return count

    def _block(self) -> bytes:
        size = self._count()
        block = self._data[self._position : self._position + size]
        self._position += size
        return block

    def _text(self) -> str:
        try:
            return self._block().decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a topic in the compressed body is not UTF-8: {error}") from error


def _parse_topic(text: str) -> tuple[str, TopicQueues | None]:
    parts = text.split(" ", 5)
    if len(parts) < 5 or not all(_INTEGER.match(part) for part in parts[1:4]):
        return parts[0], None
    read, write, perm = (int(part) for part in parts[1:4])
    return parts[0], _in_range(perm, read, write, 0)


def _queues(value: Mapping[str, Any], defaults: TopicQueues = _NO_QUEUES) -> TopicQueues | None:
    """Decode the queues of a topic; None if a number is invalid or out of range."""
    try:
        return _in_range(
            _integer(value, "perm", defaults.perm),
            _integer(value, "readQueueNums", defaults.read_queue_nums),
            _integer(value, "writeQueueNums", defaults.write_queue_nums),
            _integer(value, "topicSysFlag", defaults.topic_sys_flag),
        )
    except ProtocolError:
        return None


def _in_range(perm: int, read: int, write: int, flag: int) -> TopicQueues | None:
    fits = 0 <= perm < 1 << 31 and 0 <= read <= QUEUES_MAX and 0 <= write <= QUEUES_MAX and abs(flag) < 1 << 31
    return TopicQueues(perm, read, write, flag) if fits else None


def _topics(registered: Iterable[tuple[str, TopicQueues | None]]) -> dict[str, TopicQueues]:
    """Return the valid topics; log how many are invalid."""
    topics: dict[str, TopicQueues] = {}
    invalid = 0
    first = ""
    for count, (name, queues) in enumerate(registered, start=1):
        if count > TOPICS_MAX:
            raise ProtocolError(f"a broker may register {TOPICS_MAX} topics, this one registers more")
        if queues is not None and _is_name(name):
            topics[name] = queues
        else:
            invalid, first = invalid + 1, first or name
    if invalid:
        _log.warning(
            "topics left out of a registration, their names or numbers are out of range count=%d first=%.64r",
            invalid,
            first,
        )
    return topics


def _add_mapping(mappings: dict[str, dict[str, Any]], value: Mapping[str, Any]) -> None:
    """Keep and check what clients of a static topic need; `currIdMap` maps queue ids to the broker's queues."""
    topic, broker_name, scope = (value.get(key) for key in ("topic", "bname", "scope"))
    if not isinstance(topic, str) or not isinstance(broker_name, str) or not _is_name(topic + broker_name):
        raise ProtocolError("a topic queue mapping has no topic or no bname")
    ids = _table(value.get("currIdMap") or {}, "currIdMap")
    mappings[topic] = {
        "bname": broker_name,
        "currIdMap": {integer(key, "currIdMap"): integer(item, "currIdMap") for key, item in ids.items()},
        "dirty": convert(value.get("dirty") or False, bool, "dirty"),
        "epoch": _integer(value, "epoch"),
        "scope": scope if isinstance(scope, str) and _is_name(scope) else "__global__",
        "topic": topic,
        "totalQueues": _integer(value, "totalQueues"),
    }


def _servers(value: Any) -> tuple[str, ...]:
    servers = [server for server in _list(value, "filterServerList") if server is not None]
    if not all(isinstance(server, str) and _is_name(server) for server in servers):
        raise ProtocolError("filterServerList: a list of addresses is expected")
    return tuple(servers)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_CHARACTERS_MAX and text.isprintable()


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{what}: a JSON object is expected, not {json.dumps(value)[:32]}")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ProtocolError(f"{what}: a JSON list is expected")
    return value


def _integer(table: Mapping[str, Any], key: str, default: int = 0) -> int:
    """Return a number, read as fastjson does; `default` if it is missing."""
    return integer(table.get(key), key, default)
