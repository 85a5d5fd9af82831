"""Reserved ports: other processes do not get them; a node that knows one listens there, also again."""

import errno
import socket
from contextlib import closing

import pytest

from tandemq.run.local import LocalCluster
from tandemq.run.ports import FAST_PORT_DISTANCE, LOOPBACK, ReservedPorts

pytestmark = pytest.mark.system


def test_reserved_port_is_refused_to_others_until_it_is_released() -> None:
    with closing(ReservedPorts()) as ports:
        port = ports.reserve(-2, 1)
        for taken in (port - 2, port, port + 1):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((LOOPBACK, taken))
            with socket.socket() as client, pytest.raises(ConnectionRefusedError):
                client.connect((LOOPBACK, taken))
    with socket.socket() as other:
        other.bind((LOOPBACK, port))


def test_neighbour_in_use_makes_it_look_for_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    real, sockets = socket.socket.bind, list[socket.socket]()

    def bind(sock: socket.socket, address: tuple[str, int]) -> None:
        sockets.append(sock)
        if len(sockets) == 2:
            raise OSError(errno.EADDRINUSE, "in use")
        real(sock, address)

    monkeypatch.setattr(socket.socket, "bind", bind)
    with closing(ReservedPorts()) as ports:
        port = ports.reserve(1)
        assert [sock.fileno() for sock in sockets[:2]] == [-1, -1], "nothing is kept of the attempt that failed"
        assert [sock.getsockname()[1] for sock in sockets[-2:]] == [port, port + 1]


def test_ports_of_a_killed_broker_are_not_given_to_others(tandemq_pair: LocalCluster) -> None:
    slave = tandemq_pair.broker(broker_id=1)
    port, ha_port = (int(address.rpartition(":")[2]) for address in (slave.address, slave.ha_address))
    slave.kill()
    for taken in (port, port - FAST_PORT_DISTANCE, ha_port):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, taken))
    slave.start()
    assert slave.address == f"{LOOPBACK}:{port}"


def test_settings_get_reserved_ports_where_any_port_will_do() -> None:
    with closing(ReservedPorts()) as ports:
        found = ports.instead_of_any({"listenPort": 0, "haListenPort": "0", "metricsPort": 0, "brokerId": 0})
        assert found["brokerId"] == 0
        assert len({found["listenPort"], found["haListenPort"], found["metricsPort"], 0}) == 4
        given = {"listenPort": 10_911, "haListenPort": 0, "metricsPort": 9_090}
        assert ports.instead_of_any(given) == given, "haListenPort = 0 is listenPort + 1 there"
