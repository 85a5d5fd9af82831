"""Topics that are deleted at the master: slaves, new ones too, have the master's queues."""

from pathlib import Path

from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member, delete_files
from tests.unit.broker.harness import messages_in


def _delete(group: Group, topic: str = "TopicA") -> None:
    asked = group.master.send_request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    group.settle()
    answer = group.master.answer_to(asked)
    assert answer is not None, "the slave has the record"
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def _bodies(member: Member, topic: str = "TopicA") -> list[bytes]:
    answer = member.pull(topic=topic, most=32)
    assert answer is not None
    return [message.body for message in messages_in(answer)] if answer.code == ResponseCode.SUCCESS else []


def _queues(member: Member) -> dict[tuple[str, int], tuple[int, int]]:
    return {key: (queue.min_offset, queue.max_offset) for key, queue in member.node.store.queues.items()}


@spec("T21")
def test_new_empty_slave_has_no_message_of_a_deleted_topic(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(5)
    group.send_many(3, topic="Kept")
    _delete(group)
    group.settle()
    group.stop(group.slave)
    delete_files(tmp_path / "slave1")
    group.restart_slave()
    group.tell_master(group.slave)
    group.pass_time(10_000)
    assert group.slave.log_bytes() == group.master.log_bytes()
    assert _queues(group.slave) == _queues(group.master)
    assert len(_bodies(group.slave, "Kept")) == 3
    assert ("TopicA", 0) not in group.slave.node.store.queues


@spec("T21")
def test_running_slave_follows_a_deletion_and_serves_the_topic_made_again(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.tell_master(group.slave)
    group.send_many(5)
    group.pass_time(10_000)
    assert len(_bodies(group.slave)) == 5
    _delete(group)
    group.master.create_topic("TopicA")
    group.send_many(2)
    group.pass_time(20_000)
    assert _queues(group.slave) == _queues(group.master)
    assert _bodies(group.slave) == _bodies(group.master)
    assert len(_bodies(group.master)) == 2


@spec("T21")
def test_deletion_holds_after_a_restart_that_walks_the_whole_log(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.send_many(5)
    _delete(group)
    group.send_many(2)
    group.settle()
    before = _queues(group.master)
    group.stop(group.master)
    for name in ("consumequeue", "index"):
        delete_files(tmp_path / "master" / name)
    group.restart_master()
    assert _queues(group.master)["TopicA", 0] == before["TopicA", 0] == (0, 2)
