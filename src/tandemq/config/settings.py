"""Settings of a broker and of a name server: frozen, one per node, validated once, passed whole.

Each field carries RocketMQ's name for it (`key`), under which `broker.conf`, TOML and mqadmin know it.
Times are in the unit the field's name ends with. `config_file` reads files and writes properties.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from tandemq.errors import ConfigError, LocalError
from tandemq.registry import parse_address

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
FLUSH_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")
HA_PROTOCOLS = ("auto", "tandemq", "classic")


def _key(key: str, default: Any) -> Any:
    return field(default=default, metadata={"key": key})


WEIGHT_MAX = 1_000_000
ZONE_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """One broker."""

    # Who it is.
    cluster: str = _key("brokerClusterName", "DefaultCluster")
    broker_name: str = _key("brokerName", "broker-a")
    broker_id: int = _key("brokerId", 0)
    role: str = _key("brokerRole", "ASYNC_MASTER")
    permission: int = _key("brokerPermission", 6)
    weight: int = _key("brokerWeight", 100)
    """Share of the writes among groups, for producers that look at it; 0: none while another group takes them."""
    zone: str = _key("brokerZone", "")
    """Where it stands, for producers that prefer their own zone."""

    # Where it listens and what it tells others. Port 0: any free one, with a free fast port.
    bind_address: str = _key("bindAddress", "0.0.0.0")
    advertised_ip: str = _key("brokerIP1", "")
    """Empty: the address of the interface that reaches the name server, else 127.0.0.1."""
    ha_advertised_ip: str = _key("brokerIP2", "")
    """Empty: like brokerIP1."""
    listen_port: int = _key("listenPort", 10911)
    ha_port: int = _key("haListenPort", 0)
    """0: listenPort + 1, and any free one if listenPort is 0, too."""
    name_servers: tuple[str, ...] = _key("namesrvAddr", ())
    register_ms: int = _key("registerNameServerPeriod", 30_000)
    register_ms_min: int = _key("registerNameServerPeriodMin", 10_000)
    """RocketMQ raises a shorter period to 10 s without a word; whoever wants one (tests do) lowers this as well."""
    register_timeout_ms: int = _key("registerBrokerTimeoutMills", 6_000)
    connections_max: int = _key("maxConnections", 50_000)
    busy_poll_us: int = _key("busyPollMicros", 400)
    connection_idle_ms: int = _key("serverChannelMaxIdleTimeMillis", 120_000)
    frame_bytes_max: int = _key("frameMaxLength", 16 * MEBIBYTE)
    unfinished_bytes_max: int = _key("unfinishedFramesMax", 256 * MEBIBYTE)
    """Of all frames that were begun and have not come whole; beyond it their links are closed."""
    untaken_bytes_max: int = _key("untakenAnswersMax", 512 * MEBIBYTE)
    """That wait on all links for peers to take them; beyond it the links of those that take nothing are closed."""

    config_black_list: tuple[str, ...] = _key("configBlackList", ("configBlackList", "flushDiskType", "inSyncReplicas"))
    """Settings that are not changed while the broker runs, whoever asks: those that others' messages rely on."""

    # Topics and groups.
    auto_create_topic: bool = _key("autoCreateTopicEnable", True)
    auto_create_group: bool = _key("autoCreateSubscriptionGroup", True)
    groups_max: int = _key("maxSubscriptionGroups", 5_000)
    default_queue_nums: int = _key("defaultTopicQueueNums", 8)
    cluster_topic: bool = _key("clusterTopicEnable", True)
    broker_topic: bool = _key("brokerTopicEnable", True)
    region: str = _key("regionId", "DefaultRegion")
    message_bytes_max: int = _key("maxMessageSize", 4 * MEBIBYTE)

    # The store.
    store_path: str = _key("storePathRootDir", "store")
    segment_bytes: int = _key("mappedFileSizeCommitLog", GIBIBYTE)
    queue_file_bytes: int = _key("mappedFileSizeConsumeQueue", 6_000_000)
    index_enable: bool = _key("messageIndexEnable", True)
    index_slots: int = _key("maxHashSlotNum", 5_000_000)
    index_entries: int = _key("maxIndexNum", 20_000_000)
    query_messages_max: int = _key("maxMsgsNumBatch", 64)
    query_default_max: int = _key("defaultQueryMaxNum", 32)
    flush_type: str = _key("flushDiskType", "ASYNC_FLUSH")
    flush_interval_ms: int = _key("flushIntervalCommitLog", 500)
    sync_flush_timeout_ms: int = _key("syncFlushTimeout", 5_000)
    queue_flush_interval_ms: int = _key("flushIntervalConsumeQueue", 1_000)
    offsets_persist_ms: int = _key("flushConsumerOffsetInterval", 5_000)
    delay_persist_ms: int = _key("flushDelayOffsetInterval", 10_000)

    # Retention.
    reserved_hours: int = _key("fileReservedTime", 72)
    delete_when: str = _key("deleteWhen", "04")
    clean_interval_ms: int = _key("cleanResourceInterval", 10_000)
    disk_used_ratio_max: int = _key("diskMaxUsedSpaceRatio", 75)
    """Percent; above it expired files go at any hour."""
    disk_force_ratio: float = _key("diskSpaceCleanForciblyRatio", 0.85)
    """Above it files go whatever their age, even those a slave or an open delay still needs; that is logged."""
    disk_full_ratio: float = _key("diskSpaceWarningLevelRatio", 0.90)
    """Above it sends are refused with SERVICE_NOT_AVAILABLE until there is room again."""
    clean_force_enable: bool = _key("cleanFileForciblyEnable", True)

    # Integrity.
    scrub_bytes_per_second: int = _key("scrubBytesPerSecond", 4 * MEBIBYTE)
    """How much of the commit log is read again and verified per second; 0: none."""
    scrub_interval_ms: int = _key("scrubInterval", 86_400_000)
    """From the beginning of one pass over the log to that of the next, unless that takes longer."""

    # Replication.
    ha_master_address: str = _key("haMasterAddress", "")
    ha_protocol: str = _key("haProtocol", "auto")
    """What a slave speaks: `tandemq`, `classic` (a Java master), or `auto`: it asks the master."""
    ha_classic_peers: tuple[str, ...] = _key("haClassicPeers", ())
    """IP addresses of Java slaves: served, and counted as one replica per address.
    Nobody else is let in unintroduced."""
    ha_secret_file: str = _key("haSecretFile", "")
    """File of the secrets that TandemQ brokers prove to each other before they replicate; empty: they prove nothing."""
    ha_tls_cert_file: str = _key("haTlsCertFile", "")
    """Certificate of this broker on replication links, PEM; empty: no TLS there."""
    ha_tls_key_file: str = _key("haTlsKeyFile", "")
    ha_tls_ca_file: str = _key("haTlsCaFile", "")
    """Authorities that the other broker's certificate must come from, on both sides.
    Empty: the system's, and slaves need none."""
    ha_tls_server_name: str = _key("haTlsServerName", "")
    """Name in the master's certificate; empty: the host a slave connects to."""
    ha_heartbeat_ms: int = _key("haSendHeartbeatInterval", 5_000)
    ha_housekeeping_ms: int = _key("haHousekeepingInterval", 20_000)
    ha_reconnect_ms: int = _key("haReconnectInterval", 5_000)
    ha_batch_bytes: int = _key("haTransferBatchSize", 32 * 1024)
    ha_lag_bytes_max: int = _key("haSlaveFallbehindMax", 256 * MEBIBYTE)
    ha_bytes_per_second: int = _key("maxHaTransferByteInSecond", 0)
    """Per slave; 0: no limit."""
    slave_timeout_ms: int = _key("slaveTimeout", 3_000)
    in_sync_replicas: int = _key("inSyncReplicas", 2)
    """Copies a SYNC_MASTER needs for SEND_OK, its own included."""
    metadata_sync_ms: int = _key("metadataSyncInterval", 10_000)
    accept_loss_ms: int = _key("acceptLossTimeout", 30_000)
    """After a stop that may have lost bytes: how long an ASYNC_MASTER waits for a slave that has them."""
    sync_from_last_file: bool = _key("syncFromLastFile", False)
    """Whether an empty TandemQ slave copies only the last file. Classic slaves always do."""

    # A group with a registry.
    registry_address: str = _key("registryAddr", "")
    """Of the registry that decides the roles: "zookeeper://host:2181,…" or "namesrv://host:9876"; empty: the roles are
    those of the settings."""
    registry_session_ms: int = _key("registrySessionTimeout", 2_000)
    min_in_sync: int = _key("minInSyncReplicas", 1)
    """In an `elect` group: with fewer members in sync messages are refused before they are stored."""
    lag_ms_max: int = _key("haMaxTimeSlaveNotCatchup", 15_000)
    """In an `elect` group: a slave not caught up for longer leaves the in-sync set."""
    unclean_hand_back_ms: int = _key("uncleanHandBackAfter", 0)
    """In a `slave-consume` group: a master takes reading back from a reader gone for so long; 0: never."""

    # Consuming.
    long_polling: bool = _key("longPollingEnable", True)
    short_polling_ms: int = _key("shortPollingTimeMills", 1_000)
    slave_read_enable: bool = _key("slaveReadEnable", False)
    memory_ratio_max: int = _key("accessMessageInMemoryMaxRatio", 40)
    """Percent of the machine's memory; a consumer further behind than this is sent to the slave, if allowed."""
    transfer_bytes_max: int = _key("maxTransferBytesOnMessageInMemory", 256 * 1024)
    transfer_messages_max: int = _key("maxTransferCountOnMessageInMemory", 32)
    client_expiry_ms: int = _key("clientChannelExpiredTimeout", 120_000)
    lock_live_ms: int = _key("lockMaxLiveTime", 60_000)
    delay_levels: str = _key("messageDelayLevel", DELAY_LEVELS)

    @property
    def replication_port(self) -> int:
        """Port to take for slaves; 0: any free one."""
        return self.ha_port or (self.listen_port + 1 if self.listen_port else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """One name server."""

    bind_address: str = _key("bindAddress", "0.0.0.0")
    listen_port: int = _key("listenPort", 9876)
    data_path: str = _key("kvConfigPath", "namesrv")
    broker_expiry_ms: int = _key("brokerExpiry", 120_000)
    """A broker not heard of for this long is dropped from all routes."""
    order_message_enable: bool = _key("orderMessageEnable", False)
    registry_enable: bool = _key("registryEnable", False)
    """Whether this name server hosts the registry of the broker groups, durable in its data directory."""
    ha_secret_file: str = _key("haSecretFile", "")
    """File of the secrets that sessions at the registry prove, the one that brokers have; empty: they prove nothing."""
    notify_min_id: bool = _key("notifyMinBrokerIdChanged", False)
    """Tell the members of a group when another one has the smallest id, as 5.x with acting masters wants it."""
    connections_max: int = _key("maxConnections", 50_000)
    connection_idle_ms: int = _key("serverChannelMaxIdleTimeMillis", 120_000)
    frame_bytes_max: int = _key("frameMaxLength", 16 * MEBIBYTE)
    unfinished_bytes_max: int = _key("unfinishedFramesMax", 64 * MEBIBYTE)
    untaken_bytes_max: int = _key("untakenAnswersMax", 128 * MEBIBYTE)
    config_black_list: tuple[str, ...] = _key("configBlackList", ("configBlackList",))


PORT_MAX = 65_535
JAVA_INT_MAX = (1 << 31) - 1
REGISTER_MS_MAX = 60_000
CLASSIC_FRAME_BYTES_MAX = 4 * MEBIBYTE - 12
"""What fits into the receive buffer of a Java slave, behind the header of a transfer frame."""
RECORD_EXTRA_BYTES = 64 * 1024
"""What a message may have besides its body."""
SEGMENT_BYTES_MIN = 1024
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"([0-9]{1,9})([smhd])\Z")
_NAME = re.compile(r"[%|a-zA-Z0-9_.-]{1,127}\Z")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s;:\[\]]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*):([0-9]{1,5})\Z")
_HOST = re.compile(r"[^\s;]{1,255}\Z")

