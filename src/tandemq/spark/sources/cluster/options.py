"""Options of `format("rocketmq")`, parsed and validated before any request to a cluster.

Names and meanings follow Spark's Kafka source where it has them. Names of the old rocketmq-spark connector are accepted
where they mean the same. Option names are case-insensitive: Spark passes them in lower case.

Source: docs/guides/pipeline.md, "The cluster as a source".
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from tandemq.client.core.requests import TOOLS_GROUP
from tandemq.client.core.settings import split_addresses
from tandemq.client.credentials import ENVIRONMENT, Signer
from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError
from tandemq.model.access import Credentials
from tandemq.model.group import parse_tag_expression
from tandemq.model.message import MessageQueue
from tandemq.model.topic import group_name_error, topic_name_error
from tandemq.spark.sources.cluster.kafka_options import check_refused
from tandemq.spark.sources.cluster.offsets import (
    EARLIEST,
    LATEST,
    Position,
    parse_offsets,
    parse_times,
    queue_id_of,
)
from tandemq.spark.sources.cluster.queue_choice import QueueBy
from tandemq.spark.sources.schema import NO_TABLES, check_no_table, did_you_mean

TIMEOUT_MS = 30_000
PULL_BATCH_SIZE = 4_096
TRIGGER_DELAY_MS = 15 * 60_000

TLS = {
    "tls": "whether connections use TLS; servers are verified. Default: `false`",
    "tlsCaFile": "trusted authorities, a PEM file on the driver and on every executor; default: those of the system",
    "tlsCertFile": "the client's certificate, PEM, for servers that require one; on every node too",
    "tlsKeyFile": "its private key, PEM; on every node too",
    "tlsCheckHost": "whether certificates must be for the addresses of name servers and brokers. Default: `true`",
}
"""Options of TLS, of source and sink, and their meaning as Markdown, for the page docs/reference/spark-options.md."""

USER = {
    "secretFile": "file with lines `accessKey: …` and `secretKey: …` of the user that signs requests "
    "(docs/reference/access.md), on the driver and on every executor; default: the user of the environment there",
    "accessKey": "name of that user, instead of a file",
    "secretKey": "its key. Spark redacts it where it shows options, and sends it to executors",
}
"""Options of the user, and their meaning."""

SOURCE = {
    "nameServer": "name servers, `host:port;host:port`",
    "subscribe": "topics, separated by commas",
    "subscribePattern": "a regular expression that names of topics match as a whole",
    "assign": 'queues: `{"Orders": {"broker-a": [0, 1]}}`; exactly one of these three is given',
    "startingOffsets": "`earliest` (the default, in streams `latest`), `latest`, or offsets "
    '(docs/guides/pipeline.md, "Offsets")',
    "endingOffsets": "`latest` (the default), or offsets; batch only",
    "startingTimestamp": "milliseconds since 1970: the first message stored then or later",
    "endingTimestamp": "the same, for the end; batch only",
    "startingOffsetsByTimestamp": 'such a time for each queue: `{"Orders": {"broker-a": {"0": 1700000000000}}}`; other '
    "queues are read from their start",
    "endingOffsetsByTimestamp": "the same, for the end; other queues are read to their end; batch only",
    "startingOffsetsByTimestampStrategy": "for a queue whose messages are all older than the starting time: `latest` "
    "(the default) starts at its end, `error` fails the query",
    "maxOffsetsPerTrigger": "maximum number of offsets of a micro-batch, divided among queues in proportion to their "
    "backlog; default: no limit",
    "minOffsetsPerTrigger": "minimum number of offsets of a micro-batch, new queues included; does not delay "
    "`availableNow`",
    "maxTriggerDelay": "maximum wait for `minOffsetsPerTrigger`, like `90s`; default: `15m`",
    "minPartitions": "minimum number of tasks; without it, large queues have one each, or more if they have far more "
    "messages than the others, and small ones share",
    "maxRecordsPerPartition": "maximum number of messages of a task",
    "groupIdPrefix": "prefix of the consumer group that pulls name, followed by a hash of the selection, so that "
    "brokers count them under it; without it, the tools' group",
    "includeHeaders": "the column `headers` too, as in Spark's Kafka source: properties except those of the system, "
    "`array<struct<key string, value binary>>`, NULL without any. Default: `false`",
    "failOnDataLoss": "whether missing messages fail the query, or are skipped with a warning. Default: `true`",
    "subExpression": "tags to read, like `paid || sent`; brokers filter out the others. A tag with a single `|` is "
    "refused, as no message has one. Default: `*`",
    "expressionType": "`TAG` (the default), or `SQL92`: `subExpression`, which must be given then, is an SQL92 filter "
    "(docs/reference/filters.md), for brokers with `enablePropertyFilter=true`",
    "readFrom": "`any` (the default): slaves first, else the master; `slave`: slaves only; `master`: the master, while "
    "it is alive",
    "commitGroup": "a consumer group whose offsets follow the stream's progress; streaming only",
    "schema": "`kafka`: Kafka's columns",
    "propertiesAs": "`string` (the default), or `map`: the properties as a map",
    "details": "the columns that only stored records have too. Default: `false`",
    "inflate": "whether compressed bodies are decompressed. Default: `true`",
    "pushDown": 'whether conditions (docs/guides/pipeline.md, "Filters") of the query narrow what is read; batch only. '
    "Default: `false`",
    "pullBatchSize": "maximum number of messages of one pull, 4096 unless set; RocketMQ's brokers return 32 unless "
    "they are configured otherwise",
    "timeoutMs": "timeout for a cluster that does not respond, or a message that should exist; each response extends "
    "that of a plan by 5 ms. Default: 30000",
    **TLS,
    **USER,
}
"""Options of the source, and their meaning."""

SINK = {
    "nameServer": SOURCE["nameServer"],
    "topic": "topic of all messages; it takes precedence over the column `topic`",
    "group": "producer group; default: `tandemq-spark`",
    "writeId": "seed of the unique keys, so that a repeated write has the same keys; batch only. Default: a new one",
    "requireSendOk": "whether messages stored without the configured flush or replica are sent again, and finally "
    "fail. Default: `false`",
    "timeoutMs": "time limit for a message, with all attempts. Default: 30000",
    "maxInFlight": "maximum number of messages in flight per task. Default: 4096",
    "queueBy": "what chooses the queue: `any`, the client; `key`, the hash of the message's keys; `partition`, that "
    "column. With the last two a task sends the messages of a queue in their order, also when it retries. Default: "
    "`any`",
    "includeHeaders": "whether the column `headers`, if there is one, becomes properties. Default: `true`",
    **TLS,
    **USER,
}
"""Options of the sink, and their meaning."""

LAG = {"nameServer": SOURCE["nameServer"], **TLS, **USER}
"""Options of the lag source, and their meaning."""

OLD_NAMES = {
    "nameserver.addr": "nameServer",
    "consumer.topic": "subscribe",
    "consumer.tag": "subExpression",
    "consumer.offset.reset.to": "startingOffsets",
    "pull.max.batch.size": "pullBatchSize",
    "producer.topic": "topic",
    "producer.group": "group",
}
"""Option by its name in the old connector."""

SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "truncate", "numrows"})
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroup")
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushDown")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class ReadFrom(Enum):
    """Members of a broker group to read, and their order."""

    ANY = "any"
    """Slaves first, then the master."""
    SLAVE = "slave"
    """Slaves only."""
    MASTER = "master"
    """The master first, its slaves while it is down."""


class Edge(Enum):
    """One end of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class StoreTime:
    """The first message stored at or after a timestamp."""

    wall_ms: int


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """The same with a timestamp for each queue, in milliseconds; other queues are read from their start, or to their
    end."""

    wall_ms: Mapping[MessageQueue, int]


