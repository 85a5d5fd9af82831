"""Group configurations of a local cluster: written before brokers start, kept, and changed only without data loss."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.config.settings import NameServerConfig
from tandemq.coordination.registry import records
from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupConfig,
    GroupMember,
    GroupMode,
    GroupState,
    Mode,
    Role,
)
from tandemq.errors import ConfigError, RemoteError
from tandemq.groupdb.database import GroupDatabase
from tandemq.registry import Create, NodeFound, Read, Write, parse_address
from tandemq.run.groups import CLUSTER, configure, has_registry, new_group
from tandemq.run.local import LocalCluster
from tandemq.run.nameserver import NameServerProcess
from tandemq.run.registry_session import RegistryClient
from tests.blackbox.in_process import running


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Start a registry without brokers, and yield its address."""
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, data_path=str(tmp_path), registry_enable=True)
    with running(NameServerProcess(config)) as server:
        yield f"namesrv://{server.address}"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[GroupDatabase]:
    with GroupDatabase(f"sqlite:///{tmp_path / 'groups.db'}") as opened:
        yield opened


def in_database(database: GroupDatabase) -> tuple[GroupConfig | None, int, bool]:
    """Return configuration and revision of broker-a in the database, and whether it is applied."""
    found = database.group(CLUSTER, "broker-a")
    assert found is not None
    return found.config, found.revision, found.is_applied


def stored(address: str, name: str = "broker-a") -> GroupConfig:
    with RegistryClient(parse_address(address)) as client:
        found = client.do(Read(records.config_path(CLUSTER, name)))
    assert isinstance(found, NodeFound)
    return records.config_from_json(name, found.data)


def put_state(address: str, state: GroupState) -> None:
    with RegistryClient(parse_address(address)) as client:
        client.do(Create(records.state_path(CLUSTER, "broker-a"), records.state_to_json(state)))


def in_sync(address: str) -> tuple[int, ...]:
    with RegistryClient(parse_address(address)) as client:
        found = client.do(Read(records.state_path(CLUSTER, "broker-a")))
    assert isinstance(found, NodeFound)
    return records.state_from_json("broker-a", found.data).in_sync


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("members", [1, 2, 3])
def test_default_configuration_of_a_new_group_is_valid(mode: Mode, members: int) -> None:
    config = records.check_config("broker-a", new_group(mode, members))
    assert config.master is not None
    assert (config.master.broker_id, len(config.members)) == (0, members)


def test_default_mode_of_new_groups_is_elect(registry: str) -> None:
    assert configure(registry, ["broker-a", "broker-b"], None, 2) is Mode.ELECT
    assert configure(registry, ["broker-c"], Mode.SLAVE_CONSUME, 2) is Mode.SLAVE_CONSUME
    assert stored(registry, "broker-b") == new_group(Mode.ELECT, 2)
    with pytest.raises(ConfigError, match=r"different modes \(broker-b: elect, broker-c: slave-consume\)"):
        configure(registry, ["broker-b", "broker-c"], None, 2)


def test_existing_configuration_is_kept_and_new_members_are_added(registry: str) -> None:
    members = (GroupMember(0, Role.MASTER, weight=7), GroupMember(1, Role.SLAVE, BrokerPermission.FULL, priority=5))
    config = GroupConfig(Mode.ELECT, members)
    with RegistryClient(parse_address(registry)) as client:
        client.do(Create(records.config_path(CLUSTER, "broker-a"), records.config_to_json(config)))
    assert configure(registry, ["broker-a"], None, 2) is Mode.ELECT
    assert stored(registry) == config
    configure(registry, ["broker-a"], None, 3)
    assert stored(registry) == GroupConfig(Mode.ELECT, (*members, GroupMember(2, Role.SLAVE)))
    configure(registry, ["broker-a"], Mode.SLAVE_CONSUME, 2)
    assert stored(registry) == GroupConfig(
        Mode.SLAVE_CONSUME,
        (
            members[0],
            GroupMember(1, Role.SLAVE, priority=5),
            GroupMember(2, Role.SLAVE),
        ),
    )


def test_database_gets_what_the_registry_has(registry: str, database: GroupDatabase) -> None:
    pair = new_group(Mode.ELECT, 2)
    for _ in range(2):
        configure(registry, ["broker-a"], None, 2, database=database)
        assert in_database(database) == (pair, 1, True)
    configure(registry, ["broker-a"], Mode.SLAVE_CONSUME, 3)  # without the database
    configure(registry, ["broker-a"], None, 2, database=database)
    assert in_database(database) == (new_group(Mode.SLAVE_CONSUME, 3), 2, True)
    configure(registry, ["broker-a"], Mode.ELECT, 2, database=database)
    assert in_database(database) == (stored(registry), 3, True)
    assert stored(registry) == new_group(Mode.ELECT, 3)


