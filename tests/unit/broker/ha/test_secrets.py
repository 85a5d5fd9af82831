"""Replication with a secret: accepted and refused connections, counters, and log lines."""

import logging
from pathlib import Path

import pytest

from tandemq.boundary import LinkKind
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.ha.group import Group
from tests.unit.broker.harness import Harness

OK = ResponseCode.SUCCESS
SECRET, OTHER = b"a secret of some length", b"another secret of some length"


def status(member: Harness) -> dict[str, object]:
    found: dict[str, object] = loads(member.ask(RequestCode.GET_BROKER_HA_STATUS).body)
    return found


@spec("H24")
def test_group_with_a_secret_replicates_and_reports_it(tmp_path: Path) -> None:
    group = Group(tmp_path, slaves=2, secrets={0: SECRET, 1: SECRET, 2: SECRET})
    assert group.send_and_settle() == OK
    group.assert_same_logs()
    links = status(group.master)["haConnectionInfo"]
    assert isinstance(links, list)
    assert [link["authenticated"] for link in links] == [True, True]
    own = status(group.slave)["haClientRuntimeInfo"]
    assert isinstance(own, dict)
    assert own["authenticated"] is True
    assert status(group.master)["refusedTimes"] == 0


@spec("H24")
def test_wrong_secret_acknowledges_nothing_and_is_logged_once_a_minute_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    group = Group(tmp_path, secrets={0: SECRET, 1: OTHER})
    assert group.send_and_settle() == ResponseCode.SLAVE_NOT_AVAILABLE
    group.pass_time(59_000)
    lines = [
        r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "refused times" in r.getMessage()
    ]
    assert len(lines) == 2, "one line of the master, one of the slave"
    assert all("times=1" in line and "another haSecretFile" in line for line in lines)
    group.pass_time(4_000)
    lines = [r.getMessage() for r in caplog.records if "refused times" in r.getMessage()][2:]
    assert len(lines) == 2
    assert all("times=12" in line for line in lines), lines
    assert status(group.master)["refusedTimes"] == status(group.slave)["refusedTimes"] == 13
    table = loads(group.master.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert table["haRefusedTimes"] == "13"
    assert group.slave.log_end == 0


@spec("H24")
def test_slave_with_a_secret_does_not_ask_whether_its_master_is_a_java_broker(tmp_path: Path) -> None:
    """A peer that answers that request could make it copy any log."""
    group = Group(tmp_path, secrets={1: SECRET}, slave_changes={"ha_master_address": "", "ha_protocol": "auto"})
    group.tell_master(group.slave)
    group.pass_time(10_000)
    kinds = {connect.kind for connect in group.slave.connects if connect.address != "127.0.0.1:10911"}
    assert kinds == {LinkKind.HA_SLAVE}
    assert group.slave.session() is None
    assert group.slave.log_end == 0


def test_changed_secret_applies_to_the_next_connection(tmp_path: Path) -> None:
    group = Group(tmp_path, secrets={0: SECRET, 1: SECRET})
    group.secrets = {0: OTHER, 1: OTHER}
    group.restart_slave()
    group.pass_time(100)
    assert group.send_and_settle() != OK
    group.restart_master()
    group.pass_time(5_000)
    assert group.send_and_settle() == OK