Bound = Edge | StoreTime | StoreTimes | Position
"""Start or end of a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Parsed options of a source. Exactly one of `topics`, `pattern`, `assigned` selects the queues."""

    name_servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    starting: Bound
    ending: Bound = Edge.LATEST
    offsets_max: int | None = None
    offsets_min: int | None = None
    trigger_delay_ms: int = TRIGGER_DELAY_MS
    partitions_min: int | None = None
    records_max: int | None = None
    needs_match: bool = False
    """Whether a starting time that is later than all messages of a queue is an error."""
    group: str = TOOLS_GROUP
    """Consumer group that pulls name."""
    headers: bool = False
    fail_on_data_loss: bool = True
    expression: str = "*"
    expression_type: str = "TAG"
    read_from: ReadFrom = ReadFrom.ANY
    commit_group: str | None = None
    kafka: bool = False
    map_properties: bool = False
    details: bool = False
    inflates: bool = True
    pushes_down: bool = False
    pull_messages: int = PULL_BATCH_SIZE
    timeout_ms: int = TIMEOUT_MS
    tls: ClientTls | None = None
    signer: Signer = ENVIRONMENT

    @property
    def tags(self) -> frozenset[str] | None:
        """Tags to read; None for all."""
        return parse_tags(self.expression) if self.expression_type == "TAG" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Parsed options of a sink."""

    name_servers: str
    topic: str | None
    group: str
    write_id: str | None
    require_send_ok: bool
    timeout_ms: int
    in_flight_max: int
    queue_by: QueueBy = QueueBy.ANY
    headers: bool = True
    tls: ClientTls | None = None
    signer: Signer = ENVIRONMENT


def parse_tags(expression: str) -> frozenset[str] | None:
    """Parse a tag expression like "a || b"; None for all tags.

    Raises:
        ConfigError: the expression is malformed.
    """
    try:
        found = parse_tag_expression(expression)
    except ValueError as error:
        raise ConfigError(f"subExpression: {error}") from error
    if any("|" in tag for tag in found or ()):
        raise ConfigError(
            f"subExpression: {expression[:64]!r} would match no message, because tags have no |",
            hint="write tags like `a || b`; filters with operators need expressionType=SQL92",
        )
    return None if found is None else frozenset(found)


class ColumnOptions(NamedTuple):
    """Options that select the columns of a source."""

    kafka: bool
    """Kafka's columns instead of MESSAGE."""
    map_properties: bool
    details: bool
    headers: bool


