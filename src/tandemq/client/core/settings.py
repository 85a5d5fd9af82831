"""Settings of a client: frozen, validated once, passed whole. Times are milliseconds on the monotonic clock."""

from dataclasses import dataclass
from enum import Enum

from tandemq.errors import ConfigError
from tandemq.model.topic import group_name_error

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """One client: who it is, and how patient."""

    name_servers: tuple[str, ...]
    client_id: str
    """How brokers and other members of its groups call it; no two clients of a group may have the same."""
    ip: str = "127.0.0.1"
    """Its own address, part of the unique keys it gives."""
    pid: int = 0
    heartbeat_ms: int = 30_000
    silence_probe_ms: int = 10_000
    """A broker that owes an answer and has been silent for this long gets a heartbeat, which it must answer."""
    route_poll_ms: int = 30_000
    request_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000
    probe_ms: int = 500
    """How soon an address that failed is tried again; doubled with each failure, up to `probe_max_ms`."""
    probe_max_ms: int = 5_000
    frame_bytes_max: int = 16 * MEBIBYTE

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ConfigError: there is no name server, or an address is none.
        """
        if not self.name_servers:
            raise ConfigError("no name server is given", hint='for instance "127.0.0.1:9876"')
        for address in self.name_servers:
            host, _, port = address.rpartition(":")
            if "://" in address:
                scheme, _, rest = address.partition("://")
                raise ConfigError(f"{address!r} is no address", hint=f"leave out the scheme {scheme}://: {rest}")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"{address!r} is no address", hint='write "host:port", several separated by ";"')


def split_addresses(text: str) -> tuple[str, ...]:
    """The addresses in "host:port;host:port"."""
    return tuple(piece.strip() for piece in text.split(";") if piece.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer sends."""

    group: str
    timeout_ms: int = 3_000
    """Per attempt."""
    retries: int = 2
    """Further attempts after the first, on other brokers if there are any. 0: one attempt, whatever `retry_ms` says."""
    retry_ms: int = 15_000
    """How long a message is tried again if nobody takes it, even when `retries` are used up: so it outlives a failover.
    An attempt begun before may last its `timeout_ms` beyond. 0: until `retries` are used up."""
    retry_when_not_stored_ok: bool = False
    """Whether a status other than SEND_OK makes it send again elsewhere, under the same unique key."""
    compress_above_bytes: int = 4096
    compress_level: int = 5
    body_bytes_max: int = 4 * MEBIBYTE
    batch_bytes_max: int = MEBIBYTE
    """A list of messages is cut into requests of at most this size."""
    queues_per_new_topic: int = 4
    delay_levels: int = 18
    """How many delays the brokers' `messageDelayLevel` has; 18 by default."""
    latency_aware: bool = True
    """Whether brokers that answer slowly are left alone for a while."""
    zone: str = ""
    """Where this producer stands: brokers that say they stand there too come first, others when none of them can."""

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ConfigError: the group's name cannot be one, or a time is negative.
        """
        check_group(self.group)
        if self.retry_ms < 0:
            raise ConfigError(f"retry_ms is {self.retry_ms}; 0 is the least")


class MessageModel(Enum):
    """Who of a group gets a message."""

    CLUSTERING = "CLUSTERING"
    """One of its members."""
    BROADCASTING = "BROADCASTING"
    """Every member; offsets are kept by the members themselves."""


class ConsumeFrom(Enum):
    """Where a group starts that has no offset yet."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a push or pull consumer reads."""

    group: str
    model: MessageModel = MessageModel.CLUSTERING
    orderly: bool = False
    start_timeout_ms: int = 10_000
    """How long `start` waits for a name server that answers; 0: it does not wait."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    consume_from_ms: int = 0
    """Calendar time at which TIMESTAMP starts."""
    max_reconsume_times: int = -1
    """Redeliveries before the dead letter topic; -1: 16, or without end for orderly consumers."""
    pull_messages: int = 32
    long_poll_ms: int = 15_000
    pull_timeout_ms: int = 25_000
    """Of a long poll; brokers may be 5 s late. Past it the link is closed."""
    prefetch_messages: int = 1_000
    """Per queue: above it nothing more is pulled."""
    prefetch_bytes: int = 16 * MEBIBYTE
    """Per queue."""
    rebalance_ms: int = 20_000
    commit_ms: int = 5_000
    lock_renew_ms: int = 20_000
    lock_live_ms: int = 30_000
    """A lock of our own that was not renewed for this long counts as lost."""
    suspend_ms: int = 1_000
    """How long an orderly queue rests before a message is tried again."""
    error_pause_ms: int = 1_000
    """How long a queue rests after an answer that makes no sense to repeat at once."""

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ConfigError: the group's name cannot be one, or a limit is none.
        """
        check_group(self.group)
        if min(self.pull_messages, self.prefetch_messages, self.prefetch_bytes) < 1:
            raise ConfigError("pull and prefetch limits must be 1 at least")


def check_group(group: str) -> None:
    """Refuse names that cannot be a group's.

    Raises:
        ConfigError: and why.
    """
    fault = group_name_error(group)
    if fault is not None:
        raise ConfigError(fault)
