"""Every command of mqadmin 4.9.8 and 5.3.3 against TandemQ: it does its work, or prints why not and what to do.

All rows run once, some JVMs beside each other, because mqadmin 5.3.3 often waits for 3 s when its client shuts down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.interop.checks import sent, without_log
from tests.interop.driver import JavaDriver, Running
from tests.interop.java import Process, java_command, wait_until
from tests.interop.mqadmin_rows import BOTH, CHAINS, ENDLESS, LAST, NEW, Row, rows
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import SMALL_STORE, start_registered
from tests.interop.wire import QUERY_OFFSET, ask, wait_topic

_MEMBERS_OF_GROUP = 38
_JVMS = {"4.9.8": 1, "5.3.3": 3}
_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass
class Table:
    """The node that is asked, and what each row printed."""

    namesrv: OurNameServer
    broker: OurBroker
    directory: Path
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of the braces in arguments and patterns, by version."""
    printed: dict[tuple[str, Row], str] = field(default_factory=dict)

    def run(self, java: JavaDriver, row: Row) -> None:
        """Run one row and keep what it prints."""
        arguments = row.arguments.format(**self.values[java.version]).split()
        self.printed[java.version, row] = java.mqadmin(row.command, "-n", self.namesrv.address, *arguments)

    def prepare(self, java: JavaDriver) -> Running:
        """A topic with messages, a group with a consumer online, two files; returns the consumer."""
        version = java.version
        topic, group = f"Table{version[0]}", f"table{version[0]}"
        directory = self.directory / version
        directory.mkdir()
        listed = [{"topicName": f"{topic}Listed{each}", "readQueueNums": 2, "writeQueueNums": 2} for each in "AB"]
        (directory / "topics.json").write_text(json.dumps(listed))
        (directory / "groups.json").write_text(json.dumps([{"groupName": f"{group}listed{each}"} for each in "AB"]))
        for name in (topic, f"{topic}s"):
            created = ("-b", self.broker.address, "-t", name, "-r", "2", "-w", "2")
            java.mqadmin("updateTopic", "-n", self.namesrv.address, *created)
            wait_topic(self.namesrv.port, name)
        [first, *_] = sent(java.call("produce", topic=topic, count=6, queues=2, keys="key", tags="T"))
        consumer = java.begin("push", topic=topic, group=group, instance=group, deadline_ms=300_000)
        consumer.wait_for(lambda event: event["event"] == "message", 40, count=6)
        wait_until(lambda: self._stored(topic, group) == ["3", "3"], what="offsets stored", within_s=20, every_s=0.5)
        self.values[version] = {
            "a": self.broker.address,
            "n": self.namesrv.address,
            "t": topic,
            "g": group,
            "c": f"127.0.0.1@{group}",
            "i": first["offsetMsgId"],
            "k": first["msgId"],
            "d": str(directory),
            "v": version[0],
        }
        return consumer

    def _stored(self, topic: str, group: str) -> list[str]:
        asked = {"consumerGroup": group, "topic": topic, "setZeroIfNotFound": "false"}
        answers = [ask(self.broker.port, QUERY_OFFSET, {**asked, "queueId": queue}).fields for queue in ("0", "1")]
        return [answer["extFields"]["offset"] for answer in answers if answer["code"] == 0]


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """Run every row of both versions."""
    directory = tmp_path_factory.mktemp("mqadmin")
    with OurNameServer(directory / "namesrv") as namesrv:
        namesrv.start()
        with OurBroker(directory / "broker", namesrv=namesrv.address, settings=SMALL_STORE) as broker:
            start_registered(broker, namesrv)
            found = Table(namesrv, broker, directory)
            with ThreadPoolExecutor(sum(_JVMS.values())) as pool:
                for done in [pool.submit(_run_version, found, version) for version in BOTH]:
                    done.result()
            yield found


def _run_version(table: Table, version: str) -> None:
    drivers = [
        JavaDriver(version, table.directory / f"java-{version}-{number}", poll_ms=1000, namesrv=table.namesrv.address)
        for number in range(_JVMS[version])
    ]
    try:
        for java in drivers:
            java.start()
        consumer = table.prepare(drivers[0])
        chains = [[row for row in chain if version in row.versions] for chain in CHAINS]
        with ThreadPoolExecutor(len(drivers)) as pool:
            for done in [
                pool.submit(_run_chains, table, java, chains[number :: len(drivers)])
                for number, java in enumerate(drivers)
            ]:
                done.result()
        _run_chains(table, drivers[0], [[row for row in LAST if version in row.versions]])
        consumer.end()
    finally:
        for java in drivers:
            java.close()


def _run_chains(table: Table, java: JavaDriver, chains: list[list[Row]]) -> None:
    for chain in chains:
        for row in chain:
            table.run(java, row)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("version", "row"),
    [
        pytest.param(version, row, id=f"{version}-{row.command}-{number}")
        for version in BOTH
        for number, row in enumerate(rows(version))
    ],
)
def test_command_works_or_prints_why_not(table: Table, version: str, row: Row) -> None:
    printed = table.printed[version, row]
    for pattern in row.shows:
        wanted = pattern.format(**table.values[version])
        assert re.search(wanted, printed), f"{wanted!r} is not in:\n{printed}"
    assert row.fails or row.verdict == "refused" or "Exception" not in without_log(printed), printed


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("command", ENDLESS)
def test_endless_command_works_until_it_is_killed(table: Table, version: str, command: str, tmp_path: Path) -> None:
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"

    def line() -> list[str]:
        arguments = (command, "-n", table.namesrv.address)
        return java_command("client", version, main, *arguments, home=tmp_path / "home", jvm_options=_JVM)

    with Process(command, tmp_path, command=line, ready=ENDLESS[command] or table.namesrv.port) as running:
        running.start()
        if command == "startMonitoring":
            group = {"consumerGroup": "__MONITOR_CONSUMER"}
            wait_until(
                lambda: ask(table.broker.port, _MEMBERS_OF_GROUP, group).fields["code"] == 0,
                what="the monitor's consumer is online",
                within_s=30,
            )


def test_commands_of_new_versions_only_are_unknown_to_the_old_one(table: Table) -> None:
    with JavaDriver("4.9.8", table.directory / "unknown", namesrv=table.namesrv.address) as java:
        for command in sorted({row.command for row in rows(NEW)} - {row.command for row in rows("4.9.8")}):
            assert f"{command} not exist" in java.mqadmin(command, "-n", table.namesrv.address), command
