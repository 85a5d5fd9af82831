"""Settings of a client: frozen and validated once. Durations are milliseconds, sizes bytes."""

from dataclasses import dataclass
from enum import Enum

from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError
from tandemq.model.access import Credentials
from tandemq.model.pop import MESSAGES_MAX
from tandemq.model.topic import TRACE_TOPIC, group_name_error, topic_name_error

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Identity, name servers and timeouts of one client."""

    name_servers: tuple[str, ...]
    """Addresses, each "host:port"."""
    client_id: str
    """Name of the client at brokers and in its groups; must be unique within a group."""
    ip: str = "127.0.0.1"
    """IP address of this machine; part of the unique keys of messages."""
    pid: int = 0
    """Process id; part of the unique keys of messages."""
    heartbeat_ms: int = 30_000
    silence_probe_ms: int = 10_000
    """A broker that owes a response and has sent nothing for this long gets a heartbeat, which it must answer."""
    route_poll_ms: int = 30_000
    request_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000
    probe_ms: int = 500
    """Pause before reconnecting to an address that failed; doubled with each failure, up to `probe_max_ms`."""
    probe_max_ms: int = 1_000
    frame_bytes_max: int = 16 * MEBIBYTE
    tls: ClientTls | None = None
    """TLS on all connections, to name servers and brokers; None: without."""
    credentials: Credentials | None = None
    """User that signs all requests; None: they are not signed."""

    def __post_init__(self) -> None:
        """Validate the addresses.

        Raises:
            ConfigError: there is no name server, or an address is not "host:port".
        """
        if not self.name_servers:
            raise ConfigError("no name server is given", hint='for instance "127.0.0.1:9876"')
        for address in self.name_servers:
            host, _, port = address.rpartition(":")
            if "://" in address:
                scheme, _, rest = address.partition("://")
                raise ConfigError(f"{address!r} is not an address", hint=f"leave out the scheme {scheme}://: {rest}")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"{address!r} is not an address", hint='write "host:port", several separated by ";"')


def split_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses in "host:port;host:port"."""
    return tuple(piece.strip() for piece in text.split(";") if piece.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Settings of a producer."""

    group: str
    timeout_ms: int = 3_000
    """Timeout of one attempt."""
    retries: int = 2
    """Number of attempts after the first, on other brokers if there are any. 0: one attempt, whatever `retry_ms` is."""
    retry_ms: int = 15_000
    """For how long a message is retried while no broker accepts it, even when `retries` are used up; longer than a
    failover takes. The last attempt may exceed it by `timeout_ms`. 0: until `retries` are used up."""
    retry_when_not_stored_ok: bool = False
    """Whether a status other than SEND_OK is retried on another broker, with the same unique key."""
    compress_above_bytes: int = 4096
    """Bodies of at least this size are compressed."""
    compress_level: int = 5
    """0 to 9, as zlib's; up to 6 about as small as zlib makes a body, in a fifth of its time."""
    body_bytes_max: int = 4 * MEBIBYTE
    """Maximum size of a body, before compression."""
    batch_bytes_max: int = MEBIBYTE
    """A batch is split into requests of at most this size."""
    linger_ms: int = 0
    """For how long a message waits for others of its topic, to be sent with them in one request; 0: each is sent at
    once."""
    batch_bytes: int = 128 * 1024
    """With `linger_ms`: size at which such a request is sent at once."""
    queues_per_new_topic: int = 4
    """Number of queues per broker of a topic that a broker creates with the first message."""
    delay_levels: int = 18
    """Number of delay levels in the brokers' `messageDelayLevel`."""
    latency_aware: bool = True
    """Whether brokers that respond slowly are avoided for a while."""
    zone: str = ""
    """Zone of this producer: brokers of the same zone are preferred, others are used when none of those accepts
    messages."""
    close_wait_s: float = 30
    """For how long `close` waits for the responses of sends in flight; those without one fail with OutcomeUnknown."""
    trace: bool | str = False
    """Whether a trace record of each stored message is sent to the topic RMQ_SYS_TRACE_TOPIC; a name: to that topic."""

    def __post_init__(self) -> None:
        """Validate the group name, times, the size of batches and the trace topic.

        Raises:
            ConfigError: the group name or the trace topic is invalid, a time is negative, or a size below 1.
        """
        check_group(self.group)
        trace_topic(self.trace)
        for name in ("retry_ms", "linger_ms", "close_wait_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.batch_bytes < 1:
            raise ConfigError(f"batch_bytes is {self.batch_bytes}; it must be at least 1")


class MessageModel(Enum):
    """Which members of a consumer group get a message."""

    CLUSTERING = "CLUSTERING"
    """One member."""
    BROADCASTING = "BROADCASTING"
    """Every member; each keeps its own offsets."""


class ConsumeFrom(Enum):
    """Where a group starts that has no committed offset.

    Unless the group is broadcasting, a young queue is read from its first message in any case: the broker reports
    offset 0 while nothing was deleted and all is probably in memory.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """At the end of the queue: with messages stored from now on."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message of the queue."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message stored at or after `ConsumerOptions.consume_from_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Settings of a push or pull consumer."""

    group: str
    model: MessageModel = MessageModel.CLUSTERING
    orderly: bool = False
    """Whether each queue is consumed in order, one message at a time, under a lock at its broker."""
    start_timeout_ms: int = 10_000
    """For how long `start` waits for a response of a name server; 0: it does not wait."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    consume_from_ms: int = 0
    """Where TIMESTAMP starts, milliseconds since 1970."""
    max_reconsume_times: int = -1
    """Number of redeliveries before a message goes to the dead letter topic; -1: 16, or unlimited if `orderly`."""
    pull_messages: int = 32
    """Maximum number of messages per pull."""
    long_poll_ms: int = 15_000
    """For how long a broker holds a pull that finds no message."""
    pull_timeout_ms: int = 25_000
    """Timeout of a pull; a broker may respond 5 s after `long_poll_ms`. The connection is closed after it."""
    prefetch_messages: int = 1_000
    """Maximum number of unacknowledged messages per queue; no more are pulled above it."""
    prefetch_bytes: int = 16 * MEBIBYTE
    """Maximum size of unacknowledged messages per queue, with decompressed bodies; no more are pulled above it. The
    last message may exceed it."""
    rebalance_ms: int = 20_000
    """Period of rebalancing."""
    commit_ms: int = 5_000
    """Period of commits."""
    lock_renew_ms: int = 20_000
    """Period at which an orderly consumer renews the locks of its queues."""
    lock_live_ms: int = 30_000
    """A lock that was not renewed for this long counts as lost."""
    suspend_ms: int = 1_000
    """Pause before an orderly consumer gets a failed message again."""
    error_pause_ms: int = 1_000
    """Pause before a broker that refused a pull is asked again."""
    trace: bool | str = False
    """Whether trace records of each delivery are sent to the topic RMQ_SYS_TRACE_TOPIC; a name: to that topic. Not for
    pull consumers."""
    close_wait_s: float = 30
    """For how long `close` waits for the handlers of `run` that are running; then it cancels them."""
    duplicate_window: int = 0
    """Number of handled messages per queue whose duplicates are recognised; 0: duplicates are delivered."""
    duplicate_window_total: int = 200_000
    """Maximum number of such messages, of all queues."""

    def __post_init__(self) -> None:
        """Validate the group name, limits and the trace topic.

        Raises:
            ConfigError: the group name or the trace topic is invalid, or a limit is below 1.
        """
        check_group(self.group)
        trace_topic(self.trace)
        if min(self.pull_messages, self.prefetch_messages, self.prefetch_bytes) < 1:
            raise ConfigError("pull_messages, prefetch_messages and prefetch_bytes must be at least 1")
        if not 0 <= self.duplicate_window <= self.duplicate_window_total:
            raise ConfigError(
                f"the window of duplicates is {self.duplicate_window} messages per queue and "
                f"{self.duplicate_window_total} in all; it must not be negative, nor larger per queue than in all"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PopOptions:
    """Settings of a pop consumer."""

    group: str
    ordered: bool = False
    """Whether the group has one batch of each queue at a time, and gets the messages of a queue one after the other."""
    start_timeout_ms: int = 10_000
    """For how long `start` waits for a response of a name server; 0: it does not wait."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where a group without an offset starts: FIRST, or LAST: with the last message, a young queue with its first."""
    invisible_s: float = 60
    """For how long a popped message is hidden from the group; then it comes back."""
    renew_s: float = 3_600
    """For how long, from the pop on, the time of messages is renewed that wait here or are handled by `run`; 0: it is
    not. Messages taken by `receive` or `async for` are not renewed: see `change_invisible`."""
    max_reconsume_times: int = -1
    """Number of redeliveries before a message goes to the dead letter topic; -1: 16, or unlimited if `ordered`."""
    batch: int = MESSAGES_MAX
    """Maximum number of messages of a pop, 32 at most."""
    long_poll_ms: int = 15_000
    """For how long a broker holds a pop that finds no message."""
    pop_timeout_ms: int = 25_000
    """Timeout of a pop; a broker may respond 5 s after `long_poll_ms`. The connection is closed after it."""
    prefetch_messages: int = 64
    """Maximum number of messages that wait here to be taken. Topics and brokers have equal shares, of one message at
    least. Other members do not get what waits here: take few where handlers are slow."""
    prefetch_bytes: int = 16 * MEBIBYTE
    """Size of waiting messages, with decompressed bodies, above which no more are popped; shared likewise. The last pop
    may exceed it."""
    suspend_ms: int = 1_000
    """Pause before an ordered consumer gets a failed message, and those behind it, again."""
    error_pause_ms: int = 1_000
    """Longest pause before a broker that refused a pop, or did not respond, is asked again."""
    close_wait_s: float = 30
    """For how long `close` waits for the handlers of `run` that are running; then it cancels them."""

    def __post_init__(self) -> None:
        """Validate the group name and limits.

        Raises:
            ConfigError: the group name is invalid, or a value is out of range.
        """
        check_group(self.group)
        if self.consume_from is ConsumeFrom.TIMESTAMP:
            raise ConfigError(
                "a pop consumer cannot start at a time", hint="reset the offsets of the group to the time"
            )
        if not 1 <= self.batch <= MESSAGES_MAX:
            raise ConfigError(f"batch is {self.batch}; it must be 1 to {MESSAGES_MAX}")
        if self.invisible_s < 1:
            raise ConfigError(f"invisible_s is {self.invisible_s}; it must be at least 1")
        if self.pop_timeout_ms <= self.long_poll_ms:
            raise ConfigError(f"pop_timeout_ms is {self.pop_timeout_ms}; it must exceed long_poll_ms")
        if min(self.prefetch_messages, self.prefetch_bytes) < 1:
            raise ConfigError("prefetch_messages and prefetch_bytes must be at least 1")

    @property
    def invisible_ms(self) -> int:
        """`invisible_s` in milliseconds."""
        return round(self.invisible_s * 1_000)


def trace_topic(trace: bool | str) -> str | None:
    """Return the topic for trace records; None if there are none.

    Raises:
        ConfigError: it is not a topic name.
    """
    if not trace:
        return None
    topic = TRACE_TOPIC if trace is True else trace
    fault = topic_name_error(topic)
    if fault is not None:
        raise ConfigError(f"trace: {fault}", hint=f"trace=True takes the topic {TRACE_TOPIC}")
    return topic


def check_group(group: str) -> None:
    """Validate a group name.

    Raises:
        ConfigError: the name is invalid.
    """
    fault = group_name_error(group)
    if fault is not None:
        raise ConfigError(fault)
