"""A member in sync whose disk is full: what it could lose as the next master is confirmed to nobody."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.coordination.registry.records import Mode
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.spec import spec
from tests.unit.broker.features.static_topics.test_failover import TOPIC, create, update
from tests.unit.broker.harness import send_fields
from tests.unit.broker.roles.registry_group import RegistryGroup

OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": "0"}
REQUESTS: dict[str, Callable[[], Command]] = {
    "mapping": lambda: update("broker-a", epoch=2_000),
    "offset": lambda: Command(Code.UPDATE_CONSUMER_OFFSET, fields=OFFSET | {"commitOffset": "1"}),
    "message": lambda: Command(
        Code.SEND_MESSAGE_V2,
        fields={name: str(value) for name, value in send_fields("Fresh").items()} | {"d": "3"},
        body=b"first",
    ),
}


class FullSlave:
    """An elected pair with a static topic and a message; the disk of the slave takes no tables."""

    def __init__(self, path: Path, *, lag_ms_max: int = 60_000) -> None:
        self.disks = {number: SimDisk(Random(number)) for number in range(2)}
        self.group = RegistryGroup(path, Mode.ELECT, disks=self.disks, offsets_persist_ms=60_000, lag_ms_max=lag_ms_max)
        self.master = self.group.brokers[0]
        create(self.master)
        assert self.group.send(self.master) == ResponseCode.SUCCESS
        self.group.pass_time(1_000)
        for operation in ("pwrite", "replace"):
            self.disks[1].fail(operation, times=-1, error=DiskFull, prefix="config/")

    def asked(self, request: Command) -> int:
        """Send a request to the master; return its number after a second without a response."""
        opaque = self.master.send_request(request.code, request.fields, request.body)
        self.group.pass_time(1_000)
        assert self.master.answer_to(opaque) is None, "the slave has it in memory only"
        assert self.master.may == "RW", "the slave grants its leases all the same"
        return opaque


@spec("L04", "R11")
@pytest.mark.parametrize("what", REQUESTS)
def test_response_is_sent_as_soon_as_the_slave_has_room(tmp_path: Path, what: str) -> None:
    pair = FullSlave(tmp_path)
    opaque = pair.asked(REQUESTS[what]())
    pair.disks[1].heal()
    pair.group.pass_time(1_500)
    answer = pair.master.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    for number in (0, 1):
        pair.group.kill(number)
        pair.disks[number].kill()
    next_master = pair.group.start(1)
    assert next_master.node.topics.mappings.table[TOPIC].epoch == (2_000 if what == "mapping" else 1_000)
    assert next_master.node.offsets.get("TopicA", "group", 0) == (1 if what == "offset" else None)
    assert ("Fresh" in next_master.node.topics.table) == (what == "message")


@spec("L04", "R11")
@pytest.mark.parametrize("what", REQUESTS)
def test_next_master_that_loses_it_loses_nothing_that_was_confirmed(tmp_path: Path, what: str) -> None:
    """Found by simulation seed 1003233: the master and then its successor were killed."""
    pair = FullSlave(tmp_path)
    pair.asked(REQUESTS[what]())
    for number in (0, 1):
        pair.group.kill(number)
        pair.disks[number].kill()
    next_master = pair.group.start(1)
    assert next_master.node.topics.mappings.table[TOPIC].epoch == 1_000
    assert next_master.node.offsets.get("TopicA", "group", 0) is None
    assert "Fresh" not in next_master.node.topics.table


@spec("R11")
@pytest.mark.parametrize("what", REQUESTS)
def test_full_slave_leaves_the_members_in_sync_until_it_has_room(tmp_path: Path, what: str) -> None:
    pair = FullSlave(tmp_path, lag_ms_max=2_000)
    opaque = pair.asked(REQUESTS[what]())
    pair.group.pass_time(2_000)
    answer = pair.master.answer_to(opaque)
    assert answer is not None
    assert answer.code == (ResponseCode.FLUSH_SLAVE_TIMEOUT if what == "message" else ResponseCode.SUCCESS)
    assert set(pair.group.record.in_sync) == {0}
    for number in range(2, 12):
        pair.master.commit(number)
        pair.group.pass_time(500)
        assert pair.master.failover.member.must_ack == {0}, "and no response waits for it"
    pair.disks[1].heal()
    pair.group.pass_time(4_000)
    assert set(pair.group.record.in_sync) == {0, 1}
    assert pair.group.brokers[1].node.offsets.get("TopicA", "group", 0) == 11