def test_revision_that_is_not_applied_stays_with_missing_members_and_a_requested_mode(
    registry: str, database: GroupDatabase
) -> None:
    configure(registry, ["broker-a"], Mode.SLAVE_CONSUME, 2, database=database)
    swapped = GroupConfig(Mode.SLAVE_CONSUME, (GroupMember(0, Role.SLAVE, weight=7), GroupMember(1, Role.MASTER)))
    database.change(CLUSTER, "broker-a", lambda _: swapped, wall_ms=1)
    configure(registry, ["broker-a"], None, 2, database=database)
    assert in_database(database) == (swapped, 2, False)
    assert stored(registry) == new_group(Mode.SLAVE_CONSUME, 2)
    configure(registry, ["broker-a"], None, 3, database=database)
    third = GroupMember(2, Role.SLAVE)
    assert in_database(database) == (GroupConfig(swapped.mode, (*swapped.members, third)), 3, False)
    assert stored(registry) == new_group(Mode.SLAVE_CONSUME, 3)
    configure(registry, ["broker-a"], Mode.ELECT, 3, database=database)
    assert stored(registry) == new_group(Mode.ELECT, 3)
    config, revision, is_applied = in_database(database)
    assert config is not None and (config.mode, config.member(0), revision, is_applied) == (
        Mode.ELECT,
        GroupMember(0, Role.MASTER, weight=7),
        4,
        False,
    )


def test_removal_that_is_not_applied_stays(registry: str, database: GroupDatabase) -> None:
    configure(registry, ["broker-a"], None, 2, database=database)
    database.change(CLUSTER, "broker-a", lambda _: None, wall_ms=1)
    configure(registry, ["broker-a"], None, 2, database=database)
    assert in_database(database) == (None, 2, False)
    assert stored(registry) == new_group(Mode.ELECT, 2)


@pytest.mark.parametrize("is_applied", [True, False])
def test_registry_that_has_lost_a_group_gets_it_from_the_database(
    registry: str, database: GroupDatabase, is_applied: bool
) -> None:
    members = (GroupMember(0, Role.SLAVE), GroupMember(1, Role.MASTER, weight=7))
    config = GroupConfig(Mode.SLAVE_CONSUME, members)
    group = database.change(CLUSTER, "broker-a", lambda _: config, wall_ms=1)
    if is_applied:
        database.mark_applied(group)
    assert configure(registry, ["broker-a"], None, 2, database=database) is Mode.SLAVE_CONSUME
    assert stored(registry) == config
    assert in_database(database) == (config, 1, True)


def test_refused_change_of_mode_changes_neither_registry_nor_database(registry: str, database: GroupDatabase) -> None:
    configure(registry, ["broker-a"], Mode.ELECT, 2, database=database)
    put_state(registry, GroupState(4, 1, (0, 1), reader=1))
    with pytest.raises(ConfigError, match=r"broker 1 is its master"):
        configure(registry, ["broker-a"], Mode.STATIC, 2, database=database)
    assert in_database(database) == (stored(registry), 1, True)


def test_static_is_refused_while_another_broker_than_0_is_master(registry: str) -> None:
    configure(registry, ["broker-a"], Mode.ELECT, 2)
    put_state(registry, GroupState(4, 1, (0, 1), reader=1))
    with pytest.raises(ConfigError, match=r"broker 1 is its master.*tandemq ha switch"):
        configure(registry, ["broker-a"], Mode.STATIC, 2)
    assert stored(registry).mode is Mode.ELECT
    configure(registry, ["broker-a"], Mode.SLAVE_CONSUME, 2)
    assert stored(registry).mode is Mode.SLAVE_CONSUME


@pytest.mark.parametrize("after", [Mode.STATIC, Mode.ELECT])
def test_mode_change_is_refused_until_the_offset_handover(registry: str, after: Mode) -> None:
    configure(registry, ["broker-a"], Mode.SLAVE_CONSUME, 2)
    put_state(registry, GroupState(1, 0, (0, 1), GroupMode.SLAVE_CONSUME, 1))
    with pytest.raises(ConfigError, match="broker 1 still has consumers' offsets"):
        configure(registry, ["broker-a"], after, 2)


def test_only_the_master_is_in_sync_after_mode_static(registry: str) -> None:
    configure(registry, ["broker-a"], Mode.STATIC, 2)
    put_state(registry, GroupState(2, 0, (0, 1), reader=0))
    configure(registry, ["broker-a"], Mode.STATIC, 2)
    assert in_sync(registry) == (0, 1)
    configure(registry, ["broker-a"], Mode.ELECT, 2)
    assert in_sync(registry) == (0,)


def test_group_with_removed_configuration_does_not_lose_data(registry: str) -> None:
    put_state(registry, GroupState(4, 1, (0, 1), reader=1))
    with pytest.raises(ConfigError, match=r"broker 1 is its master"):
        configure(registry, ["broker-a"], Mode.STATIC, 2)
    with pytest.raises(ConfigError, match=r"broker 1 is the master at present"):
        configure(registry, ["broker-a"], Mode.ELECT, 1)
    configure(registry, ["broker-a"], Mode.ELECT, 2)
    assert in_sync(registry) == (1,)


def test_unreadable_configuration_is_not_overwritten(registry: str) -> None:
    configure(registry, ["broker-a"], Mode.ELECT, 2)
    with RegistryClient(parse_address(registry)) as client:
        client.do(Write(records.config_path(CLUSTER, "broker-a"), b"rubbish", 0))
    with pytest.raises(ConfigError, match="configuration of group broker-a"):
        configure(registry, ["broker-a"], Mode.ELECT, 2)


def test_refused_group_name_is_an_error(registry: str) -> None:
    with pytest.raises(RemoteError, match="the registry does not return"):
        configure(registry, ["x" * 5_000], Mode.ELECT, 2)


def test_registry_of_an_earlier_run_is_detected(tmp_path: Path) -> None:
    assert not has_registry(tmp_path / "namesrv")
    with LocalCluster(tmp_path, slaves=1, mode="elect"):
        pass
    assert has_registry(tmp_path / "namesrv")
