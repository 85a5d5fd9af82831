"""Log lines about a registry that is unreachable, empty or slow, or does not contain the broker; and their end."""

from pathlib import Path

import pytest

from tandemq.coordination.registry.records import Mode, config_path
from tandemq.registry import Delete, NodeFound, Read
from tests.unit.broker.roles.registry_group import RegistryGroup


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING" and record.getMessage().startswith(("failover: trouble:", "failover: over:"))
    ]


def alone(tmp_path: Path, number: int = 0) -> RegistryGroup:
    """Start one broker, in a group whose configuration contains only broker 0."""
    return RegistryGroup(tmp_path, Mode.ELECT, members=1, started=(number,), settles=False)


def test_unreachable_registry_is_logged_once_and_its_return_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = alone(tmp_path)
    group.registry_is_up = False
    group.pass_time(20_000)
    (line,) = said(caplog)
    assert "trouble: the registry zookeeper://box:2181 does not answer" in line
    group.registry_is_up = True
    group.pass_time(20_000)
    assert [text.split(" the ")[0] for text in said(caplog)] == ["failover: trouble:", "failover: over:"]
    assert group.brokers[0].may == "RW"


def test_outage_within_a_session_timeout_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    for _ in range(5):
        group.registry_is_up = False
        group.pass_time(1_500)
        group.registry_is_up = True
        group.pass_time(1_500)
    slave = 1 - group.record.master
    group.kill(slave)
    group.start(slave)  # while its earlier session is still there
    group.pass_time(5_000)
    assert said(caplog) == []


def test_empty_registry_is_logged_until_the_configuration_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = alone(tmp_path)
    path = config_path("DefaultCluster", "broker-a")
    found = group._do(Read(path))
    assert isinstance(found, NodeFound)
    group._do(Delete(path, found.version))
    group.pass_time(20_000)
    (line,) = said(caplog)
    assert "the group's configuration is not in the registry" in line
    assert "tandemq ha config apply" in line
    group.configure()
    group.pass_time(5_000)
    assert len(said(caplog)) == 2
    assert said(caplog)[1].startswith("failover: over: the group's configuration")
    assert group.brokers[0].may == "RW"


def test_broker_that_is_not_a_member_logs_it_and_refuses_its_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = alone(tmp_path, 7)
    group.pass_time(20_000)
    (line,) = said(caplog)
    for text in (line, str(group.brokers[7].send("TopicA").remark)):
        assert "broker 7 is not a member of group broker-a" in text
        assert "tandemq ha config set broker-a --member 7,role=slave" in text


def test_slow_registry_is_logged_although_the_session_is_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    group.confirm_ms = dict.fromkeys(group.brokers, 1 << 60)  # nothing is confirmed from now on
    for _ in range(20):
        for session in group.sessions.values():
            group.tree.touch(session, group.now.mono_ms)
        group.pass_time(1_000)
    assert len(said(caplog)) == 2, "one line of each broker"
    assert all("trouble: the registry is slow" in line for line in said(caplog))
    assert group.serving.may == "RW", "its slave receives its heartbeats"
    group.confirm_ms = {}
    group.pass_time(5_000)
    assert [line.split(" the ")[0] for line in said(caplog)[2:]] == ["failover: over:"] * 2
