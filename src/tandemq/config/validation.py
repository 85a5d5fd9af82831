"""Validation of a node's settings: ranges, names, addresses, and settings that contradict each other.

Each check is a generator of problems; `problems` runs all of them. Values are not changed.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import TypeVar

from tandemq.config.access import init_user, inner_user
from tandemq.config.monitoring import monitoring_problems
from tandemq.config.settings import (
    JAVA_INT_MAX,
    MEBIBYTE,
    BrokerConfig,
    NameServerConfig,
    ProxyConfig,
    TlsConfig,
    key_of,
    parse_delay_levels,
)
from tandemq.errors import ConfigError, LocalError
from tandemq.model.pop import INVISIBLE_MS_MAX
from tandemq.model.topic import FORBIDDEN_FOR_SENDING, topic_name_error
from tandemq.registry import parse_address

ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
FLUSH_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")
TLS_MODES = ("disabled", "permissive", "enforcing")
HA_PROTOCOLS = ("auto", "tandemq", "classic")
WEIGHT_MAX = 1_000_000
ZONE_CHARACTERS_MAX = 255
PORT_MAX = 65_535
PROCESSES_MAX = 256
SHARDS_MAX = 64
REGISTER_MS_MAX = 60_000
TAKEOVER_CHECKS_MAX = 30
CLASSIC_FRAME_BYTES_MAX = 4 * MEBIBYTE - 12
"""Size of a Java slave's receive buffer without the header of a transfer frame."""
RECORD_EXTRA_BYTES = 64 * 1024
"""Maximum size of a message without its body."""
SEGMENT_BYTES_MIN = 1024
_NAME = re.compile(r"[%|a-zA-Z0-9_.-]{1,127}\Z")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s;:\[\]]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*):([0-9]{1,5})\Z")
_HOST = re.compile(r"[^\s;]{1,255}\Z")

Problem = tuple[str, str]
"""(field name, what is wrong with its value and what to do)"""
Config = TypeVar("Config", BrokerConfig, NameServerConfig, ProxyConfig)


def validate(config: Config) -> Config:
    """Return a configuration if it is valid.

    Raises:
        ConfigError: it is invalid; the text names every wrong key.
    """
    found = problems(config)
    if found:
        raise ConfigError("; ".join(f"{key_of(type(config), name)}: {text}" for name, text in found))
    return config


def problems(config: BrokerConfig | NameServerConfig | ProxyConfig) -> list[Problem]:
    """Return all problems of a configuration."""
    if isinstance(config, BrokerConfig):
        return list(_broker_problems(config))
    return list(_proxy_problems(config) if isinstance(config, ProxyConfig) else _name_server_problems(config))


# Checks, one generator per concern.


def _broker_problems(config: BrokerConfig) -> Iterator[Problem]:
    yield from tls_problems(config)
    yield from _access_problems(config)
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
                (f"{value[:64]!r} is not a valid name; 1 to 127 letters, digits and _-.%|, no dot at the start"),
            )
    fault = topic_name_error(config.trace_topic)
    if fault is not None or config.trace_topic in FORBIDDEN_FOR_SENDING:
        yield "trace_topic", fault or f"clients may not send to {config.trace_topic}"
    role = config.role
    if role and role not in ROLES:
        yield "role", f"{config.role!r} is not a role; use one of {', '.join(ROLES)}"
    elif not role or config.registry_address:
        pass  # by the id, or as the group's record decides
    elif config.broker_id == 0 and role == "SLAVE":
        yield "role", "SLAVE contradicts brokerId 0; give the slave a brokerId above 0, or make it a master"
    elif config.broker_id > 0 and role != "SLAVE":
        yield (
            "role",
            (f"{config.role} contradicts brokerId {config.broker_id}; a master has brokerId 0, or make this a SLAVE"),
        )
    if config.broker_id < 0:
        yield "broker_id", f"{config.broker_id} is not a broker id; 0 is the master, slaves count from 1"
    if not 0 <= config.weight <= WEIGHT_MAX:
        yield "weight", f"{config.weight} is outside 0 to {WEIGHT_MAX}"
    if len(config.zone) > ZONE_CHARACTERS_MAX or not config.zone.isprintable():
        yield "zone", f"{config.zone[:64]!r} is not a valid zone; at most {ZONE_CHARACTERS_MAX} printable characters"
    if not 1 <= config.shards <= SHARDS_MAX:
        yield "shards", f"{config.shards} is outside 1 to {SHARDS_MAX}"
    if config.shard_of and not _NAME.match(config.shard_of):
        yield "shard_of", f"{config.shard_of[:64]!r} is not a valid name of a broker"
    if config.shard_roles_together and not config.registry_address:
        yield "shard_roles_together", "roles move in groups with a registry only; set registryAddr"
    if not 0 <= config.permission <= 15:
        yield "permission", f"{config.permission} is not a permission; 4 is read, 2 is write, 6 is both"


