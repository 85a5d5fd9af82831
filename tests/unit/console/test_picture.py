"""The picture of groups, from the answers of brokers."""

from typing import Any

from tandemq.console.cluster.picture import BAD, OK, WARNING, BrokerAnswers, GroupView, groups_of
from tests.unit.console.fakes import CLUSTER, MASTER, SLAVE, failover


def group(*answers: dict[str, Any] | None, replication: dict[str, Any] | None = None) -> GroupView:
    """Return the picture of broker-a whose members 0 and 1 have given these answers, None for none."""
    found = [
        BrokerAnswers("broker-a", number, (MASTER, SLAVE)[number], answer is not None, answer, replication)
        for number, answer in enumerate(answers)
    ]
    return groups_of(found, {"broker-a": CLUSTER})[0]


def texts(view: GroupView) -> list[str]:
    return [one.text.format(**one.values) for one in view.problems]


def test_group_in_sync_is_ok() -> None:
    view = group(failover(0), failover(1))
    assert (view.level, view.mode, view.epoch, view.problems) == (OK, "elect", 3, ())
    assert view.master is not None and view.master.broker_id == 0
    assert [(one.broker_id, one.in_sync, one.lag_bytes, one.lag_ms) for one in view.replicas] == [(1, True, 512, 1_500)]


def test_dead_replica_is_a_warning_and_dead_master_is_bad() -> None:
    view = group(failover(0, in_sync=(0,)), None)
    assert view.level == WARNING
    assert texts(view) == ["no replica in sync", "broker 1 does not answer"]
    view = group(None, failover(1))
    assert view.level == BAD
    assert texts(view) == ["no active master", "broker 0 does not answer"]
    assert texts(group(None, None)) == ["no member answers"]


def test_replica_behind_is_named() -> None:
    assert texts(group(failover(0, in_sync=(0,)), failover(1))) == ["no replica in sync", "broker 1 is not in sync"]


def test_new_master_replaces_the_one_with_the_older_epoch() -> None:
    view = group(failover(0), failover(1, master=1, epoch=4))
    assert view.master is not None and view.master.broker_id == 1 and view.epoch == 4


def test_configured_member_without_an_address_is_shown() -> None:
    status = failover(0, in_sync=(0,))
    status["members"][1]["address"] = ""
    view = group(status)
    away = view.member(1)
    assert away is not None and not away.answers


def test_slave_consume_says_who_is_read() -> None:
    view = group(None, failover(1, mode="slave-consume", groupMode="slave-consume", reader=1))
    assert "read from broker 1, the master is away" in texts(view)


def test_fixed_roles_take_lag_from_the_master() -> None:
    links = {"haConnectionInfo": [{"brokerId": 1, "diff": 77, "inSync": True}]}
    answers = [{"brokerName": "broker-a", "brokerId": n, "mode": "static", "isMaster": n == 0} for n in (0, 1)]
    view = group(*answers, replication=links)
    assert view.level == OK
    assert view.replicas[0].lag_bytes == 77 and view.replicas[0].in_sync


def test_java_pair_is_shown_by_its_ids() -> None:
    found = [BrokerAnswers("broker-a", number, (MASTER, SLAVE)[number], True) for number in (0, 1)]
    view = groups_of(found, {})[0]
    assert view.master is not None and view.master.broker_id == 0 and view.level == OK
