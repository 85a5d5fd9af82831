"""Groups with a registry as processes under clients that go on: masters killed, switched, forced, without registry.

The registry is the name server's; a master is killed with a real ZooKeeper and a real etcd as well, in `make services`.
How long reads and writes are interrupted is asserted with a clock of the tests in
tests/unit/coordination/test_member.py, and measured by `make bench-failover`.
"""

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemq import ConsumeFrom, Message
from tandemq.broker.roles.copied_offsets import decode
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import Mode, offsets_from_node, offsets_path
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.registry import NodeFound, Read, parse_address
from tandemq.run.children import BrokerChild, ChildCluster, group_name
from tandemq.run.groups import CLUSTER, configure
from tandemq.run.registry_session import RegistryClient
from tests.blackbox.programs import QUICK, Caller, wait_until
from tests.blackbox.traffic import GROUP, TOPIC, Traffic
from tests.interop.etcd import Etcd
from tests.interop.zookeeper import ZooKeeper
from tests.spec import spec
from tests.unit.boundary.registries import PROCESSES

pytestmark = pytest.mark.timeout(600)
OK = ResponseCode.SUCCESS
A = "broker-a"
PROBES = itertools.count()
SIZES = {key: str(value) for key, value in QUICK.items() if key.startswith(("mappedFile", "max", "disk", "haRecon"))}

