"""Twins of different make: a Java slave under the subject's master and the subject's slave under a Java master."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.checks import Events, exactly, fail_one, lose_one, messages, prove, repeat_one, sent
from tests.interop.driver import JavaDriver
from tests.interop.java import Value, wait_until
from tests.interop.logs import Log, assert_twins, offsets_of, read_log
from tests.interop.peers import (
    CLIENTS,
    SERVERS,
    SHORT_DELAYS,
    SMALL_STORE,
    SUBJECT,
    Broker,
    broker,
    name_server,
    of_each_change,
    start_registered,
)
from tests.interop.wire import wait_registered, wait_topic
from tests.spec import spec

PAIRS = [(SUBJECT, version) for version in SERVERS] + [(version, SUBJECT) for version in SERVERS]
"""(master, slave)"""

_SETTINGS: dict[str, Value] = {
    **SMALL_STORE,
    "mappedFileSizeCommitLog": 128 * 1024,
    # A Java 5.x master waits for nobody unless told so.
    "inSyncReplicas": 2,
    # TandemQ counts a slave that does not introduce itself only if its address is listed.
    "haClassicPeers": "127.0.0.1",
    **SHORT_DELAYS,
}


@pytest.mark.parametrize(
    ("leads", "follows"), of_each_change(PAIRS), ids=[f"{leads}-leads-{follows}" for leads, follows in PAIRS]
)
@spec("T08", "M03")
def test_twins_of_different_make_stay_identical_through_kills(
    leads: str, follows: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    # The master's name server is of the same make as the subject; the client belongs to the Java broker of the pair.
    with (
        name_server(SUBJECT, tmp_path / "namesrv") as namesrv,
        broker(leads, tmp_path / "master", namesrv, settings=_SETTINGS, brokerRole="SYNC_MASTER") as master,
        broker(follows, tmp_path / "slave", namesrv, settings=_SETTINGS, brokerRole="SLAVE", brokerId=1) as slave,
    ):
        namesrv.start()
        java = drivers(CLIENTS[-1]).at(namesrv.address)
        start_registered(master, namesrv)
        _make_topic(java, namesrv.address, namesrv.port, master)
        _prepare(java, namesrv.address, master)
        slave.start()
        _wait_connected(java)

        # Together: every answer waits for the slave.
        together = java.call("produce", topic="Twins", count=100, queues=4, prefix="together", size=2000, keys="t")
        prove(_all_ok, together, fail_one, lose_one)
        _wait_twins(master, slave)
        if leads == SUBJECT and java.version.startswith("5"):  # 4.9 has no such command
            _see_ha_status(java, master)

        # The slave dies: the master says that nobody has a second copy, goes on, and the slave catches up.
        slave.kill()
        alone = java.call("produce", topic="Twins", count=1, queues=4, prefix="alone", timeout_ms=9000)
        prove(_says_that_slave_is_missing, alone, _claim_ok)
        java.call("produce", topic="Twins", count=60, queues=4, prefix="late", size=2000, nowait=True)
        slave.start()
        _wait_twins(master, slave)
        _wait_connected(java)

        # The master dies and comes back on the same store; the slave follows again.
        master.kill()
        master.start()
        wait_registered(namesrv.port, "broker-a", 0)
        _wait_connected(java)
        again = java.call("produce", topic="Twins", count=40, queues=4, prefix="again", size=2000)
        prove(_all_of(40), again, fail_one, lose_one)
        _wait_twins(master, slave)

        logs = read_log(master.store), read_log(slave.store)
        prove(assert_twins, logs, _flip_bit, _cut_record)
        counts = {"early": 12, "together": 100, "alone": 1, "late": 60, "again": 40}
        expected = [f"{prefix}-{index}" for prefix, count in counts.items() for index in range(count)]
        read = java.call("pull", topic="Twins", group="judge")
        prove(exactly(expected), _without_probes(read), lose_one, repeat_one)
        _wait_configuration(slave)


def _make_topic(java: JavaDriver, namesrv: str, port: int, master: Broker) -> None:
    java.mqadmin("updateTopic", "-n", namesrv, "-b", master.address, "-t", "Twins", "-r", "4", "-w", "4")
    java.mqadmin("updateTopic", "-n", namesrv, "-b", master.address, "-t", "TwinProbes", "-r", "1", "-w", "1")
    wait_topic(port, "Twins")
    wait_topic(port, "TwinProbes")


def _wait_connected(java: JavaDriver) -> None:
    """Send until the master says that a slave has the message too."""
    wait_until(
        lambda: (
            [event["status"] for event in sent(java.call("produce", topic="TwinProbes", count=1, timeout_ms=9000))]
            == ["SEND_OK"]
        ),
        what="a slave is connected and counted",
        within_s=60,
        every_s=0.2,
    )


def _see_ha_status(java: JavaDriver, master: Broker) -> None:
    """mqadmin haStatus tells of the slave, and that it has everything; its last report may be under way."""
    end = str(read_log(master.store).end)
    wait_until(
        lambda: _ha_status(java, master).get("ack") == end,
        what="haStatus tells that the slave has everything",
        within_s=30,
        every_s=0.5,
    )

    def tells_of_its_slave(values: dict[str, str]) -> None:
        expected = {
            "MasterAddr": master.address,
            "MasterCommitLogMaxOffset": end,
            "SlaveNum": "1",
            "InSyncSlaveNum": "1",
        }
        assert expected | {"ack": end, "diff": "0", "state": "OK"} == {
            key: value for key, value in values.items() if key != "host"
        }
        assert values["host"] == "127.0.0.1"

    prove(
        tells_of_its_slave,
        _ha_status(java, master),
        lambda values: values.update(SlaveNum="0"),
        lambda values: values.update(diff="1"),
    )


def _ha_status(java: JavaDriver, master: Broker) -> dict[str, str]:
    """What is said of the master, and of a slave in the words of its columns."""
    printed = java.mqadmin("haStatus", "-b", master.address)
    row = re.search(
        r"^(?P<host>\S+):\d+ +(?P<ack>\d+) +(?P<diff>-?\d+) +[\d.]+ +(?P<state>\D+?) +\d+$", printed, re.MULTILINE
    )
    return dict(re.findall(r"^#(\S+)\t(\S+)$", printed, re.MULTILINE)) | (row.groupdict() if row else {})


def _all_of(count: int) -> Callable[[Events], None]:
    def check(events: Events) -> None:
        assert [event["status"] for event in sent(events)] == ["SEND_OK"] * count

    return check


def _all_ok(events: Events) -> None:
    _all_of(100)(events)


def _says_that_slave_is_missing(events: Events) -> None:
    assert [event["status"] in {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"} for event in sent(events)] == [True]


def _claim_ok(events: Events) -> None:
    sent(events)[0]["status"] = "SEND_OK"


def _without_probes(events: Events) -> Events:
    return [event for event in messages(events) if event["topic"] == "Twins"]


def _wait_twins(master: Broker, slave: Broker) -> None:
    """Wait until both logs end at the same offset, then compare them byte by byte."""
    wait_until(
        lambda: 0 < read_log(master.store).end == read_log(slave.store).end,
        what="the slave has caught up",
        within_s=60,
        every_s=0.3,
    )
    assert_twins((read_log(master.store), read_log(slave.store)))


def _flip_bit(logs: tuple[Log, Log]) -> None:
    damaged = bytearray(logs[1].data)
    damaged[len(damaged) // 2] ^= 1
    object.__setattr__(logs[1], "data", bytes(damaged))


def _cut_record(logs: tuple[Log, Log]) -> None:
    object.__setattr__(logs[1], "data", logs[1].data[: logs[1].records[-1] - logs[1].start])


def _prepare(java: JavaDriver, namesrv: str, master: Broker) -> None:
    """Everything that a slave must copy besides the log: a topic, a group, offsets, the progress of delays."""
    java.call("produce", topic="Twins", count=12, queues=4, prefix="early", nowait=True)
    java.call("produce", topic="TwinProbes", count=1, delay=1, nowait=True)
    java.call("pull", topic="Twins", group="twin-readers", commit=True, limit=2)
    java.mqadmin("updateSubGroup", "-n", namesrv, "-b", master.address, "-g", "twin-group", "-r", "5")


def _wait_configuration(slave: Broker) -> None:
    """Wait until the slave holds what `_prepare` made; Java slaves look every 10 s (4.9) or 60 s (5.3)."""
    copied = wait_until(
        lambda: offsets_of(slave.store, "Twins", "twin-readers"), what="offsets copied", within_s=75, every_s=0.5
    )
    prove(_all_two, copied, lambda offsets: offsets.update({"1": 3}))
    for name, text in (("topics.json", "Twins"), ("subscriptionGroup.json", "twin-group"), ("delayOffset.json", "1:1")):
        _wait_text(slave, name, text)


def _wait_text(slave: Broker, name: str, text: str) -> None:
    what = f"{text} in the slave's {name}"
    wait_until(lambda: text in _text(slave.store, name), what=what, within_s=75, every_s=0.5)


def _text(store: Path, name: str) -> str:
    path = store / "config" / name
    return re.sub(r'["\s]', "", path.read_text()) if path.exists() else ""


def _all_two(offsets: dict[str, int]) -> None:
    assert offsets == {str(queue): 2 for queue in range(4)}