def _network_problems(config: BrokerConfig) -> Iterator[Problem]:
    yield from _listen_problems(config)
    yield from _port_problem("ha_port", config.ha_port)
    if config.listen_port in (1, 2):
        yield "listen_port", "the fast port is listenPort - 2, so it must be above 2, or 0 for any free port"
    if not config.ha_port and config.listen_port == PORT_MAX:
        yield (
            "ha_port",
            f"the default is listenPort + 1, and there is no port above {PORT_MAX}; set it, or lower listenPort",
        )
    if config.ha_port and config.ha_port in (config.listen_port, config.listen_port - 2):
        yield "ha_port", f"{config.ha_port} is already used by listenPort {config.listen_port} or its fast port (- 2)"
    for name in ("advertised_ip", "ha_advertised_ip"):
        value = getattr(config, name)
        if value and not _HOST.match(value):
            yield name, f"{value[:64]!r} is not an address; write one host or IP address, without a port"
        elif value:
            yield from _family_problem(name, value, config.bind_address)
    for address in config.name_servers:
        yield from _address_problem("name_servers", address)
    if not config.register_ms_min <= config.register_ms <= REGISTER_MS_MAX:
        yield (
            "register_ms",
            (
                f"{config.register_ms} is outside {config.register_ms_min} to {REGISTER_MS_MAX} ms; "
                "registerNameServerPeriodMin sets the lower bound"
            ),
        )
    if config.message_bytes_max + RECORD_EXTRA_BYTES > config.frame_bytes_max:
        yield (
            "message_bytes_max",
            (f"{config.message_bytes_max} plus 64 KiB does not fit into frameMaxLength {config.frame_bytes_max}"),
        )


def _access_problems(config: BrokerConfig | ProxyConfig) -> Iterator[Problem]:
    has_users = config.checks_users if isinstance(config, BrokerConfig) else config.authentication_enable
    if config.authorization_enable and not has_users:
        yield (
            "authorization_enable",
            "policies mean nothing without authenticationEnabled: each client could use any name",
        )
    try:
        inner_user(config)
    except ConfigError as error:
        yield "inner_credentials", str(error)
    if isinstance(config, BrokerConfig):
        try:
            init_user(config)
        except ConfigError as error:
            yield "init_user", str(error)


def _name_server_access_problems(config: NameServerConfig) -> Iterator[Problem]:
    for name, read in (("inner_credentials", inner_user), ("init_user", init_user)):
        try:
            read(config)
        except ConfigError as error:
            yield name, str(error)
    has_users = config.ha_secret_file or config.init_user or config.inner_credentials or config.acl_path
    if config.authentication_enable and not has_users:
        yield (
            "authentication_enable",
            "there are no users; set haSecretFile, aclPath, or innerClientAuthenticationCredentials",
        )
    if config.authentication_enable and config.registry_enable and not config.ha_secret_file:
        yield "registry_enable", "with authenticationEnabled the registry needs haSecretFile, which its sessions prove"


def _listen_problems(config: BrokerConfig | NameServerConfig | ProxyConfig) -> Iterator[Problem]:
    yield from monitoring_problems(config)
    yield from _port_problem("listen_port", config.listen_port)
    try:
        ipaddress.ip_address(config.bind_address)
    except ValueError:
        yield (
            "bind_address",
            f"{config.bind_address[:64]!r} is not an IP address; 0.0.0.0 stands for all interfaces, IPv4 and IPv6",
        )
    if not 1024 <= config.frame_bytes_max <= JAVA_INT_MAX:
        yield "frame_bytes_max", f"{config.frame_bytes_max} is outside 1024 to {JAVA_INT_MAX}"
    for name in ("unfinished_bytes_max", "untaken_bytes_max"):
        bytes_max = getattr(config, name)
        if bytes_max < config.frame_bytes_max:
            longest = key_of(type(config), "frame_bytes_max")
            yield name, f"{bytes_max} is less than {longest}, {config.frame_bytes_max}"


def _family_problem(name: str, advertised: str, bound: str) -> Iterator[Problem]:
    """Find an advertised IP address that the listening sockets of another address family never serve."""
    try:
        address, listening = ipaddress.ip_address(advertised.strip("[]")), ipaddress.ip_address(bound)
    except ValueError:
        return  # A host name, or an invalid bindAddress, which is reported elsewhere.
    if not listening.is_unspecified and address.version != listening.version:
        yield (
            name,
            (
                f"nobody reaches {advertised}: it is an IPv{address.version} address, and bindAddress {bound} is IPv"
                f"{listening.version}; 0.0.0.0 as bindAddress stands for all interfaces, IPv4 and IPv6"
            ),
        )


def _port_problem(name: str, port: int) -> Iterator[Problem]:
    if not 0 <= port <= PORT_MAX:
        yield name, f"{port} is not a port; 1 to {PORT_MAX}, or 0 for any free one"


def _address_problem(name: str, address: str) -> Iterator[Problem]:
    match = _ADDRESS.match(address)
    if match is None or not 0 < int(match[2]) <= PORT_MAX:
        yield name, f"{address[:64]!r} is not an address; write host:port, several separated by ;"


