"""Brokers of slave-consume groups whose roles an administrator changes, and their answers to consumers."""

import logging
from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.coordination.registry.records import GroupMode, Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.spec import spec
from tests.unit.broker.roles.registry_group import RegistryGroup

OK, NO_PERMISSION = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


def registered(group: RegistryGroup) -> dict[int, int | None]:
    """Return the id under which each broker registers at name servers."""
    return {number: broker.node.registration.broker_id for number, broker in group.brokers.items()}


@spec("F02", "F12")
def test_master_with_another_id_than_0_serves_and_registers_as_broker_0(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, master=1)
    assert {number: broker.may for number, broker in group.brokers.items()} == {0: "", 1: "RW"}
    assert registered(group) == {0: 1, 1: 0}
    group.kill(1)
    group.pass_time(4_000)
    assert group.brokers[0].may == "R"
    group.start(1)
    group.pass_time(4_000)
    assert (group.brokers[0].may, group.brokers[1].may) == ("", "RW")


@spec("F02")
def test_role_of_the_settings_is_not_used_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, master=1)
    assert "brokerRole=SLAVE is not used: the group's record names broker 1 as master" in caplog.text
    assert "brokerRole=SYNC_MASTER is not used: the group's record names broker 1 as master" in caplog.text


@spec("F02")
def test_changed_master_serves_after_the_start_of_both(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    assert group.send(group.brokers[0], b"before") == OK
    group.pass_time(1_000)
    group.master = 1
    group.configure()
    group.pass_time(3_000)
    assert group.brokers[0].may == "RW"
    for number in (1, 0):
        group.kill(number)
        group.start(number)
        group.pass_time(6_000)
    assert (group.brokers[0].may, group.brokers[1].may) == ("", "RW")
    assert group.record.epoch == 2
    assert group.send(group.brokers[1], b"after") == OK
    group.pass_time(1_000)
    assert group.brokers[0].log_bytes() == group.brokers[1].log_bytes()


@spec("F30", "F02")
def test_promoted_slave_truncates_what_the_lost_master_alone_had(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, role="")
    assert group.send(group.brokers[0], b"both") == OK
    group.pass_time(1_000)
    group.apart.add(1)
    group.pass_time(20)
    assert group.send(group.brokers[0], b"alone") == SLAVE_NOT_AVAILABLE
    group.kill(0)
    group.pass_time(4_000)
    reader = group.brokers[1]
    assert reader.may == "R"
    preview = reader.ask(Code.TANDEM_FORCE_MASTER, {"preview": "true"})
    assert preview.code == OK and "may be lost" in str(preview.remark)
    asked = reader.send_request(Code.TANDEM_FORCE_MASTER)
    group.pass_time(4_000)
    answer = reader.answer_to(asked)
    assert answer is not None and answer.code == OK, answer
    assert reader.may == "RW" and group.record.mode is GroupMode.NORMAL
    group.apart.clear()
    assert group.send(reader, b"new") == SLAVE_NOT_AVAILABLE
    group.start(0)
    group.pass_time(6_000)
    assert group.record.in_sync == (0, 1)
    assert group.brokers[0].log_bytes() == reader.log_bytes()
    assert any("set-aside" in str(path) for path in (tmp_path / "b0").rglob("*")), "the tail is kept"
    assert group.send(reader, b"copied") == OK


@spec("F02")
def test_master_by_a_switch_waits_for_the_slave_after_a_crash_of_its_machine(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, role="")
    assert group.send(group.brokers[0]) == OK
    group.pass_time(1_000)
    group.brokers[0].send_request(Code.TANDEM_SWITCH, {"target": 1})
    group.pass_time(1_000)
    assert group.send(group.brokers[1]) == OK
    group.kill(1)
    group.apart.add(0)
    group.start(1, boot_id="boot-2")
    group.pass_time(40_000)
    refused = group.brokers[1].send("TopicA")
    assert refused.code != OK and "waiting for slave [0]" in str(refused.remark)
    group.apart.clear()
    group.pass_time(2_000)
    assert group.send(group.serving) == OK


def test_removed_slave_is_not_waited_for_after_a_crash(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, role="")
    group.pass_time(1_000)
    group.kill(1)
    group.kill(0)
    group.start(0, boot_id="boot-2")
    group.pass_time(4_000)
    assert "waiting for slave [1]" in str(group.brokers[0].send("TopicA").remark)
    del group.allowed[1]
    group.configure()
    group.pass_time(1_000)
    assert group.send(group.brokers[0]) is not None
    assert group.brokers[0].send("TopicA").code in (OK, SLAVE_NOT_AVAILABLE)


@spec("F04")
def test_message_waits_for_the_slave_by_default(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, role="")
    assert group.send(group.brokers[0]) == OK
    assert group.brokers[0].json(Code.TANDEM_FAILOVER_STATUS)["warning"] == ""
    group.apart.add(1)
    group.pass_time(20)
    assert group.send(group.brokers[0]) == SLAVE_NOT_AVAILABLE


@spec("F04")
def test_administrator_may_choose_not_to_wait_and_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, role="ASYNC_MASTER")
    group.apart.add(1)
    group.pass_time(20)
    assert group.send(group.brokers[0]) == OK
    text = "messages are acknowledged before a slave has them"
    assert text in caplog.text
    assert text in group.brokers[0].json(Code.TANDEM_FAILOVER_STATUS)["warning"]


