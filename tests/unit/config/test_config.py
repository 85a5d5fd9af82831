"""Settings: default values and validation."""

from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest

from lab.samples import tiny, tiny_name_server
from tandemq.config.settings import DELAY_LEVELS, BrokerConfig, NameServerConfig, key_of, parse_delay_levels
from tandemq.config.validation import ROLES, problems, validate
from tandemq.errors import ConfigError
from tests.spec import spec


def test_defaults_are_valid() -> None:
    assert validate(BrokerConfig()) == BrokerConfig()
    assert validate(NameServerConfig()) == NameServerConfig()


def test_keys_are_unique() -> None:
    for config in (BrokerConfig, NameServerConfig):
        keys = [item.metadata["key"] for item in fields(config)]
        assert len(keys) == len(set(keys))
    assert key_of(BrokerConfig, "broker_name") == "brokerName"


@spec("R02")
@pytest.mark.parametrize(("role", "broker_id"), list(product(ROLES, (-1, 0, 1, 7))))
def test_role_and_id_must_agree(role: str, broker_id: int) -> None:
    agree = broker_id > 0 if role == "SLAVE" else broker_id == 0
    config = BrokerConfig(role=role, broker_id=broker_id)
    if agree:
        assert validate(config) is config
    else:
        with pytest.raises(ConfigError, match=r"brokerRole|brokerId"):
            validate(config)


@spec("R02")
@pytest.mark.parametrize("role", ["MASTER", "slave", "ASYNC_MASTER "])
def test_unknown_role_is_refused_with_the_list_of_roles(role: str) -> None:
    with pytest.raises(ConfigError, match="ASYNC_MASTER, SYNC_MASTER, SLAVE"):
        validate(BrokerConfig(role=role))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"cluster": ""}, "brokerClusterName"),
        ({"broker_name": "a b"}, "brokerName"),
        ({"broker_name": "../x"}, "brokerName"),
        ({"broker_name": ".."}, "brokerName"),
        ({"broker_name": "x" * 128}, "brokerName"),
        ({"permission": 99}, "brokerPermission"),
        ({"bind_address": "localhost"}, "bindAddress"),
        ({"advertised_ip": "a b"}, "brokerIP1"),
        ({"listen_port": -1}, "listenPort"),
        ({"listen_port": 2}, "listenPort"),
        ({"listen_port": 65_536}, "listenPort"),
        ({"ha_port": 70_000}, "haListenPort"),
        ({"ha_port": 10_911}, "haListenPort"),
        ({"ha_port": 10_909}, "haListenPort"),
        ({"listen_port": 65_535}, "haListenPort"),
        ({"name_servers": ("here",)}, "namesrvAddr"),
        ({"name_servers": ("here:0",)}, "namesrvAddr"),
        ({"name_servers": ("a:1", "a:1,b:2")}, "namesrvAddr"),
        ({"register_ms": 9_999}, "registerNameServerPeriod"),
        ({"register_ms": 60_001}, "registerNameServerPeriod"),
        ({"register_timeout_ms": 0}, "registerBrokerTimeoutMills"),
        ({"frame_bytes_max": 10}, "frameMaxLength"),
        ({"unfinished_bytes_max": (16 << 20) - 1}, "unfinishedFramesMax"),
        ({"untaken_bytes_max": (16 << 20) - 1}, "untakenAnswersMax"),
        ({"message_bytes_max": 16 << 20}, "maxMessageSize"),
        ({"store_path": " "}, "storePathRootDir"),
        ({"segment_bytes": 1_000}, "mappedFileSizeCommitLog"),
        ({"segment_bytes": 1 << 31}, "mappedFileSizeCommitLog"),
        ({"queue_file_bytes": 6_000_001}, "mappedFileSizeConsumeQueue"),
        ({"queue_file_bytes": 0}, "mappedFileSizeConsumeQueue"),
        ({"flush_type": "SYNC"}, "flushDiskType"),
        ({"sync_flush_timeout_ms": 0}, "syncFlushTimeout"),
        ({"reserved_hours": 0}, "fileReservedTime"),
        ({"delete_when": "24"}, "deleteWhen"),
        ({"delete_when": "4am"}, "deleteWhen"),
        ({"disk_used_ratio_max": 5}, "diskMaxUsedSpaceRatio"),
        ({"disk_full_ratio": 1.5}, "diskSpaceWarningLevelRatio"),
        ({"disk_force_ratio": 0.95}, "diskSpaceCleanForciblyRatio"),
        ({"ha_master_address": "10.0.0.1"}, "haMasterAddress"),
        ({"ha_protocol": "new"}, "haProtocol"),
        ({"ha_classic_peers": ("10.0.0.1:10912",)}, "haClassicPeers"),
        ({"ha_batch_bytes": 4 << 20}, "haTransferBatchSize"),
        ({"ha_heartbeat_ms": 20_000}, "haSendHeartbeatInterval"),
        ({"in_sync_replicas": 0}, "inSyncReplicas"),
        ({"takeover_checks": 0}, "takeoverChecks"),
        ({"takeover_checks": 31}, "takeoverChecks"),
        ({"memory_ratio_max": 101}, "accessMessageInMemoryMaxRatio"),
        ({"delay_levels": "1s 2x"}, "messageDelayLevel"),
        ({"bind_address": "127.0.0.1", "advertised_ip": "::1"}, "brokerIP1"),
        ({"bind_address": "::1", "ha_advertised_ip": "10.0.0.1"}, "brokerIP2"),
    ],
)
def test_invalid_broker_setting_is_named(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"\A{key}: "):
        validate(replace(BrokerConfig(), **change))


