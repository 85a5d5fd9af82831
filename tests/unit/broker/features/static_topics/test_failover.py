"""Static topics of a broker group: its mapping is that of whichever member is the master."""

from pathlib import Path

from lab.sim.workload.static_topic_requests import segment, update_request
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.spec import spec
from tests.unit.broker.features.static_topics.wired import mapping_of
from tests.unit.broker.ha.group import Group
from tests.unit.broker.harness import Harness, messages_in, run_job, send_fields
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup

TOPIC = "Static"


def create(broker: Harness, *, epoch: int = 1_000) -> None:
    """Create a static topic of one logical queue, in queue 1 of the group."""
    name = broker.config.broker_name
    request = update(name, epoch=epoch)
    assert broker.ask(request.code, request.fields, request.body).code == ResponseCode.SUCCESS


def update(name: str, *, epoch: int) -> Command:
    """Return the request that maps one logical queue to queue 1 of a group."""
    return update_request(mapping_of(TOPIC, name, {0: [segment(0, name, 1, 0)]}, epoch=epoch, total=1), 2)


def send(group: RegistryGroup, broker: Broker, body: bytes) -> str:
    """Send to the logical queue; return its offset there."""
    opaque = broker.send_request(Code.SEND_MESSAGE_V2, send_fields(TOPIC, 0), body)
    group.settle()
    answer = broker.answer_to(opaque)
    assert answer is not None
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE), answer.remark
    return answer.fields["queueOffset"]


@spec("L04")
def test_new_master_leads_the_logical_queues_of_the_one_that_died(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    create(group.brokers[0])
    assert send(group, group.brokers[0], b"first") == "0"
    group.kill(0)
    group.pass_time(4_000)

    new = group.serving
    assert new is group.brokers[1]
    assert send(group, new, b"second") == "1"
    assert new.node.store.queues[TOPIC, 1].max_offset == 2
    fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4}
    answer = new.ask(Code.PULL_MESSAGE, fields | {"subscription": "*"})
    assert [message.body for message in messages_in(answer)] == [b"first", b"second"]
    assert answer.fields["offsetDelta"] == "0"


@spec("L04", "M01")
def test_slave_with_a_fixed_role_copies_the_mapping_with_the_topics(tmp_path: Path) -> None:
    group = Group(tmp_path)
    create(group.master)
    group.tell_master(group.slave)
    group.pass_time(15_000)

    assert group.slave.node.topics.mappings.table == group.master.node.topics.mappings.table
    assert group.slave.node.topics.mappings.table.keys() == {TOPIC}


@spec("L04")
def test_changed_and_removed_mappings_follow_the_log_to_the_slave(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    master, slave = group.brokers[0], group.brokers[1]
    create(master)
    create(master, epoch=2_000)
    group.settle()
    assert slave.node.topics.mappings.table == master.node.topics.mappings.table
    assert slave.node.topics.mappings.table[TOPIC].epoch == 2_000
    assert not slave.node.topics.table[TOPIC].takes_plain

    master.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    group.settle()

    assert not slave.node.topics.mappings.table
    assert TOPIC not in slave.node.topics.table


@spec("L04")
def test_confirmed_mapping_is_that_of_the_next_master_too(tmp_path: Path) -> None:
    """A master that dies before its slave has a mapping has not confirmed it: else two groups would lead a queue."""
    group = RegistryGroup(tmp_path, Mode.ELECT)
    master, slave = group.brokers[0], group.brokers[1]
    create(master)
    group.settle()
    request = update(master.config.broker_name, epoch=2_000)

    opaque = master.send_request(request.code, request.fields, request.body)

    assert master.node.topics.mappings.table[TOPIC].epoch == 2_000
    assert slave.node.topics.mappings.table[TOPIC].epoch == 1_000
    assert master.answer_to(opaque) is None
    group.pass_time(200)
    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert slave.node.topics.mappings.table[TOPIC].epoch == 2_000


@spec("L04")
def test_mapping_that_is_saved_when_another_member_serves_is_not_confirmed(tmp_path: Path) -> None:
    """The next master does not have it."""
    group = RegistryGroup(tmp_path, Mode.ELECT)
    master = group.brokers[0]
    create(master)
    group.settle()
    request = update(master.config.broker_name, epoch=2_000)
    master.run_jobs = False
    opaque = master.send_request(request.code, request.fields, request.body)
    group.cut_off, group.apart = {0}, {0}
    group.pass_time(6_000)
    assert group.serving is group.brokers[1]
    assert master.answer_to(opaque) is None

    master.run_jobs = True
    for job in master.jobs:
        master.turn([], [run_job(job)])

    answer = master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.NO_PERMISSION


def test_member_that_does_not_serve_refuses_logical_queues(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    create(group.brokers[0])
    group.settle()
    slave = group.brokers[1]
    place = {"topic": TOPIC, "queueId": 0, "consumerGroup": "g", "commitOffset": 1}
    pull = place | {"queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "subscription": "*"}

    for code, fields in (
        (Code.GET_MAX_OFFSET, place),
        (Code.UPDATE_CONSUMER_OFFSET, place),
        (Code.PULL_MESSAGE, pull),
        (Code.SEND_MESSAGE_V2, send_fields(TOPIC, 0)),
        (Code.UPDATE_AND_CREATE_STATIC_TOPIC, place),
    ):
        assert slave.ask(code, fields).code == ResponseCode.NO_PERMISSION
