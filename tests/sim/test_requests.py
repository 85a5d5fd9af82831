"""Requests are counted by code, in both kinds of seeds and both forms of headers; other frames are not counted."""

from collections import Counter

import pytest

from lab.sim.group_simulation import GroupSimulation
from lab.sim.simulation import Simulation
from lab.sim.world.network import SimConnection
from lab.sim.world.plan import GROUP_SEEDS, MALFORMED_PEER_IP, client_ip
from tandemq.boundary import LinkKind
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_RESPONSE, Command


def counted(
    simulation: Simulation | GroupSimulation,
    *commands: Command,
    end: int = 0,
    ip: str = client_ip(0),
    kind: LinkKind = LinkKind.REMOTING,
) -> Counter[int]:
    """Return the counts after one end of a client's connection has sent these commands in one piece."""
    asker, asked = (seat.process for seat in simulation.clients[:2])
    assert asker is not None and asked is not None and simulation.network.tap is not None
    asker.ip = ip
    connection = SimConnection(kind, (asker, asked), (1, 1))
    simulation.network.tap(connection, end, b"".join(map(encode_command, commands)))
    return simulation.world.requests


@pytest.mark.parametrize("simulation", [Simulation(1), GroupSimulation(GROUP_SEEDS + 1)], ids=["static", "groups"])
def test_every_request_is_counted_in_either_form(simulation: Simulation | GroupSimulation) -> None:
    commands = [
        Command(RequestCode.HEART_BEAT, body=b'{"code":7}'),
        Command(RequestCode.HEART_BEAT, binary=True),
        Command(RequestCode.PULL_MESSAGE, fields={"queueId": "0"}, binary=True),
    ]
    assert counted(simulation, *commands) == {RequestCode.HEART_BEAT: 2, RequestCode.PULL_MESSAGE: 1}


def test_responses_replication_and_malformed_peers_are_not_counted() -> None:
    simulation = Simulation(1)
    asked = Command(RequestCode.HEART_BEAT)
    assert not counted(simulation, Command(0, flag=FLAG_RESPONSE))
    assert not counted(simulation, asked, end=1)
    assert not counted(simulation, asked, kind=LinkKind.HA_MASTER)
    assert not counted(simulation, asked, ip=MALFORMED_PEER_IP)
    assert counted(simulation, asked)