@pytest.mark.parametrize(
    "change",
    [
        {"name_servers": ("10.0.0.1:9876", "name.example:1", "[::1]:9876", "::1:9876")},
        {"ha_master_address": "10.0.0.1:10912"},
        {"ha_classic_peers": ("10.0.0.1", "::1")},
        {"listen_port": 0, "ha_port": 0},
        {"listen_port": 65_535, "ha_port": 10_912},
        {"broker_name": "host.example-1_%|"},
        {"delete_when": "04;16"},
        {"register_ms": 10, "register_ms_min": 1},
        {"in_sync_replicas": 1},
        {"bind_address": "::"},
        {"advertised_ip": "::1", "ha_advertised_ip": "[fd00::7]"},
        {"bind_address": "::", "advertised_ip": "10.0.0.1"},
        {"bind_address": "127.0.0.1", "advertised_ip": "broker.example"},
        {"segment_bytes": 16_385},
        {"ha_bytes_per_second": 0},
    ],
)
def test_valid_broker_setting_is_accepted(change: dict[str, Any]) -> None:
    assert problems(replace(BrokerConfig(), **change)) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"listen_port": 65_536}, "listenPort"),
        ({"data_path": ""}, "kvConfigPath"),
        ({"broker_expiry_ms": 0}, "brokerExpiry"),
        ({"connections_max": 0}, "maxConnections"),
        ({"unfinished_bytes_max": (16 << 20) - 1}, "unfinishedFramesMax"),
        ({"untaken_bytes_max": (16 << 20) - 1}, "untakenAnswersMax"),
        ({"bind_address": "x"}, "bindAddress"),
    ],
)
def test_invalid_name_server_setting_is_named(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"\A{key}: "):
        validate(replace(NameServerConfig(), **change))


@spec("H23")
@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ({}, 10_912),
        ({"listen_port": 30_911}, 30_912),
        ({"listen_port": 30_911, "ha_port": 4_000}, 4_000),
        ({"listen_port": 0}, 0),
        ({"listen_port": 0, "ha_port": 4_000}, 4_000),
    ],
)
def test_default_replication_port_is_listen_port_plus_1(ports: dict[str, int], expected: int) -> None:
    assert BrokerConfig(**ports).replication_port == expected  # type: ignore[arg-type]


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(BrokerConfig(role="SLAVE", listen_port=1, flush_type="NEVER"))
    assert all(key in str(caught.value) for key in ("brokerRole", "listenPort", "flushDiskType"))


def test_delay_levels_are_milliseconds() -> None:
    assert parse_delay_levels("1s 2m  3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)
    levels = parse_delay_levels(DELAY_LEVELS)
    assert len(levels) == 18
    assert (levels[0], levels[17]) == (1_000, 7_200_000)


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "-1s", "1.5s", "1S", "１s", "9999999999s"])
def test_malformed_delay_level_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_delay_levels(text)


def test_tiny_configurations_are_small_and_accept_changes() -> None:
    assert tiny().segment_bytes < 1 << 16
    assert tiny().listen_port == 0
    assert tiny(register_ms=20, broker_id=1, role="SLAVE").broker_id == 1
    assert tiny_name_server(broker_expiry_ms=5).broker_expiry_ms == 5
    with pytest.raises(ConfigError):
        tiny(broker_id=-1)


def test_timers_of_the_specification_are_the_defaults() -> None:
    config = BrokerConfig()
    assert (config.ha_heartbeat_ms, config.ha_housekeeping_ms, config.ha_reconnect_ms) == (5_000, 20_000, 5_000)
    assert (config.slave_timeout_ms, config.sync_flush_timeout_ms) == (3_000, 5_000)
    assert (config.register_ms, config.metadata_sync_ms) == (30_000, 10_000)
    assert NameServerConfig().broker_expiry_ms == 120_000
