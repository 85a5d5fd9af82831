"""A cluster in this process starts in sync, can be stopped, killed and restarted, and keeps its data."""

import socket
from functools import partial
from pathlib import Path

import pytest

from tandemq import Message
from tandemq.boundary import LinkKind
from tandemq.client.aio import transport
from tandemq.client.blocking import BlockingProducer
from tandemq.client.core.settings import ClientConfig
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError, LocalError, NetworkError
from tandemq.real.loop import Loop
from tandemq.run.broker import BrokerProcess
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system


def send(cluster: LocalCluster, body: bytes) -> str:
    with BlockingProducer(cluster.name_servers, group="g") as producer:
        return producer.send(Message("T", body)).status.name


def test_pair_starts_in_sync_and_acknowledges_on_both(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, slaves=1) as cluster:
        assert send(cluster, b"x") == "SEND_OK"
        ends = [broker.node.store.log.written_end for broker in cluster.brokers]
        assert ends[0] == ends[1] > 0


def test_same_directory_keeps_its_data(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        send(cluster, b"x")
        end = cluster.broker().node.store.log.written_end
    with LocalCluster(tmp_path) as cluster:
        assert cluster.broker().node.store.log.written_end == end
        assert cluster.broker().node.kernel.recovered.clean


def test_killed_master_restarts_at_its_address_with_its_data(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, slaves=1) as cluster:
        send(cluster, b"x")
        master = cluster.broker()
        before = (master.address, master.ha_address, master.node.store.log.written_end)
        master.kill()
        assert not master.is_running
        with pytest.raises(LocalError, match="is not running"):
            _ = master.address
        master.start()
        assert (master.address, master.ha_address, master.node.store.log.written_end) == before
        assert not master.node.kernel.recovered.clean
        cluster.wait_in_sync()
        assert send(cluster, b"y") == "SEND_OK"


def test_unknown_broker_setting_or_state_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        LocalCluster(tmp_path, settings={"listenPrt": 1})
    with LocalCluster(tmp_path) as cluster:
        with pytest.raises(LocalError, match="broker broker-z/0 does not exist"):
            cluster.broker("broker-z")
        with pytest.raises(NetworkError, match="was not met"):
            cluster.wait_until(lambda: False, seconds=0.01)
        with pytest.raises(LocalError, match="is running already"):
            cluster.broker().start()
    with pytest.raises(LocalError, match="is not running"):
        _ = cluster.name_servers


def test_cluster_that_cannot_start_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "broker-a-0").write_text("a file where the store should be")
    cluster = LocalCluster(tmp_path)
    with pytest.raises(Exception, match="broker-a-0"):
        cluster.start()
    assert cluster.brokers == []


@pytest.mark.parametrize("mode", ["slave-consume", "elect"])
def test_groups_with_a_registry_start_in_sync_and_continue(tmp_path: Path, mode: str) -> None:
    for run in range(2):
        with LocalCluster(tmp_path, groups=2, slaves=1, mode=mode) as cluster:
            assert all(broker.is_registered() for broker in cluster.brokers)
            assert [cluster.master(name).broker_id for name in ("broker-a", "broker-b")] == [0, 0]
            assert cluster.master().members_in_sync() == 2
            assert cluster.registry == f"namesrv://{cluster.name_servers}"
            assert send(cluster, b"%d" % run) == "SEND_OK"


def test_slave_that_was_in_sync_only_briefly_is_elected(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, slaves=1, mode="elect") as cluster:
        master = cluster.master()
        assert send(cluster, b"x") == "SEND_OK"
        master.kill()
        assert cluster.master() is cluster.broker(broker_id=1)
        assert cluster.address == cluster.broker(broker_id=1).address
        master.start()
        cluster.wait_in_sync()
        assert not master.is_master()
        cluster.wait_until(master.is_registered)
        assert send(cluster, b"y") == "SEND_OK"
    with LocalCluster(tmp_path, slaves=1, mode="elect") as cluster:
        assert cluster.master().broker_id == 1
    with pytest.raises(ConfigError, match="broker 1 is its master"), LocalCluster(tmp_path, slaves=1):
        pass


def test_offset_handover_precedes_the_in_sync_state(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, slaves=1, mode="slave-consume") as cluster:
        master, slave = cluster.master(), cluster.broker(broker_id=1).node
        master.kill()
        cluster.wait_until(lambda: slave.failover is not None and slave.failover.is_holder)
        cluster.wait_in_sync()
        master.start()
        cluster.wait_in_sync()
        cluster.wait_until(master.is_registered)
        cluster.wait_until(lambda: slave.failover is not None and not slave.failover.is_holder)


def test_unknown_mode_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'vote' is not a mode.*use one of static, slave-consume, elect"):
        LocalCluster(tmp_path, mode="vote")


def test_producer_uses_a_group_again_as_soon_as_it_has_a_new_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for routes because a send failed: without a reason it would do so in an hour."""
    monkeypatch.setattr(transport, "ClientConfig", partial(ClientConfig, route_poll_ms=3_600_000))
    with (
        LocalCluster(tmp_path, groups=2, slaves=1, mode="elect") as cluster,
        BlockingProducer(cluster.name_servers, group="g") as producer,
    ):
        groups = {producer.send(Message("T", b"x")).queue.broker_name for _ in range(40)}
        assert groups == {"broker-a", "broker-b"}
        cluster.master().kill()
        cluster.wait_until(lambda: producer.send(Message("T", b"y")).queue.broker_name == "broker-a", 120)


def test_free_port_has_a_free_fast_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, taken = Loop.listen, list[int]()

    def listen(loop: Loop, address: str, port: int, kind: LinkKind, what: str = "", *, is_new: bool = False) -> int:
        if kind is LinkKind.FAST and not taken:
            taken.append(port)
            raise ConfigError("cannot listen: somebody else does")
        return real(loop, address, port, kind, what, is_new=is_new)

    monkeypatch.setattr(Loop, "listen", listen)
    process = BrokerProcess(BrokerConfig(store_path=str(tmp_path), bind_address="127.0.0.1", listen_port=0, ha_port=0))
    process.open()
    try:
        assert process.fast_port == process.port - 2 != taken[0]
        with socket.socket() as other:
            other.bind(("127.0.0.1", taken[0] + 2))
    finally:
        process.close()