Problem = tuple[str, str]
"""Field name, and what is wrong with its value and what to do."""
Config = TypeVar("Config", BrokerConfig, NameServerConfig)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delays of levels 1 and up in milliseconds, from text like "1s 5s 10m 2h 1d".

    Raises:
        ConfigError: a part is no number with a unit, or there is none.
    """
    parts = text.split()
    matches = [_DELAY.match(part) for part in parts]
    for part, match in zip(parts, matches, strict=True):
        if match is None:
            raise ConfigError(f"{part!r} is no delay", hint="write a number and s, m, h or d, for instance 30s")
    if not matches:
        raise ConfigError("there is no delay level", hint=f"the default is {DELAY_LEVELS!r}")
    return tuple(int(match[1]) * _UNITS[match[2]] for match in matches if match is not None)


def key_of(config: type[BrokerConfig] | type[NameServerConfig], name: str) -> str:
    """RocketMQ's name of a field."""
    for item in fields(config):
        if item.name == name:
            key: str = item.metadata["key"]
            return key
    raise AssertionError(f"{config.__name__} has no field {name}")


def validate(config: Config) -> Config:
    """Give a configuration back if it is consistent.

    Raises:
        ConfigError: it is not; the text names every key that is wrong.
    """
    found = problems(config)
    if found:
        raise ConfigError("; ".join(f"{key_of(type(config), name)}: {text}" for name, text in found))
    return config