@spec("F06")
def test_heartbeat_of_a_consumer_is_refused_with_the_broker_that_serves(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    slave = group.brokers[1]
    answer = slave.heartbeat("group", {"TopicA": "*"})
    assert answer.code == NO_PERMISSION
    assert answer.remark == "broker 1 of broker-a is not readable: broker 0 at 10.1.0.0:10911 serves"
    assert group.brokers[0].heartbeat("group", {"TopicA": "*"}).code == OK
    assert slave.heartbeat("", producers=["p"]).code == OK, "producers are not concerned"
    group.kill(0)
    group.pass_time(4_000)
    assert slave.may == "R"
    assert "group" in slave.node.clients.consumers, "it need not wait for the consumer's next heartbeat"
    assert slave.heartbeat("group", {"TopicA": "*"}).code == OK


@spec("F06")
def test_no_heartbeat_is_refused_in_elect(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    assert group.brokers[1].heartbeat("group", {"TopicA": "*"}).code == OK


@spec("F25")
@pytest.mark.parametrize(("language", "is_closed"), [("JAVA", True), ("PYTHON", False)])
def test_reader_that_hands_over_disconnects_other_clients_consumers(
    tmp_path: Path, language: str, is_closed: bool
) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    reader = group.let_slave_read()
    link = 77
    reader.open(link)
    assert reader.heartbeat("group", {"TopicA": "*"}, link=link, language=language).code == OK
    group.start(0)
    group.pass_time(6_000)
    assert group.brokers[0].may == "RW"
    assert any(closed == link for closed, _ in reader.closes) is is_closed


@spec("F02")
def test_slave_removed_while_its_tail_was_awaited_truncates_it_when_it_returns(tmp_path: Path) -> None:
    """Found by simulation seed 1007470: the master continued the same generation, and refused the slave for ever."""
    disks = {number: SimDisk(Random(number)) for number in range(2)}
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, disks=disks)
    for number in range(20):
        assert group.send(group.brokers[0], b"%d" % number) == OK
    end = group.brokers[1].log_end
    for number in (1, 0):
        group.kill(number)
    disks[0].crash()
    master = group.start(0, boot_id="boot-2")
    group.pass_time(4_000)
    assert master.log_end < end
    assert group.send(master, b"refused") == ResponseCode.SERVICE_NOT_AVAILABLE
    before = list(master.node.replication.generations)
    permission = group.allowed.pop(1)
    group.configure()
    group.pass_time(1_000)
    assert master.node.replication.generations[-1][0] > before[-1][0]
    for number in range(30):
        assert group.send(master, b"new %d" % number) is not None
    group.allowed[1] = permission
    group.configure()
    slave = group.start(1)
    group.pass_time(4_000)
    assert slave.log_bytes() == master.log_bytes()
    assert set(group.record.in_sync) == {0, 1}