def column_options(given: Mapping[str, str]) -> ColumnOptions:
    """Parse the options that select columns; of the other options only names are validated.

    Raises:
        ConfigError: as `source_options`.
    """
    values = _Values(given, SOURCE, "the source")
    kafka = values.one_of("schema", ("rocketmq", "kafka"), "rocketmq") == "kafka"
    if kafka:
        values.exclude("schema=kafka", "propertiesAs", "details")
    is_map = values.one_of("propertiesAs", ("string", "map"), "string") == "map"
    flags = values.flag("details", default=False), values.flag("includeHeaders", default=False)
    return ColumnOptions(kafka, is_map, *flags)


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a query's source.

    Raises:
        ConfigError: an option is unknown (names the nearest known one), malformed, missing, or contradicts another.
    """
    values = _Values(given, SOURCE, "the source")
    if not values.texts:
        raise ConfigError("no options are given", hint=f"nameServer and subscribe are needed; {NO_TABLES}")
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name in values.texts:
            other = "batch" if streaming else "streaming"
            raise ConfigError(f"{name} is an option of {other} queries", hint="leave it out")
    kind = values.one_of("expressionType", ("TAG", "SQL92"), "TAG")
    if kind == "SQL92" and "subExpression" not in values.texts:
        raise ConfigError("expressionType=SQL92 without subExpression filters nothing", hint="give both or neither")
    expression = values.texts.get("subExpression", "*")
    if kind == "TAG":
        parse_tags(expression)
    columns = column_options(given)
    selection = _selection(values)
    most, least = values.count("maxOffsetsPerTrigger"), values.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, {most}")
    if "maxTriggerDelay" in values.texts and least is None:
        raise ConfigError("maxTriggerDelay without minOffsetsPerTrigger delays nothing", hint="give both or neither")
    starting = _bound(values, "starting", Edge.LATEST if streaming else Edge.EARLIEST, streaming=streaming)
    ending = _bound(values, "ending", Edge.LATEST, streaming=streaming)
    _check_order(starting, ending)
    strategy = values.one_of("startingOffsetsByTimestampStrategy", ("latest", "error"), "latest")
    if "startingOffsetsByTimestampStrategy" in values.texts and not isinstance(starting, StoreTime | StoreTimes):
        raise ConfigError(
            "startingOffsetsByTimestampStrategy has no effect without a starting time",
            hint="give startingTimestamp or startingOffsetsByTimestamp as well",
        )
    group = values.texts.get("commitGroup")
    fault = group_name_error(group) if group is not None else None
    if fault is not None:
        raise ConfigError(f"commitGroup: {fault}")
    return SourceOptions(
        name_servers=values.name_servers(),
        topics=selection.topics,
        pattern=selection.pattern,
        assigned=selection.assigned,
        starting=starting,
        ending=ending,
        offsets_max=most,
        offsets_min=least,
        trigger_delay_ms=values.duration("maxTriggerDelay", TRIGGER_DELAY_MS),
        partitions_min=values.count("minPartitions"),
        records_max=values.count("maxRecordsPerPartition"),
        needs_match=strategy == "error",
        group=_pull_group(values),
        headers=columns.headers,
        fail_on_data_loss=values.flag("failOnDataLoss", default=True),
        expression=expression,
        expression_type=kind,
        read_from=ReadFrom(values.one_of("readFrom", tuple(member.value for member in ReadFrom), "any")),
        commit_group=group,
        kafka=columns.kafka,
        map_properties=columns.map_properties,
        details=columns.details,
        inflates=values.flag("inflate", default=True),
        pushes_down=values.flag("pushDown", default=False),
        pull_messages=values.count("pullBatchSize") or PULL_BATCH_SIZE,
        timeout_ms=values.count("timeoutMs") or TIMEOUT_MS,
        tls=values.tls(),
        signer=values.signer(),
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a sink.

    Raises:
        ConfigError: as `source_options`.
    """
    values = _Values(given, SINK, "the sink")
    topic = values.texts.get("topic")
    fault = topic_name_error(topic) if topic is not None else None
    group = values.texts.get("group", "tandemq-spark")
    fault = fault or group_name_error(group)
    if fault is not None:
        raise ConfigError(fault)
    return SinkOptions(
        name_servers=values.name_servers(),
        topic=topic,
        group=group,
        write_id=values.texts.get("writeId"),
        require_send_ok=values.flag("requireSendOk", default=False),
        timeout_ms=values.count("timeoutMs") or TIMEOUT_MS,
        tls=values.tls(),
        signer=values.signer(),
        in_flight_max=values.count("maxInFlight") or 4_096,
        queue_by=QueueBy(values.one_of("queueBy", tuple(by.value for by in QueueBy), QueueBy.ANY.value)),
        headers=values.flag("includeHeaders", default=True),
    )


