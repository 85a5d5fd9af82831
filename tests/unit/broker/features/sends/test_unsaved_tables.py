"""Acknowledgements wait for the topics of their messages to be saved, on the master and on slaves, not for others.

Clients that create topics without a pause kept those of all others waiting: something was always unsaved.
"""

from pathlib import Path

import pytest

from tandemq.boundary import Job
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode, ResponseCode
from tests.request_fields import topic_fields
from tests.unit.broker.harness import Harness, run_job, send_fields
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup


def create(broker: Harness, topic: str) -> None:
    broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, 1))


def send(broker: Harness, topic: str = "TopicA", **properties: str) -> int:
    return broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields(topic, 0, properties), b"body")


def save_of(broker: Harness) -> Job:
    """Take the job that saves tables."""
    (save,) = [job for job in broker.jobs if job.name == "save tables"]
    broker.jobs.remove(save)
    return save


def code_of(broker: Harness, opaque: int) -> int | None:
    answer = broker.answer_to(opaque)
    return None if answer is None else answer.code


def test_send_waits_for_its_topic_only(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create_topic("TopicA")
    broker.run_jobs = False
    create(broker, "First")
    assert code_of(broker, send(broker)) == ResponseCode.SUCCESS, "its topic is saved"
    sent, delayed = send(broker, "First"), send(broker, DELAY="1")
    create(broker, "Second")
    later = send(broker, "Second")
    assert [code_of(broker, one) for one in (sent, delayed, later)] == [None] * 3
    broker.turn([], [run_job(save_of(broker))])
    assert broker.node.kernel.saver.has_unsaved
    assert [code_of(broker, one) for one in (sent, delayed)] == [ResponseCode.SUCCESS] * 2
    assert code_of(broker, later) is None
    broker.turn([], [run_job(save_of(broker))])
    assert code_of(broker, later) == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", [{"DELAY": "1"}, {"TIMER_DELAY_SEC": "5"}, {"TRAN_MSG": "true", "PGROUP": "P"}])
def test_message_that_is_delivered_later_waits_for_all_topics(tmp_path: Path, kind: dict[str, str]) -> None:
    """The table of its own topic is needed when it is delivered; its record does not say which one that is."""
    broker = Harness(tmp_path)
    broker.pass_time(100)
    broker.run_jobs = False
    create(broker, "First")
    sent = send(broker, "First", UNIQ_KEY="K1", **kind)
    assert code_of(broker, sent) is None
    while broker.node.kernel.saver.has_unsaved:
        broker.turn([], [run_job(save_of(broker))])
    assert code_of(broker, sent) == ResponseCode.SUCCESS


def elected(tmp_path: Path) -> tuple[RegistryGroup, Broker, Broker]:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    master = next(broker for broker in group.brokers.values() if broker.may == "RW")
    (slave,) = [broker for broker in group.brokers.values() if broker is not master]
    master.create_topic("TopicA")
    group.pass_time(100)
    slave.run_jobs = False
    return group, master, slave


def send_to_new_topic(group: RegistryGroup, master: Broker, topic: str) -> int:
    """Create a topic and send a message to it; the slave gets the table before the message."""
    create(master, topic)
    group.pass_time(40)
    sent = send(master, topic)
    group.pass_time(40)
    return sent


def test_slave_confirms_messages_whose_topic_it_has_saved(tmp_path: Path) -> None:
    group, master, slave = elected(tmp_path)
    create(master, "Other")
    group.pass_time(40)
    other = send(master)
    group.pass_time(40)
    assert slave.node.kernel.saver.has_unsaved
    assert code_of(master, other) == ResponseCode.SUCCESS, "its topic is saved"
    sent = send_to_new_topic(group, master, "First")
    assert slave.node.store.log.written_end == master.node.store.log.written_end
    assert code_of(master, sent) is None, "the slave has not saved the topic"
    slave.turn([], [run_job(save_of(slave))])  # of the topic before
    slave.turn([], [run_job(save_of(slave))])
    group.pass_time(40)
    assert code_of(master, sent) == ResponseCode.SUCCESS


def test_slave_that_connects_again_confirms_nothing_that_needs_an_unsaved_table(tmp_path: Path) -> None:
    group, master, slave = elected(tmp_path)
    sent = send_to_new_topic(group, master, "First")
    for wire in [wire for wire in group.wires if slave in (wire.top, wire.bottom)]:
        wire.end("cut")
    group.pass_time(600)
    assert slave.node.replication.slave is not None
    assert slave.node.replication.slave.is_copying
    assert code_of(master, sent) is None
    slave.turn([], [run_job(save_of(slave))])
    group.pass_time(40)
    assert code_of(master, sent) == ResponseCode.SUCCESS