def problems(config: BrokerConfig | NameServerConfig) -> list[Problem]:
    """All that is wrong with a configuration."""
    return list(_broker_problems(config) if isinstance(config, BrokerConfig) else _name_server_problems(config))


def tiny(**changes: Any) -> BrokerConfig:
    """A broker for tests: any ports, and limits small enough to be reached."""
    small = BrokerConfig(
        bind_address="127.0.0.1",
        advertised_ip="127.0.0.1",
        ha_advertised_ip="127.0.0.1",
        listen_port=0,
        ha_port=0,
        register_ms_min=1,
        message_bytes_max=8 * 1024,
        frame_bytes_max=256 * 1024,
        segment_bytes=32 * 1024,
        queue_file_bytes=20 * 50,
        index_slots=50,
        index_entries=200,
        ha_batch_bytes=4 * 1024,
        transfer_bytes_max=16 * 1024,
    )
    return validate(replace(small, **changes))


def tiny_name_server(**changes: Any) -> NameServerConfig:
    """A name server for tests: any port, few links, small frames."""
    small = NameServerConfig(bind_address="127.0.0.1", listen_port=0, connections_max=100, frame_bytes_max=256 * 1024)
    return validate(replace(small, **changes))


# What is wrong. One generator per concern; each yields (field, what to change).