def _store_problems(config: BrokerConfig) -> Iterator[Problem]:
    if not config.store_path.strip():
        yield "store_path", "the directory of the store is missing"
    if not SEGMENT_BYTES_MIN <= config.segment_bytes <= JAVA_INT_MAX:
        yield "segment_bytes", f"{config.segment_bytes} is outside {SEGMENT_BYTES_MIN} to {JAVA_INT_MAX} bytes"
    if not 20 <= config.queue_file_bytes <= JAVA_INT_MAX or config.queue_file_bytes % 20:
        yield "queue_file_bytes", f"{config.queue_file_bytes} is not a multiple of 20, the size of one entry"
    if config.flush_type not in FLUSH_TYPES:
        yield "flush_type", f"{config.flush_type!r} is unknown; use one of {', '.join(FLUSH_TYPES)}"


def _retention_problems(config: BrokerConfig) -> Iterator[Problem]:
    hours = config.delete_when.split(";")
    if not all(re.match(r"[0-9]{1,2}\Z", hour.strip()) and int(hour) < 24 for hour in hours):
        yield "delete_when", f"{config.delete_when!r} is not a list of hours; write 00 to 23, separated by ;"
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
            yield (
                "ha_classic_peers",
                f"{peer[:64]!r} is not an IP address; write addresses without ports, separated by ;",
            )
    yield from _ha_tls_problems(config)
    if not 1 <= config.ha_batch_bytes <= CLASSIC_FRAME_BYTES_MAX:
        yield "ha_batch_bytes", f"{config.ha_batch_bytes} is outside 1 to {CLASSIC_FRAME_BYTES_MAX} bytes"
    if config.ha_heartbeat_ms >= config.ha_housekeeping_ms:
        yield (
            "ha_heartbeat_ms",
            (
                f"{config.ha_heartbeat_ms} is not below haHousekeepingInterval {config.ha_housekeeping_ms}: "
                "idle connections would be closed before their first heartbeat"
            ),
        )
    if not 1 <= config.takeover_checks <= TAKEOVER_CHECKS_MAX:
        yield "takeover_checks", f"{config.takeover_checks} is outside 1 to {TAKEOVER_CHECKS_MAX}"
    if not 0 <= config.memory_ratio_max <= 100:
        yield "memory_ratio_max", f"{config.memory_ratio_max} is outside 0 to 100 percent"


def _ha_tls_problems(config: BrokerConfig) -> Iterator[Problem]:
    if not config.ha_tls_cert_file:
        for name in ("ha_tls_key_file", "ha_tls_ca_file", "ha_tls_server_name"):
            if getattr(config, name):
                yield name, "has no effect without haTlsCertFile, the certificate of this broker"
        return
    if not config.ha_tls_key_file:
        yield "ha_tls_key_file", "the private key of haTlsCertFile is missing"
    if config.ha_classic_peers:
        yield "ha_classic_peers", "Java slaves do not support TLS on this port: remove them or haTlsCertFile"
    if config.ha_protocol == "classic":
        yield "ha_protocol", "a Java master does not support TLS on this port: remove classic or haTlsCertFile"


def tls_problems(config: TlsConfig) -> Iterator[Problem]:
    """Yield the problems of the settings of TLS for clients."""
    for name, allowed in (
        ("tls_mode", TLS_MODES),
        ("tls_client_auth", ("none", "optional", "require")),
        ("tls_enable", ("", "true", "false")),
    ):
        value = getattr(config, name)
        if value not in allowed:
            yield name, f"{value[:64]!r} is unknown; use one of {', '.join(filter(None, allowed))}"
    if config.tls_client_auth == "require" and not config.tls_verify_clients:
        yield (
            "tls_client_auth",
            (
                "require without tls.server.authClient would accept any certificate; set tls.server.authClient=true, "
                "and tls.server.trustCertPath to the authorities of the clients"
            ),
        )


def _name_server_problems(config: NameServerConfig) -> Iterator[Problem]:
    yield from tls_problems(config)
    yield from _name_server_access_problems(config)
    yield from _listen_problems(config)
    if not config.data_path.strip():
        yield "data_path", "the directory of kvConfig.json is missing"
    for name in ("broker_expiry_ms", "connections_max", "connection_idle_ms"):
        if getattr(config, name) < 1:
            yield name, f"{getattr(config, name)} is too small; the smallest is 1"


def _proxy_problems(config: ProxyConfig) -> Iterator[Problem]:
    yield from tls_problems(config)
    yield from _access_problems(config)
    yield from _listen_problems(config)
    for address in config.name_servers:
        yield from _address_problem("name_servers", address)
    if not config.name_servers:
        yield "name_servers", "no name server is given; write host:port, several separated by ;"
    for name in ("clients_max", "connections_max"):
        if getattr(config, name) < 1:
            yield name, f"{getattr(config, name)} is too small; the smallest is 1"
    if not 1 <= config.invisible_ms_min <= INVISIBLE_MS_MAX:
        yield "invisible_ms_min", f"{config.invisible_ms_min} is outside 1 to {INVISIBLE_MS_MAX}"
    if not 1 <= config.processes <= PROCESSES_MAX:
        yield "processes", f"{config.processes} is outside 1 to {PROCESSES_MAX}"
    elif config.processes > 1 and not config.listen_port:
        yield "processes", "several processes need a grpcServerPort other than 0"
