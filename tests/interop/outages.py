"""A master is killed and comes back under unmodified Java clients of each version, in one of the modes.

static, slave-consume   broker-a and broker-b: writing goes on at broker-b, reading at the slave of broker-a
elect                   broker-a alone: both go on at its new master
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tandemq.coordination.registry.records import Mode
from tandemq.run.groups import configure
from tests.interop.driver import JavaDriver
from tests.interop.flights import AHEAD, FOR_FAILOVER, GROUP, ClientSettings, Flight, FlightFigures, figures, now_ms
from tests.interop.java import Value, wait_until
from tests.interop.ours import OurNameServer
from tests.interop.peers import CLIENTS, SMALL_STORE, SUBJECT, Broker, NameServer, broker, name_server
from tests.interop.wire import GET_ROUTE, ask, loads_lenient, registered_brokers, wait_registered

_GET_BROKER_RUNTIME_INFO = 28


@dataclass(frozen=True, slots=True)
class Cluster:
    """Broker groups of a master and a slave each, running and registered; the first one is broker-a."""

    namesrv: NameServer
    pairs: list[tuple[Broker, Broker]]


def kill_and_return(mode: Mode, settings: ClientSettings, directory: Path) -> list[FlightFigures]:
    """Kill the master, wait until reads and writes continue, start it again, wait until it has its share.

    Returns: the figures of each client version. No acknowledged message was lost.

    Raises:
        PeerError, TimeoutError: reads or writes did not continue.
        AssertionError: a message was lost, or invented.
    """
    names = [GROUP] if mode is Mode.ELECT else [GROUP, "broker-b"]
    with (
        cluster(mode, names, directory) as brokers,
        _flights(brokers, settings, directory) as flights,
    ):
        old, new = brokers.pairs[0]
        killed_ms = _kill(old, flights)
        for flight in flights:
            flight.wait_stored(killed_ms, group=names[-1])
            flight.wait_read(killed_ms)
        old.start()
        returned_ms = now_ms()
        for flight in flights:
            if mode is Mode.ELECT:
                # The old master copies again: messages have a second copy.
                flight.wait_stored(returned_ms, status="SEND_OK")
            else:
                flight.wait_stored(returned_ms, group=GROUP)
            flight.wait_read(returned_ms, stored_ms=returned_ms, count=1)
        if mode is Mode.ELECT:
            assert registered_brokers(brokers.namesrv.port)[GROUP] == {"0": new.address, "1": old.address}
        else:
            _wait_all_read_at(old, flights)
        return [figures(flight, *flight.land(), killed_ms, returned_ms) for flight in flights]


def leave_and_return(directory: Path, within_s: float) -> None:
    """Kill all members of one of two groups, wait until no client uses it, start it again; clients use it in time.

    `within_s`: from the registration of its master until each client has stored and read a message there.

    Raises:
        PeerError: they did not.
        AssertionError: a message was lost, or invented.
    """
    with (
        cluster(Mode.STATIC, [GROUP, "broker-b"], directory) as brokers,
        _flights(brokers, FOR_FAILOVER, directory) as flights,
    ):
        killed_ms = _kill(brokers.pairs[0][0], flights)
        brokers.pairs[0][1].kill()
        for flight in flights:
            flight.wait_stored(killed_ms, group="broker-b")
        wait_until(lambda: GROUP not in registered_brokers(brokers.namesrv.port), what=f"{GROUP} has left", within_s=40)
        for member in brokers.pairs[0]:
            member.start()
        wait_registered(brokers.namesrv.port, GROUP)
        returned_ms = now_ms()
        for flight in flights:
            flight.wait_stored(returned_ms, group=GROUP, within_s=within_s)
            flight.wait_read(returned_ms, count=1, within_s=within_s)
        for flight in flights:
            flight.land()


def _kill(master: Broker, flights: list[Flight]) -> int:
    """Kill -9 in the midst of reading and writing; when."""
    started_ms = now_ms()
    for flight in flights:
        flight.take_off()
    for flight in flights:
        flight.wait_stored(started_ms, group=GROUP, status="SEND_OK")
        flight.wait_read(started_ms, count=20)
    killed_ms = now_ms()
    master.kill()
    return killed_ms


def _wait_all_read_at(master: Broker, flights: list[Flight]) -> None:
    """Wait until the master has given more than all readers but one can have got: none of them reads elsewhere."""
    begun_ms, given = now_ms(), given_by(master)

    def do_all() -> bool:
        counts = [flight.read_since(begun_ms) for flight in flights]
        return given_by(master) - given >= sum(counts) - min(counts) + AHEAD

    wait_until(do_all, what="all readers are back at the master", within_s=90, every_s=0.5)


@contextmanager
def cluster(mode: Mode, names: list[str], directory: Path, **own: Value) -> Iterator[Cluster]:
    """A name server and a pair per name; in `static` of the make that is tested, else ours with a registry.

    `own`: further settings of the brokers.
    """
    with ExitStack() as stack:
        if mode is Mode.STATIC:
            kind = SUBJECT
            namesrv: NameServer = name_server(kind, directory / "namesrv")
            settings: dict[str, Value] = {
                **SMALL_STORE,
                "haClassicPeers": "127.0.0.1",
                "inSyncReplicas": 2,
                "slaveReadEnable": True,
            }
            stack.enter_context(namesrv)
            namesrv.start()
        else:
            kind = "ours"
            with_registry = {"registryEnable": "true", "kvConfigPath": str(directory / "registry")}
            namesrv = OurNameServer(directory / "namesrv", settings=with_registry)
            stack.enter_context(namesrv)
            namesrv.start()
            registry = f"namesrv://{namesrv.address}"
            configure(registry, names, mode, 2)
            settings = {**SMALL_STORE, "registryAddr": registry}

        def member(name: str, **role: Value) -> Broker:
            path = directory / f"{name}-{role['brokerRole']}"
            made = broker(kind, path, namesrv, settings={**settings, **own}, brokerName=name, **role)
            stack.enter_context(made)
            return made

        pairs = [
            (member(name, brokerRole="SYNC_MASTER"), member(name, brokerRole="SLAVE", brokerId=1)) for name in names
        ]
        # The first to come leads an elected group.
        for rank in (0, 1):
            for pair in pairs:
                pair[rank].start()
            for name in names:
                wait_registered(namesrv.port, name, rank)
        yield Cluster(namesrv, pairs)


@contextmanager
def _flights(cluster: Cluster, settings: ClientSettings, directory: Path) -> Iterator[list[Flight]]:
    """A client of each version with its backlog, which the slave has too."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(JavaDriver(version, directory / version, namesrv=cluster.namesrv.address))
            for version in CLIENTS
        ]
        topics = [f"Flight{version[0]}" for version in CLIENTS]
        for java, topic in zip(clients, topics, strict=True):
            for master, _ in cluster.pairs:
                at = ("-n", cluster.namesrv.address, "-b", master.address)
                java.mqadmin("updateTopic", *at, "-t", topic, "-r", "1", "-w", "1")
            _wait_routed(cluster, topic)
        flights = [Flight.begin(java, topic, settings) for java, topic in zip(clients, topics, strict=True)]
        # A Java slave serves a topic only after it copied the configuration.
        stores = [slave.store for _, slave in cluster.pairs]
        wait_until(lambda: _know(stores, topics), what="the slaves know the topics", within_s=75, every_s=0.5)
        yield flights


def _wait_routed(cluster: Cluster, topic: str) -> None:
    """Wait until every group is in the route of a topic."""

    def is_routed() -> bool:
        answer = ask(cluster.namesrv.port, GET_ROUTE, {"topic": topic})
        return answer.fields["code"] == 0 and len(loads_lenient(answer.body)["queueDatas"]) == len(cluster.pairs)

    wait_until(is_routed, what=f"{topic} in all groups", within_s=40)


def _know(stores: list[Path], topics: list[str]) -> bool:
    paths = [store / "config" / "topics.json" for store in stores]
    return all(path.exists() and all(f'"{topic}"' in path.read_text() for topic in topics) for path in paths)


def given_by(which: Broker) -> int:
    """Messages that a broker gave to consumers since its start."""
    body = ask(which.port, _GET_BROKER_RUNTIME_INFO).body
    return int(json.loads(body)["table"]["msgGetTotalTodayNow"])