class LagOptions(NamedTuple):
    """Parsed options of the lag source."""

    name_servers: str
    """"": no rows."""
    tls: ClientTls | None
    signer: Signer


def lag_options(given: Mapping[str, str]) -> LagOptions:
    """Parse the options of the lag source.

    Raises:
        ConfigError: as `source_options`; name servers may be missing.
    """
    values = _Values(given, LAG, "the source")
    return LagOptions(values.texts.get("nameServer", ""), values.tls(), values.signer())


class _Values:
    """Option values by their canonical names, with parsers for each kind of value."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str], what: str) -> None:
        right = {name.lower(): name for name in known}
        right |= {old: new for old, new in OLD_NAMES.items() if new in known}
        check_no_table(given)
        self.texts: dict[str, str] = {}
        for name, value in given.items():
            lower = name.lower()
            if lower in SPARKS_OWN:
                continue
            check_refused(name)
            if lower not in right:
                near = did_you_mean(name, known) or f"options are {', '.join(known)}"
                raise ConfigError(f"{what} has no option {name!r}", hint=near)
            if right[lower] in self.texts and self.texts[right[lower]] != value:
                raise ConfigError(f"{right[lower]} is given twice, once by its old name")
            self.texts[right[lower]] = value

    def exclude(self, because: str, *names: str) -> None:
        """Raise if one of the options is given, which another option makes meaningless."""
        for name in names:
            if name in self.texts:
                raise ConfigError(f"{because} has no use for {name}", hint="leave one of them out")

    def name_servers(self) -> str:
        """Return the validated addresses of the name servers."""
        text = self.texts.get("nameServer", "")
        if not split_addresses(text):
            raise ConfigError("the option nameServer is missing", hint=f'for instance "127.0.0.1:9876"; {NO_TABLES}')
        for address in split_addresses(text):
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"nameServer: {address!r} is not an address", hint='write "host:port;host:port"')
        return text

    def tls(self) -> ClientTls | None:
        """Return the TLS of connections; None: without."""
        own = [name for name in TLS if name != "tls" and name in self.texts]
        if not self.flag("tls", default=False):
            if own:
                raise ConfigError(f"{own[0]} has no effect without tls", hint="give tls=true as well")
            return None
        ca, cert, key = (self.texts.get(name, "") for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"))
        if bool(cert) != bool(key):
            raise ConfigError("tlsCertFile and tlsKeyFile belong together; one is missing")
        checks_host = self.flag("tlsCheckHost", default=True)
        return ClientTls(ca_file=ca, cert_file=cert, key_file=key, check_host=checks_host)

    def signer(self) -> Signer:
        """Return who signs requests."""
        path, name, key = (self.texts.get(option, "") for option in USER)
        if path and (name or key):
            self.exclude("secretFile", "accessKey", "secretKey")
        if bool(name) != bool(key):
            raise ConfigError("accessKey and secretKey belong together; one is missing", hint="or give secretFile")
        return Signer(Credentials(name, key) if name else None, path)

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return the choice that a value names, ignoring case."""
        text = self.texts.get(name, default)
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ConfigError(
            f"{name} is {text!r}", hint=did_you_mean(text, choices) or f"it is one of {', '.join(choices)}"
        )

    def flag(self, name: str, *, default: bool) -> bool:
        """Parse true or false."""
        return self.one_of(name, ("true", "false"), "true" if default else "false") == "true"

    def count(self, name: str) -> int | None:
        """Parse an integer of 1 or more; None if the option is not given."""
        text = self.texts.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or int(text) < 1:
            raise ConfigError(f"{name} is {text!r}", hint="a whole number of 1 or more")
        return int(text)

    def duration(self, name: str, default_ms: int) -> int:
        """Parse "500ms", "90s", "15m", "15min", "1h", "1d" or a bare number of milliseconds; returns milliseconds."""
        text = self.texts.get(name)
        if text is None:
            return default_ms
        found = re.fullmatch(r"(\d+)\s*(ms|s|min|m|h|d)?", text.strip().lower())
        if found is None:
            raise ConfigError(f"{name} is {text!r}", hint="a time like 500ms, 90s, 15m or 1h")
        return int(found[1]) * _UNITS_MS[found[2] or "ms"]


