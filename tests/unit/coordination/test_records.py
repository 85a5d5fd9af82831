from dataclasses import replace
from itertools import product

import pytest

from tandemq.coordination.registry import records
from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupConfig,
    GroupMember,
    GroupMode,
    GroupState,
    LiveBroker,
    Mode,
    Role,
)
from tandemq.errors import ConfigError
from tests.spec import spec

MASTER = GroupMember(0, Role.MASTER)
SLAVE = GroupMember(1, Role.SLAVE)
PAIR = GroupConfig(Mode.SLAVE_CONSUME, (MASTER, SLAVE))


@pytest.mark.parametrize("mode", list(Mode))
def test_pair_is_valid_in_every_mode_and_its_json_round_trips(mode: Mode) -> None:
    config = replace(PAIR, mode=mode)
    data = records.config_to_json(config)
    assert records.config_from_json("broker-a", data) == config
    assert records.config_to_json(replace(config, members=(SLAVE, MASTER))) == data


@spec("F40")
@pytest.mark.parametrize("permission", list(BrokerPermission))
def test_slave_may_have_any_permission_in_slave_consume(permission: BrokerPermission) -> None:
    config = GroupConfig(Mode.SLAVE_CONSUME, (MASTER, replace(SLAVE, permission=permission)))
    assert records.config_from_json("broker-a", records.config_to_json(config)) == config


def test_json_of_a_state_and_a_live_broker_round_trips() -> None:
    state = GroupState(7, 1, (1, 2), GroupMode.SLAVE_CONSUME, 2, 1_700_000_000_000, "master gone", 2)
    assert records.state_from_json("broker-a", records.state_to_json(state)) == state
    live = LiveBroker(1, "10.0.0.1:10911", "10.0.0.1:10912", 7, 4711)
    assert records.live_from_json(records.live_to_json(live)) == live


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GroupConfig(Mode.ELECT, ()), "0 members"),
        (GroupConfig(Mode.ELECT, tuple(GroupMember(i, Role.SLAVE) for i in range(17))), "17 members"),
        (GroupConfig(Mode.ELECT, (MASTER, GroupMember(1, Role.MASTER))), "brokers 0, 1 are all master"),
        (GroupConfig(Mode.ELECT, (MASTER, SLAVE, SLAVE)), "broker 1 is listed 2 times"),
        (GroupConfig(Mode.STATIC, (SLAVE,)), "no master"),
        (GroupConfig(Mode.STATIC, (GroupMember(0, Role.SLAVE), GroupMember(1, Role.MASTER))), "broker id 0"),
        (GroupConfig(Mode.SLAVE_CONSUME, (GroupMember(0, Role.SLAVE), GroupMember(1, Role.SLAVE))), "has no master"),
        (
            GroupConfig(Mode.ELECT, (replace(MASTER, permission=BrokerPermission.READ), SLAVE)),
            "broker 0 is the first master",
        ),
        (GroupConfig(Mode.ELECT, (replace(SLAVE, permission=BrokerPermission.READ),)), "no member is writable"),
        (GroupConfig(Mode.ELECT, (GroupMember(-1, Role.SLAVE),)), "-1 is not a broker id"),
        (GroupConfig(Mode.ELECT, (replace(MASTER, weight=-1),)), "weight -1"),
        (GroupConfig(Mode.ELECT, (replace(MASTER, priority=1 << 31),)), "priority"),
    ],
)
def test_contradictory_configuration_is_refused_with_the_reason(config: GroupConfig, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        records.check_config("broker-a", config)
    with pytest.raises(ConfigError, match=reason):
        records.config_from_json("broker-a", records.config_to_json(config))


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a b", "x" * 128, "ü"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid broker name"):
        records.check_config(name, PAIR)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "JSON object"),
        (b'{"mode":"static"}', "members must be a list"),
        (b'{"mode":"other","members":[]}', "use one of static, slave-consume, elect"),
        (b'{"mode":"static","members":[7]}', "member must be an object"),
        (b'{"mode":"static","members":[{"brokerId":true}]}', "brokerId must be an integer"),
        (b'{"mode":"static","members":[{"brokerId":0,"role":"boss"}]}', "role is 'boss'"),
    ],
)
def test_malformed_configuration_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        records.config_from_json("broker-a", data)


@pytest.mark.parametrize(
    "data", [b"{}", b'{"inSync":[true]}', b'{"inSync":[1],"epoch":"7"}', b'{"inSync":[1],"epoch":7,"master":1}']
)
def test_malformed_state_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="the state of group broker-a"):
        records.state_from_json("broker-a", data)


def test_intersection_of_permissions() -> None:
    for left, right in product(BrokerPermission, BrokerPermission):
        both = left & right
        assert both.may_read == (left.may_read and right.may_read)
        assert both.may_write == (left.may_write and right.may_write)


def test_member_is_added_or_replaced() -> None:
    third = GroupMember(2, Role.SLAVE, BrokerPermission.READ)
    assert records.with_member(PAIR, third).members == (MASTER, SLAVE, third)
    changed = replace(SLAVE, weight=5)
    assert records.with_member(PAIR, changed).members == (MASTER, changed)


def test_paths_are_one_tree() -> None:
    assert records.live_broker_path("main", "broker-a", 1) == "/tandemq/main/groups/broker-a/live/1"
    assert records.config_path("main", "broker-a") == "/tandemq/main/groups/broker-a/config"
    assert records.state_path("main", "broker-a").startswith(records.groups_path("main") + "/")
