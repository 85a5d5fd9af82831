"""Unmodified Java consumers that are far behind read from a slave of a group with a registry, and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemq.coordination.registry.records import Mode
from tests.interop.checks import bodies
from tests.interop.driver import JavaDriver
from tests.interop.java import wait_until
from tests.interop.outages import cluster, given_by
from tests.interop.peers import CLIENTS, Broker
from tests.interop.wire import ask, wait_topic
from tests.spec import spec

TOPIC, GROUP = "Backlog", "far-behind"
_BACKLOG = 400
_LATER = 20
_QUERY_CONSUMER_OFFSET = 14


def _committed(broker: Broker) -> int:
    fields = {"topic": TOPIC, "consumerGroup": GROUP, "queueId": "0"}
    answer = ask(broker.port, _QUERY_CONSUMER_OFFSET, fields)
    return int(answer.fields["extFields"]["offset"]) if answer.fields["code"] == 0 else 0


@pytest.mark.parametrize("version", CLIENTS)
@pytest.mark.parametrize("mode", [Mode.SLAVE_CONSUME, Mode.ELECT], ids=lambda mode: mode.value)
@spec("R10", "V20")
def test_java_consumer_reads_its_backlog_from_the_slave_and_commits_at_the_master(
    mode: Mode, version: str, tmp_path: Path
) -> None:
    own = {"slaveReadEnable": True, "accessMessageInMemoryMaxRatio": 0}
    with cluster(mode, ["broker-a"], tmp_path, **own) as brokers:
        master, slave = brokers.pairs[0]
        with JavaDriver(version, tmp_path / version, namesrv=brokers.namesrv.address, poll_ms=1000) as java:
            at = ("-n", brokers.namesrv.address, "-b", master.address)
            java.mqadmin("updateTopic", *at, "-t", TOPIC, "-r", "1", "-w", "1")
            wait_topic(brokers.namesrv.port, TOPIC)
            java.call("produce", topic=TOPIC, count=_BACKLOG, prefix="old")
            reader = java.begin("push", topic=TOPIC, group=GROUP, deadline_ms=120_000)
            reader.wait_for(lambda event: event["event"] == "message", within_s=60, count=_BACKLOG)
            assert given_by(slave) > _BACKLOG // 2
            java.call("produce", topic=TOPIC, count=_LATER, prefix="new")
            reader.wait_for(lambda event: event["event"] == "message", within_s=60, count=_BACKLOG + _LATER)
            wait_until(lambda: _committed(master) == _BACKLOG + _LATER, what="all is committed", within_s=30)
            read = reader.end()
    expected = [f"old-{n}" for n in range(_BACKLOG)] + [f"new-{n}" for n in range(_LATER)]
    assert sorted(bodies(read)) == sorted(expected), "each once"