def _broker_problems(config: BrokerConfig) -> Iterator[Problem]:
    yield from _identity_problems(config)
    yield from _network_problems(config)
    yield from _store_problems(config)
    yield from _retention_problems(config)
    yield from _replication_problems(config)
    for item in fields(config):
        at_least = _LOWEST.get(item.name, 1 if item.name.endswith("_ms") else None)
        if at_least is not None and getattr(config, item.name) < at_least:
            yield item.name, f"{getattr(config, item.name)} is too small; the smallest is {at_least}"
    try:
        parse_delay_levels(config.delay_levels)
    except ConfigError as error:
        yield "delay_levels", str(error)


_LOWEST = {
    "connections_max": 1,
    "groups_max": 100,
    "busy_poll_us": 0,
    "default_queue_nums": 1,
    "message_bytes_max": 1,
    "index_slots": 1,
    "index_entries": 2,
    "query_messages_max": 1,
    "query_default_max": 1,
    "reserved_hours": 1,
    "scrub_bytes_per_second": 0,
    "ha_lag_bytes_max": 1,
    "ha_bytes_per_second": 0,
    "in_sync_replicas": 1,
    "min_in_sync": 1,
    "registry_session_ms": 100,
    "unclean_hand_back_ms": 0,
    "transfer_bytes_max": 1,
    "transfer_messages_max": 1,
}


