"""`tandemq ha` on shards: one row for those of a machine, and what `switch --shards` refuses."""

from typing import Any

import pytest

from tandemq.cli.ha.roles import _check_target
from tandemq.cli.ha.shards import machine_rows, roles_texts, with_other_shards
from tandemq.cli.support.members import FoundBroker, Group, GroupSearch
from tandemq.errors import ConfigError, LocalError, RemoteError

NOWHERE = GroupSearch((), None, "127.0.0.1:1")


def row(broker: str, broker_id: int, shard_of: str = "", **more: Any) -> dict[str, Any]:
    usual = {"role": "MASTER", "address": f"{broker}:{broker_id}", "state": "answers", "logEnd": 7, "lagBytes": None}
    return {"broker": broker, "id": broker_id, "shardOf": shard_of, "slavesInSync": 1, **usual, **more}


def test_shards_of_a_machine_are_one_row_and_other_brokers_stay() -> None:
    rows = [
        row("a", 0, "a"),
        row("a", 1, "a", role="SLAVE", slavesInSync=None, lagBytes=3),
        row("a-1", 0, "a", slavesInSync=0),
        row("a-1", 1, "a", role="SLAVE", slavesInSync=None, lagBytes=4, state="no answer"),
        row("b", 0),
        row("c", 0, "c"),
    ]
    joined = machine_rows(rows)
    assert [(each["broker"], each["id"]) for each in joined] == [
        ("a, 2 shards", 0),
        ("a, 2 shards", 1),
        ("b", 0),
        ("c", 0),
    ]
    master, slave = joined[:2]
    assert (master["state"], master["role"], master["slavesInSync"], master["lagBytes"]) == (
        "answers",
        "MASTER",
        0,
        None,
    )
    assert (slave["state"], slave["lagBytes"], slave["slavesInSync"]) == ("answers, no answer", 7, None)
    assert (master["logEnd"], master["address"]) == (None, "a:0")
    assert joined[2:] == rows[4:]


def group(name: str, master: int | None, *in_sync: int, shard_of: str = "a", is_together: bool = False) -> Group:
    members = [
        FoundBroker(
            name,
            number,
            f"{name}:{number}",
            True,
            {
                "isMaster": number == master,
                "stage": "serving",
                "inSync": list(in_sync),
                "epoch": 1,
                "shardOf": shard_of,
                "shardRolesTogether": is_together,
                "mode": "elect",
            },
        )
        for number in range(2)
    ]
    return Group(name, members)


def test_target_must_be_in_sync_in_each_group_that_has_a_master() -> None:
    _check_target(group("a", 0, 0, 1), 1)
    with pytest.raises(RemoteError, match="a-1: broker 1 is not in sync; no group is switched"):
        _check_target(group("a-1", 0, 0), 1)
    with pytest.raises(LocalError, match="group a has no active master"):
        _check_target(group("a", None, 0, 1), 1)


def test_group_without_shards_has_no_others() -> None:
    with pytest.raises(ConfigError, match="group a has no shards"):
        with_other_shards(group("a", 0, shard_of=""), NOWHERE)


def test_machine_whose_roles_move_together_says_where_its_masters_are() -> None:
    assert roles_texts([group("a", 0), group("a-1", 0)]) == []
    first = group("a", 1, is_together=True)
    assert roles_texts([first, group("a-1", 1, is_together=True)]) == [
        "a: roles of its shards move together; broker 1 has all masters"
    ]
    (text,) = roles_texts([first, group("a-1", 0, is_together=True), group("a-2", None, is_together=True)])
    assert "they are apart: broker 1 has a; broker 0 has a-1; no broker has a-2" in text
