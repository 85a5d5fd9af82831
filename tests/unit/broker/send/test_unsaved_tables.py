"""Acknowledgements wait for the tables that were changed before their messages, not for later changes.

Clients that create topics without a pause kept those of all others waiting: something was always unsaved.
"""

from pathlib import Path

from tandemq.boundary import Job
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode, ResponseCode
from tests.request_fields import topic_fields
from tests.unit.broker.failover.registry_group import Broker, RegistryGroup
from tests.unit.broker.harness import Harness, run_job, send_fields


def create(broker: Harness, topic: str) -> None:
    broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, 1))


def send(broker: Harness) -> int:
    return broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"body")


def save_of(broker: Harness) -> Job:
    """Take the job that saves tables."""
    (save,) = [job for job in broker.jobs if job.name == "save tables"]
    broker.jobs.remove(save)
    return save


def code_of(broker: Harness, opaque: int) -> int | None:
    answer = broker.answer_to(opaque)
    return None if answer is None else answer.code


def test_send_is_acknowledged_although_later_changes_of_tables_are_unsaved(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create_topic("TopicA")
    broker.run_jobs = False
    create(broker, "First")
    sent = send(broker)
    create(broker, "Second")
    later = send(broker)
    assert code_of(broker, sent) is None
    broker.turn([], [run_job(save_of(broker))])
    assert broker.node.saver.has_unsaved
    assert code_of(broker, sent) == ResponseCode.SUCCESS
    assert code_of(broker, later) is None
    broker.turn([], [run_job(save_of(broker))])
    assert code_of(broker, later) == ResponseCode.SUCCESS


def elected(tmp_path: Path) -> tuple[RegistryGroup, Broker, Broker]:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    master = next(broker for broker in group.brokers.values() if broker.may == "RW")
    (slave,) = [broker for broker in group.brokers.values() if broker is not master]
    master.create_topic("TopicA")
    group.pass_time(100)
    slave.run_jobs = False
    return group, master, slave


def send_after_new_topic(group: RegistryGroup, master: Broker, topic: str) -> int:
    """Create a topic and send a message; the slave gets the table before the message."""
    create(master, topic)
    group.pass_time(40)
    sent = send(master)
    group.pass_time(40)
    return sent


def test_slave_confirms_messages_although_later_tables_are_unsaved(tmp_path: Path) -> None:
    group, master, slave = elected(tmp_path)
    sent = send_after_new_topic(group, master, "First")
    assert slave.node.store.log.written_end == master.node.store.log.written_end
    later = send_after_new_topic(group, master, "Second")
    assert code_of(master, sent) is None, "the slave has not saved a table that came before it"
    slave.turn([], [run_job(save_of(slave))])
    group.pass_time(40)
    assert slave.node.saver.has_unsaved
    assert code_of(master, sent) == ResponseCode.SUCCESS
    assert code_of(master, later) is None
    slave.turn([], [run_job(save_of(slave))])
    group.pass_time(40)
    assert code_of(master, later) == ResponseCode.SUCCESS


def test_slave_that_connects_again_confirms_nothing_that_needs_an_unsaved_table(tmp_path: Path) -> None:
    group, master, slave = elected(tmp_path)
    sent = send_after_new_topic(group, master, "First")
    for wire in [wire for wire in group.wires if slave in (wire.top, wire.bottom)]:
        wire.end("cut")
    group.pass_time(600)
    assert slave.node.replication.slave is not None
    assert slave.node.replication.slave.is_copying
    assert code_of(master, sent) is None
    slave.turn([], [run_job(save_of(slave))])
    group.pass_time(40)
    assert code_of(master, sent) == ResponseCode.SUCCESS
