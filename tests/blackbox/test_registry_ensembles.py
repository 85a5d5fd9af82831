"""A group whose registry has three servers: each killed in turn under load, and the leading one with the master.

And a group on etcd whose master's lease ends while it runs.
"""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tandemq.coordination.registry.records import Mode, live_broker_path
from tandemq.registry import NodeFound, Read, parse_address
from tandemq.run.children import BrokerChild, ChildCluster, group_name
from tandemq.run.groups import CLUSTER, configure
from tandemq.run.registry_session import RegistryClient
from tests.blackbox.programs import wait_until
from tests.blackbox.test_failover import SIZES, A, master_of, traffic
from tests.blackbox.traffic import Traffic
from tests.interop.ensembles import KINDS, Ensemble
from tests.interop.etcd import Etcd
from tests.spec import spec
from tests.unit.cli.test_up import started

pytestmark = [pytest.mark.timeout(600), pytest.mark.services]


@pytest.fixture(params=KINDS)
def ensemble(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    with Ensemble(request.param, tmp_path / "registry") as started:
        yield started


@pytest.fixture
def cluster(ensemble: Ensemble, tmp_path: Path) -> Iterator[ChildCluster]:
    configure(ensemble.address, [group_name(0)], Mode.ELECT, 2)
    settings = SIZES | {"registryAddr": ensemble.address}
    with ChildCluster(tmp_path, groups=1, slaves=1, mode=Mode.ELECT, settings=settings) as started:
        yield started


def record_of(broker: BrokerChild) -> tuple[int, int, list[int]]:
    """Epoch, master and members in sync, as a broker knows them."""
    status = broker.failover_status()
    return status["epoch"], status["master"], status["inSync"]


def wait_connected(cluster: ChildCluster) -> None:
    wait_until(
        lambda: all(broker.failover_status().get("registry") == "up" for broker in cluster.brokers),
        "all brokers have a session",
    )


def kill_each(ensemble: Ensemble, cluster: ChildCluster, running: Traffic) -> None:
    """Kill each server, the leading one among them, and start it again when messages have been sent without it."""
    for server in ensemble.servers:
        server.kill()
        for _ in range(3):
            running.wait_for_more()
        wait_connected(cluster)
        server.begin_start()
        ensemble.wait_whole()
        running.wait_for_more()


@spec("F15", "F18", "R11")
def test_no_server_of_the_registry_is_missed_and_a_master_is_replaced_without_one(
    ensemble: Ensemble, cluster: ChildCluster
) -> None:
    cluster.wait_until(cluster.in_sync)
    master = master_of(cluster)
    slave = next(broker for broker in cluster.brokers if broker is not master)
    before = record_of(master)
    with traffic(cluster) as running:
        kill_each(ensemble, cluster, running)
        assert running.failed == []
        assert (record_of(master), record_of(slave), master_of(cluster)) == (before, before, master)

        leader = ensemble.leader
        leader.kill()
        master.kill()
        running.wait_for_more()
        assert master_of(cluster) is slave
        leader.begin_start()
        master.start()
        cluster.wait_until(cluster.in_sync)
        running.stop_producing()
        assert running.failed == []
    ends = [broker.log_end() for broker in cluster.brokers]
    assert ends[0] == ends[1]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd").start() as started:
        yield started


def session_of(broker: BrokerChild, registry: str) -> int:
    """The session that owns the broker's live node, 0 without one."""
    with RegistryClient(parse_address(registry)) as client:
        node = client.do(Read(live_broker_path(CLUSTER, A, broker.broker_id)))
    return node.owner if isinstance(node, NodeFound) else 0


def has_other_session(broker: BrokerChild, registry: str, lost: int) -> bool:
    return session_of(broker, registry) not in (0, lost)


def revoke(etcd: Etcd, lease: int) -> None:
    asking = http.client.HTTPConnection(etcd.address, timeout=60)
    asking.request("POST", "/v3/lease/revoke", json.dumps({"ID": str(lease)}))
    assert asking.getresponse().status == 200
    asking.close()


def test_up_uses_a_registry_that_runs_already(etcd: Etcd, tmp_path: Path) -> None:
    address = f"etcd://{etcd.address}/apps"
    with started(tmp_path, "--slaves", "1", "--registry", address) as (process, printed):
        assert (printed["registry"], printed["mode"]) == (address, "elect")
        with RegistryClient(parse_address(address)) as registry:
            assert isinstance(registry.do(Read(live_broker_path(CLUSTER, A, 1))), NodeFound)
        os.kill(next(one["pid"] for one in printed["brokers"] if one["id"] == 0), signal.SIGKILL)
        with BlockingProducer(printed["nameServer"], group="g", retry_ms=60_000) as producer:
            assert producer.send(Message("T", b"after the kill")).queue.broker_name == A
        process.send_signal(signal.SIGINT)
        process.wait(120)


def test_master_whose_lease_ends_begins_another_session_and_stays_the_master(etcd: Etcd, tmp_path: Path) -> None:
    registry = f"etcd://{etcd.address}/apps"
    configure(registry, [A], Mode.ELECT, 2)
    settings = SIZES | {"registryAddr": registry}
    with ChildCluster(tmp_path, groups=1, slaves=1, mode=Mode.ELECT, settings=settings) as cluster:
        cluster.wait_until(cluster.in_sync)
        master = master_of(cluster)
        before = master.failover_status()["epoch"]
        with traffic(cluster) as running:
            for _ in range(2):
                lost = session_of(master, registry)
                revoke(etcd, lost)
                wait_until(partial(has_other_session, master, registry, lost), "it has another session")
                running.wait_for_more()
            cluster.wait_until(cluster.in_sync)
            assert (master_of(cluster), master.failover_status()["epoch"]) == (master, before)
            running.stop_producing()
            assert running.failed == []
