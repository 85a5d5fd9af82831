"""Every command of mqadmin 4.9.8 and 5.3.3 against TandemQ: it does its work, or prints why not and what to do.

Each row is a subtest of the test of its version: as tests of their own, each worker of `make interop` would run all of
them first. The JVMs of 5.3.3 run beside each other, because its mqadmin often waits for 3 s when its client shuts down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.checks import sent, without_log
from tests.interop.driver import JavaDriver, Running
from tests.interop.java import Process, java_command, wait_until
from tests.interop.mqadmin_rows import BOTH, CHAINS, ENDLESS, LAST, NEW, OLD, Row, rows
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import SMALL_STORE, start_registered
from tests.interop.wire import QUERY_OFFSET, ask, wait_topic
from tests.samples import slow

_MEMBERS_OF_GROUP = 38
_JVMS = {"4.9.8": 1, "5.3.3": 3}
_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass
class Node:
    """A name server and a broker that registered with it."""

    namesrv: OurNameServer
    broker: OurBroker


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The node that is asked."""
    directory = tmp_path_factory.mktemp("mqadmin")
    with OurNameServer(directory / "namesrv") as namesrv:
        namesrv.start()
        with OurBroker(directory / "broker", namesrv=namesrv.address, settings=SMALL_STORE) as broker:
            start_registered(broker, namesrv)
            yield Node(namesrv, broker)


class Table:
    """All rows of a version, and what each row printed."""

    def __init__(self, version: str, node: Node, directory: Path) -> None:
        self._version = version
        self._node = node
        self._directory = directory
        self.values: dict[str, str] = {}
        """Of the braces in arguments and patterns."""
        self.printed: dict[Row, str] = {}

    def run(self) -> None:
        """Run all rows."""
        drivers = [self._driver(number) for number in range(_JVMS[self._version])]
        try:
            for java in drivers:
                java.start()
            consumer = self._prepare(drivers[0])
            chains = [[row for row in chain if self._version in row.versions] for chain in CHAINS]
            with ThreadPoolExecutor(len(drivers)) as pool:
                for done in [
                    pool.submit(self._run_chains, java, chains[number :: len(drivers)])
                    for number, java in enumerate(drivers)
                ]:
                    done.result()
            self._run_chains(drivers[0], [[row for row in LAST if self._version in row.versions]])
            consumer.end()
        finally:
            for java in drivers:
                java.close()

    def _driver(self, number: int) -> JavaDriver:
        directory = self._directory / f"java-{number}"
        return JavaDriver(self._version, directory, poll_ms=1000, namesrv=self._node.namesrv.address)

    def _run_chains(self, java: JavaDriver, chains: list[list[Row]]) -> None:
        for chain in chains:
            for row in chain:
                arguments = row.arguments.format(**self.values).split()
                self.printed[row] = java.mqadmin(row.command, "-n", self._node.namesrv.address, *arguments)

    def _prepare(self, java: JavaDriver) -> Running:
        """A topic with messages, a group with a consumer online, two files; returns the consumer."""
        address, broker = self._node.namesrv.address, self._node.broker
        digit = self._version[0]
        topic, group = f"Table{digit}", f"table{digit}"
        listed = [{"topicName": f"{topic}Listed{each}", "readQueueNums": 2, "writeQueueNums": 2} for each in "AB"]
        (self._directory / "topics.json").write_text(json.dumps(listed))
        groups = [{"groupName": f"{group}listed{each}"} for each in "AB"]
        (self._directory / "groups.json").write_text(json.dumps(groups))
        for name in (topic, f"{topic}s"):
            java.mqadmin("updateTopic", "-n", address, "-b", broker.address, "-t", name, "-r", "2", "-w", "2")
            wait_topic(self._node.namesrv.port, name)
        [first, *_] = sent(java.call("produce", topic=topic, count=6, queues=2, keys="key", tags="T"))
        consumer = java.begin("push", topic=topic, group=group, instance=group, deadline_ms=300_000)
        consumer.wait_for(lambda event: event["event"] == "message", 40, count=6)
        wait_until(lambda: self._stored(topic, group) == ["3", "3"], what="offsets stored", within_s=20, every_s=0.5)
        self.values = {
            "a": broker.address,
            "n": address,
            "t": topic,
            "g": group,
            "c": f"127.0.0.1@{group}",
            "i": first["offsetMsgId"],
            "k": first["msgId"],
            "d": str(self._directory),
            "v": digit,
        }
        return consumer

    def _stored(self, topic: str, group: str) -> list[str]:
        asked = {"consumerGroup": group, "topic": topic, "setZeroIfNotFound": "false"}
        port = self._node.broker.port
        answers = [ask(port, QUERY_OFFSET, {**asked, "queueId": queue}).fields for queue in ("0", "1")]
        return [answer["extFields"]["offset"] for answer in answers if answer["code"] == 0]

    def problems(self, row: Row) -> Iterator[str]:
        """Yield what a row does not print, or prints although it should not."""
        printed = self.printed[row]
        call = f"{row.command} {row.arguments}"
        for pattern in row.shows:
            wanted = pattern.format(**self.values)
            if not re.search(wanted, printed):
                yield f"{call}: {wanted!r} is not in:\n{printed}"
        if not row.fails and row.verdict != "refused" and "Exception" in without_log(printed):
            yield f"{call}: an exception in:\n{printed}"


@pytest.mark.parametrize("version", [slow(OLD), NEW])
def test_every_command_works_or_prints_why_not(
    version: str, node: Node, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    table = Table(version, node, tmp_path)
    table.run()
    for row in rows(version):
        with subtests.test(row.command, arguments=row.arguments):
            assert not list(table.problems(row))


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("command", ENDLESS)
def test_endless_command_works_until_it_is_killed(node: Node, version: str, command: str, tmp_path: Path) -> None:
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"

    def line() -> list[str]:
        arguments = (command, "-n", node.namesrv.address)
        return java_command("client", version, main, *arguments, home=tmp_path / "home", jvm_options=_JVM)

    with Process(command, tmp_path, command=line, ready=ENDLESS[command] or node.namesrv.port) as running:
        running.start()
        if command == "startMonitoring":
            group = {"consumerGroup": "__MONITOR_CONSUMER"}
            wait_until(
                lambda: ask(node.broker.port, _MEMBERS_OF_GROUP, group).fields["code"] == 0,
                what="the monitor's consumer is online",
                within_s=30,
            )


def test_commands_of_new_versions_only_are_unknown_to_the_old_one(node: Node, tmp_path: Path) -> None:
    with JavaDriver("4.9.8", tmp_path / "unknown", namesrv=node.namesrv.address) as java:
        for command in sorted({row.command for row in rows(NEW)} - {row.command for row in rows("4.9.8")}):
            assert f"{command} not exist" in java.mqadmin(command, "-n", node.namesrv.address), command