def _identity_problems(config: BrokerConfig) -> Iterator[Problem]:
    for name in ("cluster", "broker_name"):
        value = getattr(config, name)
        if not _NAME.match(value) or value.startswith("."):
            yield (
                name,
                (f"{value[:64]!r} is no name; 1 to 127 letters, digits and _-.%| are allowed, and no dot at the start"),
            )
    if config.role not in ROLES:
        yield "role", f"{config.role!r} is no role; use one of {', '.join(ROLES)}"
    elif config.broker_id == 0 and config.role == "SLAVE":
        yield "role", "SLAVE contradicts brokerId 0; give the slave a brokerId above 0, or make it a master"
    elif config.broker_id > 0 and config.role != "SLAVE":
        yield (
            "role",
            (f"{config.role} contradicts brokerId {config.broker_id}; a master has brokerId 0, or make this a SLAVE"),
        )
    if config.broker_id < 0:
        yield "broker_id", f"{config.broker_id} is no broker id; 0 is the master, slaves count from 1"
    if not 0 <= config.weight <= WEIGHT_MAX:
        yield "weight", f"{config.weight} is outside 0 to {WEIGHT_MAX}"
    if len(config.zone) > ZONE_CHARACTERS_MAX or not config.zone.isprintable():
        yield "zone", f"{config.zone[:64]!r} is no zone; at most {ZONE_CHARACTERS_MAX} characters that can be printed"
    if not 0 <= config.permission <= 15:
        yield "permission", f"{config.permission} is no permission; 4 is reading, 2 is writing, 6 is both"


def _network_problems(config: BrokerConfig) -> Iterator[Problem]:
    yield from _listen_problems(config)
    yield from _port_problem("ha_port", config.ha_port)
    if config.listen_port in (1, 2):
        yield "listen_port", "the fast port is listenPort - 2, so it must be above 2, or 0 for any free port"
    if not config.ha_port and config.listen_port == PORT_MAX:
        yield (
            "ha_port",
            f"not set it is listenPort + 1, and there is no port above {PORT_MAX}; set it, or lower listenPort",
        )
    if config.ha_port and config.ha_port in (config.listen_port, config.listen_port - 2):
        yield "ha_port", f"{config.ha_port} is taken by listenPort {config.listen_port} or its fast port (- 2)"
    for name in ("advertised_ip", "ha_advertised_ip"):
        value = getattr(config, name)
        if value and not _HOST.match(value):
            yield name, f"{value[:64]!r} is no address; write one host or IP address, without a port"
    for address in config.name_servers:
        yield from _address_problem("name_servers", address)
    if not config.register_ms_min <= config.register_ms <= REGISTER_MS_MAX:
        yield (
            "register_ms",
            (
                f"{config.register_ms} is outside {config.register_ms_min} to {REGISTER_MS_MAX} ms; "
                "registerNameServerPeriodMin moves the lower end"
            ),
        )
    if config.message_bytes_max + RECORD_EXTRA_BYTES > config.frame_bytes_max:
        yield (
            "message_bytes_max",
            (f"{config.message_bytes_max} does not fit into frameMaxLength {config.frame_bytes_max} with 64 KiB more"),
        )


def _listen_problems(config: BrokerConfig | NameServerConfig) -> Iterator[Problem]:
    yield from _port_problem("listen_port", config.listen_port)
    try:
        ipaddress.ip_address(config.bind_address)
    except ValueError:
        yield "bind_address", f"{config.bind_address[:64]!r} is no IP address; 0.0.0.0 stands for every interface"
    if not 1024 <= config.frame_bytes_max <= JAVA_INT_MAX:
        yield "frame_bytes_max", f"{config.frame_bytes_max} is outside 1024 to {JAVA_INT_MAX}"
    for name in ("unfinished_bytes_max", "untaken_bytes_max"):
        bytes_max = getattr(config, name)
        if bytes_max < config.frame_bytes_max:
            yield name, f"{bytes_max} is less than frameMaxLength, {config.frame_bytes_max}"


def _port_problem(name: str, port: int) -> Iterator[Problem]:
    if not 0 <= port <= PORT_MAX:
        yield name, f"{port} is no port; 1 to {PORT_MAX}, or 0 for any free one"


def _address_problem(name: str, address: str) -> Iterator[Problem]:
    match = _ADDRESS.match(address)
    if match is None or not 0 < int(match[2]) <= PORT_MAX:
        yield name, f"{address[:64]!r} is no address; write host:port, several separated by ;"


