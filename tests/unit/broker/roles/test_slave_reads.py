"""Groups with a registry whose slaves deliver old messages: what they answer, refuse and send back to the master."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.pulls.message_reader import MessageReader
from tandemq.codec.remoting.fastjson import dumps
from tandemq.coordination.registry.records import BrokerPermission, Mode
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.spec import spec
from tests.unit.broker.harness import messages_in
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup

MODES = (Mode.ELECT, Mode.SLAVE_CONSUME)
FOUND, AGAIN, NO_PERMISSION = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.NO_PERMISSION,
)
MEMORY = 50_000
"""Of the machines here: a slave's share is 5,000 bytes, a master's 10,000."""
COUNT = 40


def group_with_messages(path: Path, mode: Mode, **settings: Any) -> RegistryGroup:
    """Start a group whose slaves deliver old messages, with some messages in a queue."""
    group = RegistryGroup(
        path, mode, role="", memory_bytes=MEMORY, slave_read_enable=True, memory_ratio_max=20, **settings
    )
    for _ in range(COUNT):
        assert group.send(group.serving, b"x" * 1_000) == ResponseCode.SUCCESS
    group.pass_time(1_000)
    return group


def pull(broker: Broker, offset: int = 0, **named: Any) -> Command:
    answer = broker.pull("TopicA", offset, most=1, **named)
    assert answer is not None, "it is held"
    return answer


def suggested(answer: Command) -> str:
    return answer.fields["suggestWhichBrokerId"]


@spec("R10", "V20")
@pytest.mark.parametrize("mode", MODES)
def test_master_sends_a_consumer_far_behind_to_a_slave_which_delivers_and_sends_it_back(
    tmp_path: Path, mode: Mode
) -> None:
    group = group_with_messages(tmp_path, mode)
    master, slave = group.brokers[0], group.brokers[1]
    assert suggested(pull(master)) == "1"
    assert suggested(pull(master, COUNT - 2)) == "0"
    read = pull(slave)
    assert (read.code, suggested(read)) == (FOUND, "1")
    assert [message.queue_offset for message in messages_in(read)] == [0]
    near = pull(slave, COUNT - 5)
    assert (near.code, suggested(near)) == (FOUND, "0"), "the last answer of the slave sends the consumer back"
    back = pull(slave, COUNT - 2)
    assert (back.code, suggested(back), back.fields["nextBeginOffset"]) == (AGAIN, "0", str(COUNT - 2))


@spec("R10")
@pytest.mark.parametrize("mode", MODES)
def test_slave_commits_no_offset_and_sends_back_once_a_second(tmp_path: Path, mode: Mode) -> None:
    group = group_with_messages(tmp_path, mode)
    slave = group.brokers[1]
    assert pull(slave, commit=17).code == FOUND
    assert slave.node.offsets.get("TopicA", "group", 0) is None
    assert pull(slave, COUNT).code == AGAIN
    assert pull(slave, COUNT).code == NO_PERMISSION, "a consumer without the master in its route would not pause"
    assert pull(slave, COUNT, queue_id=1).code == AGAIN, "each queue is sent back"
    group.pass_time(1_000)
    assert pull(slave, COUNT).code == AGAIN


@pytest.mark.parametrize("mode", MODES)
def test_slave_heeds_the_limit_of_a_group(tmp_path: Path, mode: Mode) -> None:
    group = group_with_messages(tmp_path, mode)
    master, slave = group.brokers[0], group.brokers[1]
    quota = {"kind": "group", "name": "group", "messagesPerSecond": 2}
    master.send_request(Code.TANDEM_SET_QUOTAS, body=dumps({"quotas": [quota]}))
    group.pass_time(2_000)
    assert [pull(slave, offset).code for offset in range(4)] == [FOUND, FOUND, AGAIN, AGAIN]
    assert pull(slave, group="other").code == FOUND
    group.pass_time(1_000)
    assert pull(slave, 2).code == FOUND


@spec("R10", "F09")
@pytest.mark.parametrize("mode", MODES)
def test_slave_without_the_setting_refuses(tmp_path: Path, mode: Mode) -> None:
    group = RegistryGroup(tmp_path, mode, role="")
    group.send(group.serving)
    assert pull(group.brokers[1]).code == NO_PERMISSION


@spec("R10")
def test_setting_turned_off_sends_consumers_back(tmp_path: Path) -> None:
    group = group_with_messages(tmp_path, Mode.SLAVE_CONSUME)
    slave = group.brokers[1]
    assert pull(slave).code == FOUND
    assert slave.ask(Code.UPDATE_BROKER_CONFIG, body=b"slaveReadEnable=false").code == ResponseCode.SUCCESS
    back = pull(slave, 1)
    assert (back.code, suggested(back)) == (AGAIN, "0")


@spec("R10", "F06")
@pytest.mark.parametrize(("mode", "who"), [(Mode.ELECT, 0), (Mode.ELECT, 1), (Mode.SLAVE_CONSUME, 0)])
def test_permission_without_read_of_either_ends_it(tmp_path: Path, mode: Mode, who: int) -> None:
    group = group_with_messages(tmp_path, mode)
    group.allow(who, BrokerPermission.WRITE)
    group.pass_time(2_000)
    answer = pull(group.brokers[1])
    assert answer.code in (AGAIN, NO_PERMISSION)
    if who == 1:
        assert suggested(pull(group.brokers[0])) == "0"


@spec("R10")
@pytest.mark.parametrize("mode", MODES)
def test_slave_that_copies_no_more_delivers_nothing_and_is_not_suggested(tmp_path: Path, mode: Mode) -> None:
    group = group_with_messages(tmp_path, mode)
    group.apart.add(1)
    group.pass_time(40)
    assert pull(group.brokers[1]).code in (AGAIN, NO_PERMISSION)
    assert suggested(pull(group.serving)) == "0"


@spec("R10")
def test_slave_with_id_0_is_suggested_by_the_id_it_registers(tmp_path: Path) -> None:
    group = group_with_messages(tmp_path, Mode.SLAVE_CONSUME, master=1)
    assert group.brokers[0].node.registration.broker_id == 1
    assert suggested(pull(group.brokers[1])) == "1"
    assert suggested(pull(group.brokers[0])) == "1"


@spec("R10")
def test_slave_that_the_group_wants_is_suggested_else_the_smallest_id(tmp_path: Path) -> None:
    group = group_with_messages(tmp_path, Mode.ELECT, members=3)
    master = group.brokers[0]
    assert suggested(pull(master)) == "1"
    settings = master.node.groups.find("group", 0)
    assert settings is not None
    settings.which_broker_when_consume_slowly = 2
    assert suggested(pull(master)) == "2"
    group.kill(2)
    group.pass_time(40)
    assert suggested(pull(master)) == "1"


@spec("R10", "F09")
def test_while_a_slave_serves_reads_no_other_delivers_or_is_registered(tmp_path: Path) -> None:
    """Clients other than TandemQ's would pull from it, because it has the smallest id in their routes."""
    group = group_with_messages(tmp_path, Mode.SLAVE_CONSUME, members=3)
    group.kill(0)
    group.pass_time(5_000)
    reader = group.serving
    other = next(broker for broker in group.brokers.values() if broker is not reader)
    assert pull(reader).code == FOUND
    assert suggested(pull(reader)) == "0"
    assert pull(other).code == NO_PERMISSION
    assert other.node.registration.broker_id is None
    group.start(0)
    group.pass_time(6_000)
    assert group.brokers[0].may == "RW"
    assert {broker.node.registration.broker_id for broker in group.brokers.values()} == {0, 1, 2}


@spec("R10")
def test_unreadable_message_of_a_slave_is_read_from_the_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_with_messages(tmp_path, Mode.ELECT)
    slave = group.brokers[1]

    def fail(*_: object, **__: object) -> None:
        raise DiskFailed("bad sector")

    monkeypatch.setattr(MessageReader, "read", fail)
    answer = pull(slave, 3)
    assert (answer.code, suggested(answer), answer.fields["nextBeginOffset"]) == (AGAIN, "0", "3")
    assert pull(group.brokers[0], 3).code == ResponseCode.SYSTEM_ERROR
