"""Names, ports and stores of shards."""

from dataclasses import replace
from typing import Any

import pytest

from tandemq.config.files import load_broker_config
from tandemq.config.settings import BrokerConfig
from tandemq.config.shards import settings_of, shard_configs
from tandemq.errors import ConfigError


def test_shard_0_is_the_broker_of_the_settings_and_others_have_a_number() -> None:
    config = BrokerConfig(shards=3, metrics_port=5557, metrics_bind_address="0.0.0.0", ha_port=11000, broker_id=1)
    shards = shard_configs(replace(config, role="SLAVE", ha_master_address="h:10912"))
    found = [(each.broker_name, each.listen_port, each.ha_port, each.store_path) for each in shards]
    assert found == [
        ("broker-a", 10911, 11000, "store"),
        ("broker-a-1", 10921, 11010, "store/shards/1"),
        ("broker-a-2", 10931, 11020, "store/shards/2"),
    ]
    assert [each.ha_master_address for each in shards] == ["h:10912", "h:10922", "h:10932"]
    assert {(each.shards, each.shard_of, each.broker_id) for each in shards} == {(1, "broker-a", 1)}
    assert {(each.metrics_port, each.metrics_bind_address) for each in shards} == {(0, "127.0.0.1")}


def test_ports_that_follow_from_others_or_are_any_free_ones_stay_so() -> None:
    shards = shard_configs(BrokerConfig(shards=2, metrics_exporter="PROM"))
    assert [each.replication_port for each in shards] == [10912, 10922]
    assert {(each.ha_port, each.metrics_port, each.metrics_exporter) for each in shards} == {(0, 0, "DISABLE")}
    shards = shard_configs(BrokerConfig(shards=64, listen_port=0))
    assert {(each.listen_port, each.ha_port, each.metrics_port) for each in shards} == {(0, 0, -1)}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"metrics_port": 10921}, "port 10921 would be the listenPort of broker-a-1 and the metricsPort"),
        ({"ha_port": 10921}, "port 10921 would be the listenPort of broker-a-1 and the haListenPort of broker-a"),
        ({"ha_port": 10919}, "port 10919 would be the fast port of broker-a-1 and the haListenPort of broker-a"),
        ({"listen_port": 65530}, "shard broker-a-1: listenPort: 65540 is not a port"),
        ({"broker_name": "b" * 126}, "shard b.*-1: brokerName: .* is not a valid name"),
    ],
)
def test_settings_that_do_not_suffice_for_all_shards_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        shard_configs(BrokerConfig(shards=2, **settings))


@pytest.mark.parametrize("number", ["0", "65"])
def test_number_of_shards_has_bounds(number: str) -> None:
    with pytest.raises(ConfigError, match=f"shards: {number} is outside 1 to 64"):
        load_broker_config("", path="broker.conf", warn=pytest.fail, overrides={"shards": number})


def test_roles_do_not_move_together_without_a_registry() -> None:
    overrides = {"shards": "2", "shardRolesTogether": "true"}
    with pytest.raises(ConfigError, match="shardRolesTogether: roles move in groups with a registry only"):
        load_broker_config("", path="broker.conf", warn=pytest.fail, overrides=overrides)
    overrides["registryAddr"] = "namesrv://h:9876"
    assert load_broker_config("", path="broker.conf", warn=pytest.fail, overrides=overrides).shard_roles_together


def test_settings_of_a_shard_are_read_as_they_were() -> None:
    (_, shard) = shard_configs(
        BrokerConfig(
            shards=2,
            name_servers=("a:1", "b:2"),
            init_user='{"username":"u","password":"a=b #c"}',
            metrics_label="zone:a",
            acl_enable=True,
            disk_full_ratio=0.95,
        )
    )
    assert load_broker_config("", path="shard.conf", warn=pytest.fail, overrides=settings_of(shard)) == shard