def _store_problems(config: BrokerConfig) -> Iterator[Problem]:
    if not config.store_path.strip():
        yield "store_path", "the directory of the store is missing"
    if not SEGMENT_BYTES_MIN <= config.segment_bytes <= JAVA_INT_MAX:
        yield "segment_bytes", f"{config.segment_bytes} is outside {SEGMENT_BYTES_MIN} to {JAVA_INT_MAX} bytes"
    if not 20 <= config.queue_file_bytes <= JAVA_INT_MAX or config.queue_file_bytes % 20:
        yield "queue_file_bytes", f"{config.queue_file_bytes} is no multiple of 20, the size of one entry"
    if config.flush_type not in FLUSH_TYPES:
        yield "flush_type", f"{config.flush_type!r} is unknown; use one of {', '.join(FLUSH_TYPES)}"


def _retention_problems(config: BrokerConfig) -> Iterator[Problem]:
    hours = config.delete_when.split(";")
    if not all(re.match(r"[0-9]{1,2}\Z", hour.strip()) and int(hour) < 24 for hour in hours):
        yield "delete_when", f"{config.delete_when!r} is no list of hours; write 00 to 23, separated by ;"
    if not 10 <= config.disk_used_ratio_max <= 95:
        yield "disk_used_ratio_max", f"{config.disk_used_ratio_max} is outside 10 to 95 percent"
    for name in ("disk_force_ratio", "disk_full_ratio"):
        if not 0 < getattr(config, name) <= 1:
            yield name, f"{getattr(config, name)} is outside 0 to 1; 0.85 (or 85) means 85 percent"
    if config.disk_force_ratio > config.disk_full_ratio:
        yield (
            "disk_force_ratio",
            (
                f"{config.disk_force_ratio} is above diskSpaceWarningLevelRatio {config.disk_full_ratio}: "
                "sends would be refused before old files are deleted for them"
            ),
        )


def _replication_problems(config: BrokerConfig) -> Iterator[Problem]:
    if config.registry_address:
        try:
            parse_address(config.registry_address)
        except LocalError as error:
            yield "registry_address", str(error)
    if config.ha_master_address:
        yield from _address_problem("ha_master_address", config.ha_master_address)
    if config.ha_protocol not in HA_PROTOCOLS:
        yield "ha_protocol", f"{config.ha_protocol!r} is unknown; use one of {', '.join(HA_PROTOCOLS)}"
    for peer in config.ha_classic_peers:
        try:
            ipaddress.ip_address(peer)
        except ValueError:
            yield "ha_classic_peers", f"{peer[:64]!r} is no IP address; write addresses without ports, separated by ;"
    yield from _tls_problems(config)
    if not 1 <= config.ha_batch_bytes <= CLASSIC_FRAME_BYTES_MAX:
        yield "ha_batch_bytes", f"{config.ha_batch_bytes} is outside 1 to {CLASSIC_FRAME_BYTES_MAX} bytes"
    if config.ha_heartbeat_ms >= config.ha_housekeeping_ms:
        yield (
            "ha_heartbeat_ms",
            (
                f"{config.ha_heartbeat_ms} is not below haHousekeepingInterval {config.ha_housekeeping_ms}: "
                "idle links would be closed before their first heartbeat"
            ),
        )
    if not 0 <= config.memory_ratio_max <= 100:
        yield "memory_ratio_max", f"{config.memory_ratio_max} is outside 0 to 100 percent"


def _tls_problems(config: BrokerConfig) -> Iterator[Problem]:
    if not config.ha_tls_cert_file:
        for name in ("ha_tls_key_file", "ha_tls_ca_file", "ha_tls_server_name"):
            if getattr(config, name):
                yield name, "does nothing without haTlsCertFile, the certificate of this broker"
        return
    if not config.ha_tls_key_file:
        yield "ha_tls_key_file", "the private key of haTlsCertFile is missing"
    if config.ha_classic_peers:
        yield "ha_classic_peers", "Java slaves speak no TLS on this port: leave out these or haTlsCertFile"
    if config.ha_protocol == "classic":
        yield "ha_protocol", "a Java master speaks no TLS on this port: leave out classic or haTlsCertFile"


def _name_server_problems(config: NameServerConfig) -> Iterator[Problem]:
    yield from _listen_problems(config)
    if not config.data_path.strip():
        yield "data_path", "the directory of kvConfig.json is missing"
    for name in ("broker_expiry_ms", "connections_max", "connection_idle_ms"):
        if getattr(config, name) < 1:
            yield name, f"{getattr(config, name)} is too small; the smallest is 1"