Start = Callable[..., ChildCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as running:

        def begin(mode: Mode, *, groups: int = 1, registry: str = "name-server", **changes: str) -> ChildCluster:
            settings = SIZES | changes
            if registry != "name-server":
                place = tmp_path / registry
                server: ZooKeeper | Etcd = ZooKeeper(place) if registry == "zookeeper" else Etcd(place)
                running.enter_context(server.start())
                settings["registryAddr"] = f"{registry}://{server.address}"
                configure(settings["registryAddr"], map(group_name, range(groups)), mode, 2)
            cluster = ChildCluster(tmp_path, groups=groups, slaves=1, mode=mode, settings=settings)
            running.enter_context(cluster)
            used = {broker.failover_status()["registryAddress"] for broker in cluster.brokers}
            assert used == {settings.get("registryAddr", cluster.registry)}
            return cluster

        yield begin


@contextmanager
def traffic(cluster: ChildCluster) -> Iterator[Traffic]:
    with Traffic(cluster.name_servers) as running:
        running.wait_for_more()
        yield running


def ha(cluster: ChildCluster, *words: str, code: int = 0) -> Any:
    """`tandemq ha … --json`."""
    command = [sys.executable, "-m", "tandemq", "ha", *words, "--json", "-n", cluster.name_servers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def master_of(cluster: ChildCluster) -> BrokerChild:
    wait_until(lambda: cluster.master_of(A) is not None, "the group has a master")
    found = cluster.master_of(A)
    assert found is not None
    return found


def send_to(broker: BrokerChild, body: bytes = b"") -> int:
    """The status of a message that is like no other."""
    with Caller(int(broker.address.rpartition(":")[2])) as caller:
        return caller.send(body or b"probe %d" % next(PROBES), TOPIC)


def offsets_of(broker: BrokerChild) -> dict[str, int]:
    """Committed offsets of the consumers, by queue."""
    with Caller(int(broker.address.rpartition(":")[2])) as caller:
        return _of_consumers(loads(caller.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body))


def _of_consumers(table: dict[str, Any]) -> dict[str, int]:
    found = table["offsetTable"].get(f"{TOPIC}@{GROUP}", {})
    return {str(queue): int(offset) for queue, offset in found.items()}


def copied_offsets(cluster: ChildCluster) -> dict[str, int]:
    """What the reader has copied to the registry of the consumers' offsets, by queue."""
    with RegistryClient(parse_address(cluster.registry), secret_file=cluster.secret_file) as registry:
        node = registry.do(Read(offsets_path(CLUSTER, A)))
    return _of_consumers(decode(offsets_from_node(node.data).table)) if isinstance(node, NodeFound) else {}


@spec("R11", "R09")
@pytest.mark.parametrize("registry", PROCESSES)
def test_elected_slave_goes_on_with_reads_and_writes_and_nothing_acknowledged_is_lost(
    start: Start, registry: str
) -> None:
    cluster = start(Mode.ELECT, registry=registry)
    with traffic(cluster) as running:
        for _ in range(2 if registry == "name-server" else 1):  # there, and back
            master = master_of(cluster)
            master.kill()
            running.wait_for_more()
            assert master_of(cluster) is not master
            master.start()
            cluster.wait_until(cluster.in_sync)
            cluster.wait_until(cluster.all_registered)
        running.wait_for_more()
        running.stop_producing()
        assert running.failed == []
    first, second = (broker.log_end() for broker in cluster.brokers)
    assert first == second


@spec("F01", "F14", "F22", "F26", "M07", "G05")
@pytest.mark.parametrize("registry", PROCESSES)
def test_slave_reads_for_its_master_and_hands_back_without_a_duplicate(start: Start, registry: str) -> None:
    cluster = start(Mode.SLAVE_CONSUME, groups=2, registry=registry)
    master, slave = cluster.broker(A), cluster.broker(A, 1)
    with traffic(cluster) as running:
        master.kill()
        wait_until(lambda: bool(slave.failover_status().get("mayRead")), "the slave reads")
        assert send_to(slave) == ResponseCode.NO_PERMISSION
        running.wait_for_more()
        committed = offsets_of(slave)
        returned = time.monotonic()
        master.start()
        wait_until(lambda: bool(master.failover_status().get("mayRead")), "the master reads again")
        # Between its start and the hand-back it was in no route, and one of the two has READ at a time.
        assert not slave.failover_status()["mayRead"]
        assert all(offsets_of(master)[queue] >= offset for queue, offset in committed.items())
        cluster.wait_until(cluster.in_sync)
        running.wait_for_more()
        running.stop_producing()
        assert running.failed == []
        assert running.repeated_since(returned) == []


@spec("V18", "V19", "F02")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_planned_switch_fails_no_send_and_repeats_nothing(start: Start, mode: Mode) -> None:
    cluster = start(mode)
    with traffic(cluster) as running:
        source = master_of(cluster)
        begun = time.monotonic()
        for target in (1 - source.broker_id, source.broker_id):
            done = ha(cluster, "switch", "--broker", A, "--to", str(target))
            assert (done["to"], master_of(cluster).broker_id) == (target, target)
            old = cluster.broker(A, 1 - target)
            assert send_to(old) == ResponseCode.NO_PERMISSION
            assert send_to(cluster.broker(A, target)) in {OK, ResponseCode.SLAVE_NOT_AVAILABLE}
            running.wait_for_more()
            cluster.wait_until(cluster.in_sync)
        assert ha(cluster, "switch", "--broker", A, "--to", str(source.broker_id))["text"].endswith("already")
        running.stop_producing()
        assert running.failed == []
        assert running.repeated_since(begun) == []
    texts = [entry["text"] for entry in ha(cluster, "history", "--broker", A)]
    assert sum(text.startswith("handing over") for text in texts) == 2


@spec("F42")
def test_master_that_returns_alone_has_the_offsets_of_the_reader_that_died(start: Start) -> None:
    cluster = start(Mode.SLAVE_CONSUME, uncleanHandBackAfter="2000")
    master, slave = cluster.broker(A), cluster.broker(A, 1)
    with BlockingProducer(cluster.name_servers, group="g") as producer:
        for number in range(40):
            producer.send(Message(TOPIC, b"%d" % number))
    cluster.wait_until(cluster.in_sync)
    before = offsets_of(master)
    master.kill()
    wait_until(lambda: bool(slave.failover_status().get("mayRead")), "the slave reads")
    with BlockingConsumer(
        cluster.name_servers, group=GROUP, topics={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST
    ) as reading:
        for _ in range(40):
            message = reading.receive(60)
            assert message is not None, "all are on the slave"
            message.ack()
    committed = offsets_of(slave)
    assert sum(committed.values()) == 40 and committed != before
    wait_until(lambda: copied_offsets(cluster) == committed, "the registry has them")
    slave.kill()
    master.start()
    wait_until(lambda: bool(master.failover_status().get("mayRead")), "the master reads alone")
    assert "with the offsets that it had copied" in master.failover_status()["reason"]
    assert offsets_of(master) == committed


@spec("F02", "F30")
def test_reader_is_promoted_when_the_disk_of_the_master_is_lost(start: Start) -> None:
    cluster = start(Mode.SLAVE_CONSUME)
    master, slave = cluster.broker(A), cluster.broker(A, 1)
    with BlockingProducer(cluster.name_servers, group="g") as producer:
        producer.send(Message(TOPIC, b"on both"))
    cluster.wait_until(cluster.in_sync)
    end = master.log_end()
    master.kill()
    wait_until(lambda: bool(slave.failover_status().get("mayRead")), "the slave reads")
    done = ha(cluster, "force-master", "--broker", A, "--id", "1", "--yes", "--secret-file", cluster.secret_file)
    assert done["price"].startswith("0 bytes of broker 0's log may be lost")
    wait_until(lambda: bool(slave.failover_status().get("mayWrite")), "it takes messages")
    assert slave.log_end() == end
    assert send_to(slave, b"after") == ResponseCode.SLAVE_NOT_AVAILABLE
    shutil.rmtree(master.store)
    master.start()
    cluster.wait_until(cluster.in_sync)
    assert master.log_end() == slave.log_end() > end
    assert cluster.master_of(A) is slave, "until the configuration names it and it starts again"


def test_member_out_of_sync_leads_by_order_only_and_the_order_says_what_it_may_lose(start: Start) -> None:
    cluster = start(Mode.ELECT)
    master = master_of(cluster)
    slave = next(broker for broker in cluster.brokers if broker is not master)
    with BlockingProducer(cluster.name_servers, group="g") as producer:
        producer.send(Message(TOPIC, b"on both"))
        slave.kill()
        wait_until(lambda: master.failover_status().get("inSync") == [master.broker_id], "the master goes on alone")
        producer.send(Message(TOPIC, b"on one"))
    master.kill()
    slave.start()
    wait_until(lambda: slave.failover_status().get("live") == [slave.broker_id], "the registry misses the master")
    standing = slave.failover_status()
    assert (standing["stage"], standing["mayRead"], standing["mayWrite"]) == ("slave", False, False)
    assert send_to(slave) == ResponseCode.NO_PERMISSION
    done = ha(
        cluster,
        "force-master",
        "--broker",
        A,
        "--id",
        str(slave.broker_id),
        "--yes",
        "--registry",
        cluster.registry,
        "--secret-file",
        cluster.secret_file,
    )
    assert "may be lost" in done["price"]
    wait_until(lambda: bool(slave.failover_status().get("mayWrite")), "it takes messages")
    assert send_to(slave, b"after") in {OK, ResponseCode.SLAVE_NOT_AVAILABLE}
    # The old master gives up what only it has.
    master.start()
    cluster.wait_until(cluster.in_sync)
    assert master.log_end() == slave.log_end()


@spec("F15", "F18")
def test_brokers_serve_on_without_registry_and_start_without_it_serving_nobody(start: Start) -> None:
    cluster = start(Mode.ELECT)
    with traffic(cluster) as running:
        cluster.name_server.kill()
        for _ in range(4):  # far longer than the registry's own grant lasts
            running.wait_for_more(200)
        wait_until(lambda: cluster.brokers[0].failover_status()["registry"] != "up", "it is noticed")
        assert running.failed == []
        running.stop_producing()
    for broker in cluster.brokers:
        broker.kill()
    alone = cluster.brokers[0]
    alone.start()
    assert send_to(alone) == ResponseCode.NO_PERMISSION
    standing = alone.failover_status()
    assert (standing["stage"], standing["registry"]) == ("unread", "none")
    cluster.brokers[1].start()
    assert send_to(cluster.brokers[1]) == ResponseCode.NO_PERMISSION
    cluster.name_server.start()
    wait_until(lambda: send_to(master_of(cluster)) == OK, "the group serves again")


def lose_registry(cluster: ChildCluster) -> None:
    """The name server's disk is lost; an operator starts it anew and brings the configuration."""
    cluster.name_server.kill()
    shutil.rmtree(cluster.directory / "namesrv")
    cluster.name_server.start()
    configure(cluster.registry, [A], cluster.mode, 2, secret_file=cluster.secret_file)


@spec("F09", "R11")
def test_master_of_old_waits_for_those_who_know_more_when_the_registry_is_lost(start: Start) -> None:
    cluster = start(Mode.ELECT)
    with traffic(cluster) as running:
        old = master_of(cluster)
        old.kill()
        running.wait_for_more()
        new = master_of(cluster)
        assert new is not old
        new.kill()
        lose_registry(cluster)
        old.start()
        wait_until(lambda: "is created again when all members" in str(old.failover_status().get("why")), "it waits")
        assert send_to(old) == ResponseCode.NO_PERMISSION
        new.start()
        running.wait_for_more()
        assert master_of(cluster) is new
        cluster.wait_until(cluster.in_sync)
        running.stop_producing()


@spec("F09")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_group_begins_anew_by_itself_when_all_its_members_are_there(start: Start, mode: Mode) -> None:
    cluster = start(mode)
    with traffic(cluster) as running:
        running.wait_for_more()
        lose_registry(cluster)
        wait_until(lambda: all(one.failover_status().get("epoch") == 2 for one in cluster.brokers), "an epoch begins")
        cluster.wait_until(cluster.in_sync)
        cluster.wait_until(cluster.all_registered)
        running.wait_for_more()
        running.stop_producing()
    assert any("is created again" in entry["text"] for entry in ha(cluster, "history", "--broker", A))
