"""The master is killed under unmodified Java consumers: they must go on from the slave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemq.coordination.records import Mode
from tandemq.run.groups import configure
from tests.interop.checks import Events, at_least_once, messages, prove, sent
from tests.interop.driver import Event, JavaDriver
from tests.interop.java import CLIENT_VERSIONS, Value, wait_until
from tests.interop.logs import read_log
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import CLIENTS, SMALL_STORE, SUBJECT, broker, name_server, start_registered
from tests.interop.wire import wait_registered, wait_topic
from tests.spec import spec

_COUNT = 150

NEEDS_MS = 45_000
"""A Java client looks at the name server every 30 s; measured: 21 to 33 s until it reads from the slave."""


@pytest.mark.background
def test_java_consumers_go_on_from_slave_when_master_is_killed(tmp_path: Path) -> None:
    settings = {**SMALL_STORE, "haClassicPeers": "127.0.0.1", "inSyncReplicas": 2, "slaveReadEnable": True}
    clients = {version: JavaDriver(version, tmp_path / version) for version in CLIENTS}
    with (
        name_server(SUBJECT, tmp_path / "namesrv") as namesrv,
        broker(SUBJECT, tmp_path / "master", namesrv, settings=settings, brokerRole="SYNC_MASTER") as master,
        broker(SUBJECT, tmp_path / "slave", namesrv, settings=settings, brokerRole="SLAVE", brokerId=1) as slave,
    ):
        try:
            namesrv.start()
            start_registered(master, namesrv)
            for client in clients.values():
                client.defaults["namesrv"] = namesrv.address
                client.start()
            java = clients[CLIENTS[-1]]
            java.mqadmin(
                "updateTopic", "-n", namesrv.address, "-b", master.address, "-t", "Flight", "-r", "1", "-w", "1"
            )
            wait_topic(namesrv.port, "Flight")
            java.call("produce", topic="Flight", count=_COUNT, queue=0, nowait=True)
            slave.start()
            wait_registered(namesrv.port, "broker-a", 1)
            wait_until(
                lambda: read_log(slave.store).end == read_log(master.store).end, what="the slave has all", within_s=60
            )
            # A Java slave serves a topic only after it copied the configuration.
            wait_until(lambda: _knows_topic(slave.store), what="the slave knows the topic", within_s=75, every_s=0.5)
            # Little is fetched ahead, so most must come from the slave.
            readers = {
                version: client.begin(
                    "push",
                    topic="Flight",
                    group=f"flyers-{version[0]}",
                    cache=4,
                    consume_ms=20,
                    threads=1,
                    deadline_ms=200_000,
                )
                for version, client in clients.items()
            }
            for reader in readers.values():
                reader.wait_for(_is_message, 60, count=20)
            master.kill()
            for version, reader in readers.items():
                reader.wait_for(_is_last, 120)
                prove(at_least_once([f"body-{index}" for index in range(_COUNT)]), reader.end(), _lose_last)
                prove(_gap_is_short, reader.events(), _stall)
                print(f"Java {version}: {_longest_gap_ms(reader.events())} ms without a message")
        finally:
            for client in clients.values():
                client.close()


@pytest.mark.background
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", [Mode.SLAVE_CONSUME, Mode.ELECT], ids=["slave-consume", "elect"])
@spec("F01", "F05")
def test_java_clients_follow_a_group_with_a_registry(mode: Mode, tmp_path: Path) -> None:
    clients = {version: JavaDriver(version, tmp_path / version) for version in CLIENT_VERSIONS}
    own = {"registryEnable": "true", "kvConfigPath": str(tmp_path / "registry")}
    with OurNameServer(tmp_path / "namesrv", settings=own) as namesrv:
        namesrv.start()
        registry = f"namesrv://{namesrv.address}"
        configure(registry, ["broker-a"], mode, 2)
        values: dict[str, Value] = {**SMALL_STORE, "registryAddr": registry}
        roles: list[dict[str, Value]] = [{"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": 1}]
        master, slave = (
            OurBroker(tmp_path / f"b{n}", namesrv=namesrv.address, name=f"b{n}", settings={**values, **role})
            for n, role in enumerate(roles)
        )
        with master, slave:
            try:
                for member in (master, slave):
                    member.start()
                for client in clients.values():
                    client.defaults["namesrv"] = namesrv.address
                    client.start()
                java = clients[CLIENT_VERSIONS[-1]]
                wait_registered(namesrv.port, "broker-a", 0)
                at = ("-n", namesrv.address, "-b", master.address)
                java.mqadmin("updateTopic", *at, "-t", "Flight", "-r", "1", "-w", "1")
                wait_topic(namesrv.port, "Flight")
                wait_registered(namesrv.port, "broker-a", 1)
                java.call("produce", topic="Flight", count=_COUNT, queue=0)
                readers = {
                    version: client.begin(
                        "push", topic="Flight", group=f"flyers-{version[0]}", cache=4, consume_ms=20, threads=1,
                        deadline_ms=200_000,
                    )
                    for version, client in clients.items()
                }  # fmt: skip
                for reader in readers.values():
                    reader.wait_for(_is_message, 60, count=20)
                master.kill()
                expected = [f"body-{index}" for index in range(_COUNT)]
                if mode is Mode.ELECT:
                    wait_registered(namesrv.port, "broker-a", 0)
                    wait_until(lambda: _is_stored(java), what="a message stored by the new master", within_s=90)
                    expected.append("late-0")
                for version, reader in readers.items():
                    reader.wait_for(lambda event: _is_message(event) and event["body"] == expected[-1], 120)
                    prove(at_least_once(expected), reader.end(), lambda events: _lose(events, expected[-1]))
                    prove(_gap_is_short, reader.events(), _stall)
                    print(f"Java {version}, {mode.value}: {_longest_gap_ms(reader.events())} ms without a message")
            finally:
                for client in clients.values():
                    client.close()


def _is_stored(java: JavaDriver) -> bool:
    events = java.call("produce", topic="Flight", count=1, queue=0, prefix="late", timeout_ms=3000, nowait=True)
    return any(event.get("status") in ("SEND_OK", "SLAVE_NOT_AVAILABLE") for event in sent(events))


def _knows_topic(store: Path) -> bool:
    path = store / "config" / "topics.json"
    return path.exists() and "Flight" in path.read_text()


def _is_message(event: Event) -> bool:
    return bool(event["event"] == "message")


def _is_last(event: Event) -> bool:
    return _is_message(event) and event["body"] == f"body-{_COUNT - 1}"


def _longest_gap_ms(events: Events) -> int:
    times: list[int] = [event["at_ms"] for event in messages(events)]
    return max(later - earlier for earlier, later in zip(times, times[1:], strict=False))


def _gap_is_short(events: Events) -> None:
    assert _longest_gap_ms(events) <= NEEDS_MS


def _stall(events: Events) -> None:
    messages(events)[-1]["at_ms"] += NEEDS_MS + 1


def _lose_last(events: Events) -> None:
    _lose(events, f"body-{_COUNT - 1}")


def _lose(events: Events, body: str) -> None:
    for event in [event for event in messages(events) if event["body"] == body]:
        events.remove(event)