class _Selection(NamedTuple):
    """Queues to read: exactly one of the fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    """Queue ids by topic and broker name."""


def _selection(values: _Values) -> _Selection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in values.texts]
    if len(names) != 1:
        problem = f"{' and '.join(names)} are given together" if names else "no option selects what to read"
        raise ConfigError(problem, hint="give exactly one of subscribe, subscribePattern and assign")
    text = values.texts[names[0]]
    if names[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        fault = next((fault for topic in topics if (fault := topic_name_error(topic))), None)
        if fault is not None or not topics:
            raise ConfigError(f"subscribe: {fault or 'no topic is named'}")
        return _Selection(topics=topics)
    if names[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern: {error}") from error
        return _Selection(pattern=text)
    return _Selection(assigned=_assigned(text))


def _assigned(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    form = 'write {"topic": {"broker name": [0, 1]}}'
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"assign is not JSON: {error.msg} at character {error.pos + 1}", hint=form) from error
    if not isinstance(tree, dict) or not tree:
        raise ConfigError("assign names no topic", hint=form)
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, brokers in tree.items():
        if not isinstance(brokers, dict) or not brokers:
            raise ConfigError(f"assign: {topic!r} names no broker", hint=form)
        for broker_name, queues in brokers.items():
            where = f"assign: {topic!r}: {broker_name!r}"
            if not isinstance(queues, list) or not queues:
                raise ConfigError(f"{where} names no queue", hint=form)
            numbers = tuple(queue_id_of(number, where) for number in queues)
            found.setdefault(topic, {})[broker_name] = numbers
    return found


def _pull_group(values: _Values) -> str:
    """Return the group that pulls name. The same options always give the same one, so that groups do not accumulate."""
    prefix = values.texts.get("groupIdPrefix")
    if prefix is None:
        return TOOLS_GROUP
    selection = [f"{name}={values.texts.get(name, '')}" for name in ("subscribe", "subscribePattern", "assign")]
    group = f"{prefix}-{blake2b(chr(0).join(selection).encode(), digest_size=4).hexdigest()}"
    fault = group_name_error(group)
    if fault is not None or not prefix:
        raise ConfigError(f"groupIdPrefix: {fault or 'it is empty'}")
    return group


def _bound(values: _Values, which: str, default: Edge, *, streaming: bool) -> Bound:
    offsets, timestamp, by_queue = f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    given = [name for name in (offsets, timestamp, by_queue) if name in values.texts]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} are given together", hint="leave one of them out")
    if by_queue in values.texts:
        return StoreTimes(parse_times(values.texts[by_queue], by_queue))
    if timestamp in values.texts:
        text = values.texts[timestamp]
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{timestamp} is {text!r}", hint="milliseconds since 1970")
        return StoreTime(int(text))
    text = values.texts.get(offsets, default.value).strip()
    never = {"starting": Edge.LATEST, "ending": Edge.EARLIEST}[which] if not streaming else None
    if text.lower() in ("earliest", "latest"):
        edge = Edge(text.lower())
        if edge is never:
            raise ConfigError(f"{offsets} is {edge.value}, so a batch query would read nothing")
        return edge
    position = parse_offsets(text, offsets)
    for queue, offset in position.offsets.items():
        if never is not None and offset == {Edge.LATEST: LATEST, Edge.EARLIEST: EARLIEST}[never]:
            where = f"{offsets}: {queue.topic!r}: {queue.broker_name!r}: '{queue.queue_id}'"
            raise ConfigError(f"{where} is {offset}, {never.value}, so a batch query would read nothing")
    return position


def _check_order(starting: Bound, ending: Bound) -> None:
    """Raise if the end is before the start."""
    if isinstance(starting, StoreTime) and isinstance(ending, StoreTime) and starting.wall_ms > ending.wall_ms:
        raise ConfigError(f"startingTimestamp is {starting.wall_ms}, later than endingTimestamp, {ending.wall_ms}")
    if isinstance(starting, StoreTimes) and isinstance(ending, StoreTimes):
        for queue, end_ms in ending.wall_ms.items():
            if starting.wall_ms.get(queue, 0) > end_ms:
                where = f"{queue.topic!r}: {queue.broker_name!r}: '{queue.queue_id}'"
                raise ConfigError(
                    f"startingOffsetsByTimestamp: {where} is {starting.wall_ms[queue]}, later than "
                    f"endingOffsetsByTimestamp, {end_ms}"
                )
    if isinstance(starting, Position) and isinstance(ending, Position):
        for queue, end in ending.offsets.items():
            start = starting.offsets.get(queue, EARLIEST)
            if start > end >= 0:
                where = f"{queue.topic!r}: {queue.broker_name!r}: '{queue.queue_id}'"
                raise ConfigError(f"startingOffsets: {where} is {start}, behind endingOffsets, {end}")
