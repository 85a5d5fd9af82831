"""Offsets that consumers committed at a slave while its master was down, in groups without a registry."""

from pathlib import Path

import pytest

from tandemq.broker.ha import offsets_ahead
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member


def _offset(member: Member, group: str = "group") -> int | None:
    return member.node.offsets.get("TopicA", group, 0)


def _group(path: Path) -> Group:
    """A group whose members have 20 messages and the offset 5."""
    group = Group(path)
    group.tell_master(group.slave)
    group.send_many(20)
    group.master.commit(5)
    group.pass_time(10_000)
    assert _offset(group.slave) == 5
    return group


def _return_master(group: Group) -> None:
    group.restart_master()
    group.tell_master(group.slave)
    group.pass_time(10_000)


@spec("M09", "M07")
@pytest.mark.parametrize("clean", [False, True])
def test_offset_committed_at_the_slave_is_the_masters_when_it_returns(tmp_path: Path, *, clean: bool) -> None:
    group = _group(tmp_path)
    group.stop(group.master, clean=clean)
    group.slave.commit(15)
    _return_master(group)
    assert _offset(group.master) == _offset(group.slave) == 15
    group.restart_master()
    assert _offset(group.master) == 15, "it is saved before the slave forgets it"


@spec("M09")
def test_offset_of_a_new_group_committed_at_the_slave_is_kept(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.master)
    group.slave.commit(7, group="new")
    _return_master(group)
    assert _offset(group.master, "new") == _offset(group.slave, "new") == 7


@spec("M09")
def test_slave_that_restarts_before_the_master_returns_still_hands_its_offsets_over(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.master)
    group.slave.commit(15)
    group.restart_slave(clean=True)
    _return_master(group)
    group.pass_time(10_000)  # the first copy of the tables came before the connection for the log
    assert _offset(group.master) == _offset(group.slave) == 15


@spec("M09")
def test_higher_offset_of_the_master_wins(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.master)
    group.slave.commit(15)
    group.restart_master()
    group.master.commit(18)
    group.tell_master(group.slave)
    group.pass_time(10_000)
    assert _offset(group.master) == _offset(group.slave) == 18


@spec("M09")
def test_reset_at_the_master_wins_over_a_higher_offset_of_the_slave(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.master)
    group.slave.commit(15)
    group.restart_master()
    group.master.node.offsets.reset("TopicA", "group", 0, 2)
    group.tell_master(group.slave)
    group.pass_time(10_000)
    assert _offset(group.master) == _offset(group.slave) == 2


@spec("M09")
def test_reset_at_the_slave_while_the_master_is_down_wins(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.master)
    group.slave.commit(15)
    group.slave.node.offsets.reset("TopicA", "group", 0, 1)
    _return_master(group)
    assert _offset(group.master) == _offset(group.slave) == 1


@spec("M09")
def test_consumer_that_goes_back_at_the_master_is_not_overridden(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.master)
    group.slave.commit(15)
    _return_master(group)
    group.master.commit(3)
    group.pass_time(30_000)
    assert _offset(group.master) == _offset(group.slave) == 3


@spec("M09")
def test_offset_of_a_topic_that_the_master_lacks_is_not_taken(tmp_path: Path) -> None:
    group = _group(tmp_path)
    fields = {"from": "1", "token": "0"}
    body = b'{"offsets":{"offsetTable":{"Gone@group":{"0":9},"TopicA@group":{"0":9}}}}'
    assert group.master.ask(RequestCode.TANDEM_HAND_OFFSETS, fields, body).code == ResponseCode.SUCCESS
    assert _offset(group.master) == 9
    assert group.master.node.offsets.get("Gone", "group", 0) is None


@spec("M09")
def test_java_master_gets_the_offsets_as_commits(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.master)
    group.slave.commit(15)
    group.slave.commit(7, group="new")
    group.restart_master()
    del group.master.node.features.requests[RequestCode.TANDEM_HAND_OFFSETS]
    group.tell_master(group.slave)
    group.pass_time(10_000)
    assert _offset(group.master) == _offset(group.slave) == 15
    assert _offset(group.master, "new") == 7
    assert not group.slave.node.offsets.ahead()


def test_java_master_gets_a_bounded_number_of_commits_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_ahead, "JAVA_COMMITS_MAX", 2)
    group = _group(tmp_path)
    group.stop(group.master)
    for number in range(5):
        group.slave.commit(1, group=f"g{number}")
    group.restart_master()
    del group.master.node.features.requests[RequestCode.TANDEM_HAND_OFFSETS]
    group.tell_master(group.slave)
    group.pass_time(40_000)
    assert [_offset(group.master, f"g{number}") for number in range(5)] == [1] * 5


def test_slave_takes_no_offsets_of_another_one(tmp_path: Path) -> None:
    group = _group(tmp_path)
    fields = {"from": "2", "token": "0"}
    answer = group.slave.ask(
        RequestCode.TANDEM_HAND_OFFSETS, fields, b'{"offsets":{"offsetTable":{"TopicA@g":{"0":9}}}}'
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert _offset(group.slave, "g") is None


@spec("M09")
def test_master_that_lost_its_offsets_gets_them_from_a_slave_also_after_another_start(tmp_path: Path) -> None:
    group = _group(tmp_path)
    group.stop(group.slave)
    slaves, group.slaves = group.slaves, []
    group.stop(group.master, clean=True)
    for path in (tmp_path / "master" / "config").glob("consumerOffset*"):
        path.unlink()
    for _ in range(2):
        group.restart_master()
        group.pass_time(10_000)
        assert _offset(group.master) is None
    group.slaves = slaves
    group.restart_slave()
    group.tell_master(group.slave)
    group.pass_time(10_000)
    assert _offset(group.master) == _offset(group.slave) == 5
    assert not group.master.node.offsets.may_lack_commits
