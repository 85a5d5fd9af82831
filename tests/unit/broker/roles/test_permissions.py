"""Truth tables of `slave-consume` with brokers: requests allowed by permission and state of the group, and the
conditions under which a master is isolated. The rules alone: `tests/unit/coordination/test_rules.py`.
"""

import itertools
from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.coordination.registry.records import BrokerPermission, GroupMode, Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.spec import spec
from tests.unit.broker.harness import send_fields
from tests.unit.broker.roles.registry_group import CONFIRM_MS, SESSION_MS, STEP_MS, Broker, RegistryGroup

OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 0}
ASKED = {
    BrokerPermission.FULL: "RWC",
    BrokerPermission.READ: "RC",
    BrokerPermission.WRITE: "W",
    BrokerPermission.NONE: "",
}
"""Requests that are accepted under each permission: pulls, sends, commits."""
LEASE_OVER_MS = 1_700
"""After this time a lease of 1.3 s is over, and no member has taken over yet."""


def group_of(path: Path, members: int, started: list[int]) -> RegistryGroup:
    disks = {number: SimDisk(Random(number)) for number in range(members)}
    return RegistryGroup(path, Mode.SLAVE_CONSUME, members=members, started=started, disks=disks)


def allowed(group: RegistryGroup, broker: Broker) -> str:
    """Return the kinds of client requests that a member accepts."""
    pulled = broker.pull("TopicA", 0)
    assert pulled is not None
    opaque = broker.send_request(Code.SEND_MESSAGE_V2, send_fields("TopicA"), b"body")
    group.settle()
    sent = broker.answer_to(opaque)
    assert sent is not None
    answers = {"R": pulled, "W": sent, "C": broker.ask(Code.UPDATE_CONSUMER_OFFSET, OFFSET)}
    for answer in answers.values():
        assert answer.code != ResponseCode.NO_PERMISSION or "may not serve this" in str(answer.remark)
    return "".join(what for what, answer in answers.items() if answer.code != ResponseCode.NO_PERMISSION)


@spec("F12", "F13", "F06", "F10")
@pytest.mark.parametrize("slaves", [BrokerPermission.FULL, BrokerPermission.READ])
@pytest.mark.parametrize("masters", list(BrokerPermission))
def test_accepted_requests_by_state_and_permission(
    masters: BrokerPermission, slaves: BrokerPermission, tmp_path: Path
) -> None:
    group = group_of(tmp_path, 2, [0, 1])
    group.send(group.brokers[0])
    group.allow(0, masters)
    group.allow(1, slaves)
    group.pass_time(1_000)
    assert [allowed(group, broker) for broker in group.brokers.values()] == [ASKED[masters], ""]
    group.kill(0)
    group.pass_time(5_000)
    slave = group.brokers[1]
    assert allowed(group, slave) == ("RC" if masters.may_read else ""), "a master that may not be read is not replaced"
    slave.heartbeat("group", {"TopicA": "*"})  # a consumer whose commits are waited for
    master = group.start(0)
    group.pass_time(500)
    if masters.may_read:
        assert group.record.mode is GroupMode.SLAVE_CONSUME
        assert (allowed(group, master), allowed(group, slave)) == ("", "C"), "during the offset handover"
    group.pass_time(2_000)
    assert (allowed(group, master), allowed(group, slave)) == (ASKED[masters], "")


@spec("F41", "F17", "F14")
@pytest.mark.parametrize("checks", [1, 2, 5])
def test_slave_serves_reads_after_the_configured_number_of_checks(checks: int, tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, takeover_checks=checks)
    group.pass_time(1_500)
    group.kill(0)
    killed_ms, slave = group.now.mono_ms, group.brokers[1]
    while not slave.may and group.now.mono_ms < killed_ms + 10_000:
        group.pass_time(STEP_MS)
    after_ms = group.now.mono_ms - killed_ms - (checks - 1) * 1_000
    assert slave.may == "R" and SESSION_MS - CONFIRM_MS <= after_ms <= SESSION_MS + 200


@spec("F40", "F17", "F19")
@pytest.mark.parametrize("exempt", [BrokerPermission.NONE, BrokerPermission.WRITE])
def test_exempt_slave_never_serves_and_the_next_one_does(exempt: BrokerPermission, tmp_path: Path) -> None:
    group = group_of(tmp_path, 3, [0, 1, 2])
    group.send(group.brokers[0])
    group.allow(1, exempt)
    group.pass_time(1_500)
    assert group.record.in_sync == (0, 1, 2)
    group.kill(0)
    group.pass_time(5_000)
    assert (allowed(group, group.brokers[1]), allowed(group, group.brokers[2])) == ("", "RC")
    group.kill(2)
    group.pass_time(10_000)
    assert allowed(group, group.brokers[1]) == ""


def is_there(is_master: bool, is_assigned: bool, was_connected: bool, is_alone: bool, _: bool) -> bool:
    """Return whether there is a running broker: not a slave that was not started, or was killed."""
    return is_master or (is_assigned and was_connected and not is_alone)


@spec("F31", "F16", "F28", "F29")
@pytest.mark.parametrize("facts", [facts for facts in itertools.product((False, True), repeat=5) if is_there(*facts)])
def test_broker_is_isolated_only_if_all_five_conditions_hold(
    facts: tuple[bool, bool, bool, bool, bool], tmp_path: Path
) -> None:
    is_master, is_assigned, was_connected, is_alone, has_no_registry = facts
    has_slave = is_assigned and was_connected
    group = group_of(tmp_path, 2 if is_assigned else 1, [0, 1] if has_slave else [0])
    if has_slave and is_alone:
        group.kill(1)
    if has_no_registry:
        group.cut_off.add(0)
    group.pass_time(LEASE_OVER_MS)
    broker = group.brokers[0 if is_master else 1]
    assert broker.failover.member.status(group.now).is_lonely is all(facts)
    assert allowed(group, broker) == ("RWC" if is_master and not all(facts) else "")
