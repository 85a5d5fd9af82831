"""Offsets that a consumer commits at a slave while the master is down, with real processes and SIGKILL."""

from pathlib import Path

import pytest

from tandemq.config.samples import ON_ANY_DISK
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.run.children import BrokerChild, ChildCluster
from tests.blackbox.programs import Caller, wait_until
from tests.samples import slow
from tests.spec import spec

QUEUE = {"topic": "TopicA", "queueId": 0}
QUICK = {
    **ON_ANY_DISK,
    "metadataSyncInterval": 200,
    "registerNameServerPeriodMin": 1,
    "registerNameServerPeriod": 1_000,
}


def caller_of(broker: BrokerChild) -> Caller:
    return Caller(int(broker.address.rpartition(":")[2]))


def commit(broker: BrokerChild, group: str, offset: int) -> None:
    fields = {**QUEUE, "consumerGroup": group, "commitOffset": offset}
    with caller_of(broker) as caller:
        assert caller.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS


def offset_at(broker: BrokerChild, group: str) -> int:
    with caller_of(broker) as caller:
        answer = caller.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": group})
    return int(answer.fields.get("offset", -1)) if answer.code == ResponseCode.SUCCESS else -1


@spec("M09")
@pytest.mark.parametrize("restarts_slave", [slow(False), True])
def test_offset_committed_at_the_slave_survives_the_return_of_the_master(tmp_path: Path, restarts_slave: bool) -> None:
    with ChildCluster(tmp_path, groups=1, slaves=1, settings=QUICK) as cluster:
        master, slave = cluster.brokers
        with caller_of(master) as caller:
            wait_until(lambda: caller.send(b"body") == ResponseCode.SUCCESS, "the slave confirms messages")
            for _ in range(20):
                assert caller.send(b"body") == ResponseCode.SUCCESS
        for group in ("goes-on", "reset"):
            commit(master, group, 5)
        wait_until(lambda: offset_at(slave, "goes-on") == offset_at(slave, "reset") == 5, "the slave has the offsets")
        master.kill()
        commit(slave, "goes-on", 15)
        commit(slave, "reset", 15)
        if restarts_slave:
            assert slave.stop()
            slave.start()
        master.start()
        wait_until(lambda: offset_at(master, "goes-on") == 15, "the master has the offset of the slave")
        wait_until(lambda: offset_at(master, "reset") == 15, "the master has the offset of the slave")
        commit(master, "reset", 3)  # lower than both, as after a reset
        wait_until(lambda: offset_at(slave, "reset") == 3, "the slave has the offset that was reset")
        master.kill()
        master.start()
        assert offset_at(master, "goes-on") == 15, "saved before the slave forgot it"
