"""The broker's registry client: through the shell for ZooKeeper, on a connection of its own for a name server."""

from random import Random

from lab.samples import tiny_name_server
from lab.sim.world.disk import SimDisk
from tandemq.boundary import Closed, Drained, Event, JobDone, LinkKind, Now, Opened, Turn
from tandemq.broker.roles.registry_client import BrokerRegistry
from tandemq.coordination.registry.interface import (
    Confirmed,
    Create,
    Done,
    Read,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
)
from tandemq.nameserver import NameServer
from tandemq.registry import parse_address


def test_operations_for_zookeeper_leave_with_the_turn_and_events_come_with_it() -> None:
    registry = BrokerRegistry(parse_address("zookeeper://a:2181"), "me", 2_000, lambda: -1)
    turn, now = Turn(), Now(0, 0)
    asks = [RegistryRequest(1, Read("/a")), RegistryRequest(2, Read("/b"))]
    registry.ask(asks, turn, now)
    registry.tick(turn, now)
    assert turn.asks == asks
    assert not turn.connects
    registry_events: list[Event] = [SessionUp(7, 4_000), Confirmed(3), RegistryResponse(1, Unknown(), 3)]
    assert all(registry.on_event(event, turn, now) for event in registry_events)
    assert registry.take_events() == registry_events
    assert registry.is_up
    assert registry.take_events() == []
    for event in (SessionSuspended(), SessionLost()):
        assert registry.on_event(event, turn, now)
        registry.take_events()
        assert not registry.is_up
    for other in (Opened(1, LinkKind.PEER, "a:1"), Closed(-1, "x"), Drained(1)):
        assert not registry.on_event(other, turn, now)
    assert registry.deadline_ms() is None
    assert not registry.owns(-1)


def test_a_name_server_registry_has_a_connection_of_its_own() -> None:
    server = NameServer(tiny_name_server(registry_enable=True), SimDisk(Random(1)))
    registry = BrokerRegistry(parse_address("namesrv://a:9876"), "me", 2_000, lambda: -5)
    now = Now(1_000, 0)
    events: list[Event] = []
    server_events: list[Event] = []
    answers: list[bytes] = []
    registry_events: list[RegistryEvent] = []
    for step in range(8):
        turn = Turn()
        now.mono_ms += 10
        for event in events:
            assert registry.on_event(event, turn, now)
        for data in answers:
            registry.received(-5, data, turn, now)
        if registry.is_up and step == 5:
            registry.ask([RegistryRequest(1, Create("/live", b"", ephemeral=True))], turn, now)
        registry.tick(turn, now)
        registry_events += registry.take_events()
        assert not turn.asks
        events = [Opened(connect.link, connect.kind, connect.address) for connect in turn.connects]
        server_events += [Opened(1, LinkKind.REMOTING, "b:1") for _ in turn.connects]
        sent = [(1, b"".join(map(bytes, buffers))) for buffers in turn.sends.values()]
        done = server.turn(sent, server_events, now)
        server_events = []
        for job in done.jobs:
            job.run()
            server_events.append(JobDone(job))
        answers = [b"".join(map(bytes, done.sends.get(1, [])))]
    assert registry.is_up
    assert registry.owns(-5)
    assert registry.deadline_ms() is not None
    assert registry_events[0] == SessionUp(1, 2_000)
    assert [event.outcome for event in registry_events if isinstance(event, RegistryResponse)] == [Done(0)]
    turn = Turn()
    assert registry.on_event(Closed(-5, "gone"), turn, now)
    assert registry.take_events() == [SessionSuspended()]
    assert not registry.is_up
    registry.close(turn, now)
    assert registry.deadline_ms() is None
