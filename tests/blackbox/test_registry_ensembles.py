"""A group whose registry has three servers: each killed in turn under load, and the leading one with the master."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.coordination.registry.records import Mode
from tandemq.run.children import BrokerChild, ChildCluster, group_name
from tandemq.run.groups import configure
from tests.blackbox.programs import wait_until
from tests.blackbox.test_failover import SIZES, master_of, traffic
from tests.blackbox.traffic import Traffic
from tests.interop.ensembles import KINDS, Ensemble
from tests.spec import spec

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
