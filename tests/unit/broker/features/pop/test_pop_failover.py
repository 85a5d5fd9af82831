"""Pops in a group that elects its master: the next one neither repeats nor forgets what was popped."""

from pathlib import Path

import pytest

from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode, ResponseCode
from tests.request_fields import topic_fields
from tests.spec import spec
from tests.unit.broker.features.pop.consumer import TOPIC, Taken, bodies, pop_fields, taken_from
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup

COUNT = 12


@pytest.fixture
def group(tmp_path: Path) -> RegistryGroup:
    """Return a group with a topic that has messages, all in queue 0."""
    group = RegistryGroup(tmp_path, Mode.ELECT, members=3)
    group.serving.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, 1))
    for number in range(COUNT):
        assert group.send(group.serving, b"%02d" % number, topic=TOPIC) == ResponseCode.SUCCESS
    group.pass_time(3_000)
    return group


def pop(broker: Broker, **changes: object) -> list[Taken]:
    answer = broker.ask(RequestCode.POP_MESSAGE, pop_fields(**changes))
    return [] if answer.code == ResponseCode.POLLING_TIMEOUT else taken_from(answer)


def failed_over(group: RegistryGroup) -> Broker:
    """Kill the active member, and return the next one."""
    number = next(number for number, broker in group.brokers.items() if broker is group.serving)
    group.kill(number)
    group.pass_time(30_000)
    return group.serving


@spec("K01")
def test_new_master_repeats_no_pop_and_forgets_no_acknowledgement(group: RegistryGroup) -> None:
    first = group.serving
    taken = pop(first, maxMsgNums=8, invisibleTime=60_000)
    assert len(taken) == 8
    for message in taken[:5]:
        assert first.ask(RequestCode.ACK_MESSAGE, message.fields).code == ResponseCode.SUCCESS
    after = failed_over(group)
    assert after is not first
    rest = pop(after, invisibleTime=600_000)
    assert bodies(rest) == [b"%02d" % number for number in range(8, COUNT)]
    group.pass_time(40_000)
    assert bodies(pop(after)) == bodies(taken[5:])


def test_new_master_takes_acknowledgements_of_the_old_one_s_handles(group: RegistryGroup) -> None:
    taken = pop(group.serving, invisibleTime=60_000)
    after = failed_over(group)
    for message in taken:
        assert after.ask(RequestCode.ACK_MESSAGE, message.fields).code == ResponseCode.SUCCESS
    group.pass_time(70_000)
    assert pop(after) == []


@spec("K03")
def test_new_master_knows_which_batches_of_ordered_pops_are_handed_out(group: RegistryGroup) -> None:
    ordered = {"order": "true", "maxMsgNums": 3, "invisibleTime": 60_000}
    first = group.serving
    taken = pop(first, **ordered)
    assert first.ask(RequestCode.ACK_MESSAGE, taken[0].fields).code == ResponseCode.SUCCESS
    group.pass_time(500)
    after = failed_over(group)
    assert pop(after, **ordered) == []
    for message in taken[1:]:
        assert after.ask(RequestCode.ACK_MESSAGE, message.fields).code == ResponseCode.SUCCESS
    assert bodies(pop(after, **ordered)) == [b"03", b"04", b"05"]


def test_pops_are_answered_while_too_few_members_are_in_sync(group: RegistryGroup) -> None:
    """Sends say so with their code; a pop that did would make consumers drop messages that are theirs already."""
    for number, broker in list(group.brokers.items()):
        if broker is not group.serving:
            group.kill(number)
    group.pass_time(30_000)
    assert group.send(group.serving, b"x", topic=TOPIC) == ResponseCode.SLAVE_NOT_AVAILABLE
    answer = group.serving.ask(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=8))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert len(taken_from(answer)) == 8


def test_pop_of_a_master_whose_lease_has_ended_is_refused(group: RegistryGroup) -> None:
    """Another member may serve then, and hand the same messages out."""
    first = group.serving
    number = next(number for number, broker in group.brokers.items() if broker is first)
    group.cut_off.add(number)
    group.apart.add(number)
    opaque = first.send_request(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=8, invisibleTime=60_000))
    group.pass_time(2_000)
    assert first.may == ""
    assert first.answer_to(opaque) is None
    group.pass_time(2_000)
    answer = first.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.NO_PERMISSION
    group.pass_time(10_000)
    assert bodies(pop(group.serving, maxMsgNums=8)) == [b"%02d" % each for each in range(8)]
