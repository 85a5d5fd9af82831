"""IPv6: every listener and every client, on the loopback address ::1, which the machine of the tests must have."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from lab.samples import tiny, tiny_name_server
from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.client.connection import try_request
from tandemq.codec.record.record import read_message
from tandemq.codec.remoting.fastjson import loads
from tandemq.config.settings import BrokerConfig
from tandemq.console.server import ListenAddress, listen
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import SysFlag
from tandemq.real.network import listening
from tandemq.real.network.addresses import own_ip
from tandemq.real.network.listening import bind, has_ipv6
from tandemq.run import broker as run_broker
from tandemq.run.broker import BrokerProcess
from tandemq.run.nameserver import NameServerProcess
from tests.blackbox.in_process import running
from tests.blackbox.programs import wait_until

ON_IPV6 = {"bind_address": "::1", "advertised_ip": "::1", "ha_advertised_ip": "::1"}


def test_this_machine_has_the_loopback_address_of_ipv6() -> None:
    with closing(socket.socket(socket.AF_INET6)) as sock:
        sock.bind(("::1", 0))  # Else none of these tests proves anything.
    assert has_ipv6()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[NameServerProcess, BrokerProcess, BrokerProcess]]:
    """A name server, a master and a slave on ::1; the slave has all data when this returns."""
    with ExitStack() as stack:
        data = str(tmp_path / "namesrv")
        server = stack.enter_context(running(NameServerProcess(tiny_name_server(bind_address="::1", data_path=data))))

        def member(broker_id: int, role: str) -> BrokerProcess:
            config: BrokerConfig = tiny(
                **ON_IPV6,
                broker_id=broker_id,
                role=role,
                name_servers=(server.address,),
                store_path=str(tmp_path / f"store-{broker_id}"),
                metrics_port=0,
                metrics_bind_address="::1",
            )
            return stack.enter_context(running(BrokerProcess(config)))

        master = member(0, "SYNC_MASTER")
        wait_until(lambda: master.address in listed(server), "the master is registered")
        slave = member(1, "SLAVE")
        wait_until(lambda: slave.address in listed(server), "the slave is registered")
        yield server, master, slave


def listed(server: NameServerProcess) -> list[str]:
    """Return the addresses of brokers that a name server lists."""
    answer = try_request(server.address, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert answer is not None
    return [one for group in loads(answer.body)["brokerAddrTable"].values() for one in group["brokerAddrs"].values()]


def test_messages_pass_through_a_pair_on_ipv6(
    pair: tuple[NameServerProcess, BrokerProcess, BrokerProcess],
) -> None:
    server, master, slave = pair
    assert all(address.startswith("[::1]:") for address in (server.address, master.address, master.ha_address))
    with BlockingProducer(server.address, group="p") as producer:
        wait_until(lambda: producer.send(Message("T", b"first")).status.name == "SEND_OK", "the slave copies")
        sent = producer.send(Message("T", b"x", keys=["k"]))
    assert len(sent.offset_message_id) == 56
    assert len(sent.unique_key) == 56
    with BlockingConsumer(server.address, group="c", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
        body = b""
        while body != b"x":
            message = consumer.receive(timeout_s=60)
            assert message is not None
            body = message.body
            message.ack()
    wait_until(lambda: log_of(slave) == log_of(master), "the slave has the log")
    stored = read_message(log_of(master), 0, len(log_of(master)))
    assert stored.sys_flag & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) == 0x30
    assert stored.store_host == f"[0:0:0:0:0:0:0:1]:{master.port}"  # As Java writes it.
    assert stored.born_host.startswith("[0:0:0:0:0:0:0:1]:")


def log_of(broker: BrokerProcess) -> bytes:
    """Return the first file of a broker's log up to its end."""
    (path, *_) = sorted((Path(broker.config.store_path) / "commitlog").iterdir())
    return path.read_bytes()[: broker.node.store.log.written_end]


def test_metrics_are_served_on_ipv6(pair: tuple[NameServerProcess, BrokerProcess, BrokerProcess]) -> None:
    _, master, _ = pair
    assert master.metrics_address.startswith("[::1]:")
    with urllib.request.urlopen(f"http://{master.metrics_address}/metrics", timeout=30) as answer:
        assert answer.status == 200


def test_all_interfaces_are_those_of_both_families_on_one_port() -> None:
    for address in ("0.0.0.0", "::"):
        socks = bind(address, 0)
        try:
            assert [sock.family for sock in socks] == [socket.AF_INET, socket.AF_INET6]
            assert len({sock.getsockname()[1] for sock in socks}) == 1
            assert socks[1].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
        finally:
            for sock in socks:
                sock.close()
    for address, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        (sock,) = bind(address, 0)
        with closing(sock):
            assert sock.family == family


def test_all_interfaces_are_those_of_ipv4_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "has_ipv6", lambda: False)
    (sock,) = bind("0.0.0.0", 0)
    with closing(sock):
        assert sock.family == socket.AF_INET


def test_port_taken_in_one_family_is_refused_or_another_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    free, taken = bind("0.0.0.0", 0, is_new=True)  # Both are held, so that no other process takes the free one.
    with closing(free), closing(taken):
        taken.listen()
        port = taken.getsockname()[1]
        bound = listening._bound
        tried: list[int] = []

        def bound_or_free(address: str, wanted: int, **options: bool) -> socket.socket:
            if address == "0.0.0.0" and (wanted == port or not tried):
                tried.append(port)
                return free.dup()
            return bound(address, wanted, **options)

        monkeypatch.setattr(listening, "has_ipv6", lambda: True)
        monkeypatch.setattr(listening, "_bound", bound_or_free)
        with pytest.raises(OSError, match="in use"):
            bind("0.0.0.0", port)
        tried.clear()  # The first free port of IPv4 is the taken one.
        socks = bind("0.0.0.0", 0)
        assert tried
        assert {sock.getsockname()[1] for sock in socks} != {port}
        assert len({sock.getsockname()[1] for sock in socks}) == 1
        for sock in socks:
            sock.close()


def test_console_is_served_on_ipv6() -> None:
    (listener,) = listen(ListenAddress("::1", 0))
    with closing(listener), socket.create_connection(listener.getsockname()[:2]) as sock:
        assert sock.getpeername()[0] == "::1"


@pytest.mark.parametrize(
    ("peer", "ip"),
    [
        ("[::1]:9876", "::1"),
        ("::1:9876", "::1"),
        ("127.0.0.1:9876", "127.0.0.1"),
        ("no address", "127.0.0.1"),
        ("localhost:9876", "127.0.0.1"),
    ],
)
def test_own_address_is_that_of_the_interface_towards_the_peer(peer: str, ip: str) -> None:
    assert own_ip(peer) == ip


def test_broker_registers_the_address_towards_an_ipv6_name_server(tmp_path: Path) -> None:
    config = tiny(**ON_IPV6 | {"advertised_ip": "", "ha_advertised_ip": ""}, name_servers=("[::1]:9",))
    with running(BrokerProcess(replace(config, store_path=str(tmp_path)))) as broker:
        assert broker.address == f"[::1]:{broker.port}"
        assert broker.ha_address == f"[::1]:{broker.ha_port}"


def test_advertised_address_of_a_family_that_the_machine_lacks_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_broker, "has_ipv6", lambda: False)
    run_broker.log_unreachable(("127.0.0.1:10911", "[fd00::7]:10912"))
    (line,) = caplog.messages
    assert line.startswith("broker: [fd00::7]:10912 is advertised, and this machine has no IPv6")
