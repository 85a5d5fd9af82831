"""Reserved ports: other processes do not get them; a node that knows one listens there, also again."""

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
    with closing(ReservedPorts()) as ports, socket.socket() as first, socket.socket() as neighbour:
        first.bind((LOOPBACK, 0))
        neighbour.bind((LOOPBACK, first.getsockname()[1] + 1))
        wanted = first.getsockname()[1]
        first.close()
        real, asked = socket.socket.bind, list[int]()

        def bind(sock: socket.socket, address: tuple[str, int]) -> None:
            asked.append(address[1])
            real(sock, (LOOPBACK, wanted) if len(asked) == 1 else address)

        monkeypatch.setattr(socket.socket, "bind", bind)
        assert ports.reserve(1) != wanted
        monkeypatch.undo()
        with socket.socket() as free:
            free.bind((LOOPBACK, wanted))  # not kept by the attempt that failed


def test_ports_of_a_killed_broker_are_not_given_to_others(tandemq_pair: LocalCluster) -> None:
    slave = tandemq_pair.broker(broker_id=1)
    port, ha_port = (int(address.rpartition(":")[2]) for address in (slave.address, slave.ha_address))
    slave.kill()
    for taken in (port, port - FAST_PORT_DISTANCE, ha_port):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, taken))
    slave.start()
    assert slave.address == f"{LOOPBACK}:{port}"
