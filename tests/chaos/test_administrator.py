"""The administrator of `make chaos`: changes never contradict themselves, and take effect as the registry allows."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from chaos.administrator import Administrator
from tandemq.coordination.registry.records import BrokerPermission, GroupConfig, Mode, contradictions, with_member
from tandemq.run.groups import new_group
from tandemq.run.local import LocalCluster


def test_changes_are_refused_or_seen_by_the_brokers(tmp_path: Path) -> None:
    with LocalCluster(str(tmp_path / "cluster"), groups=1, slaves=1, mode=Mode.ELECT.value) as cluster:
        master = cluster.master().broker_id
        administrator = Administrator(tmp_path, cluster.registry, "broker-a", Mode.ELECT, 2, cluster.secret_file)
        try:
            first = administrator.first
            members = tuple(member for member in first.members if member.broker_id != master)
            only = replace(first, members=members)
            assert f"broker {master} is the master at present" in administrator.change(only)
            assert administrator.config == first
            assert administrator.change(read_only(first, 1 - master)) == ""
            assert administrator.config != first
            assert administrator.change(first) == ""
        finally:
            administrator.close()


def read_only(config: GroupConfig, broker_id: int) -> GroupConfig:
    member = config.member(broker_id)
    assert member is not None
    return with_member(config, replace(member, permission=BrokerPermission.READ))


@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_drawn_changes_differ_and_never_contradict_themselves(mode: Mode, tmp_path: Path) -> None:
    administrator = Administrator(tmp_path, "namesrv://127.0.0.1:1", "broker-a", mode, 2)
    try:
        drawn = [administrator.draw(Random(seed), seed % 2) for seed in range(60)]
    finally:
        administrator.close()
    assert not [what for what, config in drawn if list(contradictions(config))]
    kinds = {"permission", "dropped", "weight"} | ({"master"} if mode is Mode.SLAVE_CONSUME else set())
    assert {what.partition(" ")[0] for what, _ in drawn} == kinds
    assert [config for _, config in drawn if config != new_group(mode, 2)]
