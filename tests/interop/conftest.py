"""One name server, one broker of the subject and one JVM per client version for all tests that do not break them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.driver import JavaDriver
from tests.interop.java import live
from tests.interop.peers import (
    ALL_CLIENTS,
    CLIENTS,
    SHORT_DELAYS,
    SMALL_STORE,
    SUBJECT,
    Broker,
    NameServer,
    broker,
    name_server,
    start_registered,
)
from tests.interop.wire import wait_topic

SECONDS_MAX = 1200
"""Timeout of a test: the limits of its own waits, which say more, come first."""


class Drivers:
    """A JVM per client version, started when first asked for; name servers come with each order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, JavaDriver] = {}

    def __call__(self, version: str) -> JavaDriver:
        if version not in self._running:
            # The default of 30 s between looks at the name server would only make the tests slow.
            driver = JavaDriver(version, self._directory / f"client-{version}", poll_ms=1000)
            self._running[version] = driver.start()
        return self._running[version]

    def close(self) -> None:
        for driver in self._running.values():
            driver.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests here as those that need Java, and give them more time."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure shows how the logs of all running peers end."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed:
        report.sections += [(f"log of {process.name}", process.log_tail()) for process in live]
    return report  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Pair:
    """A running name server and a broker registered with it."""

    namesrv: NameServer
    broker: Broker

    def make_topic(self, java: JavaDriver, topic: str, queues: int = 4) -> str:
        """Create a topic with mqadmin and wait until it is routed."""
        counts = ("-r", str(queues), "-w", str(queues))
        java.mqadmin("updateTopic", "-n", self.namesrv.address, "-b", self.broker.address, "-t", topic, *counts)
        wait_topic(self.namesrv.port, topic)
        return topic


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Name server and broker of the subject, with short delay levels."""
    directory = tmp_path_factory.mktemp("pair")
    settings = {**SMALL_STORE, **SHORT_DELAYS, "enablePropertyFilter": True}
    with name_server(SUBJECT, directory / "namesrv") as namesrv:
        namesrv.start()
        with broker(SUBJECT, directory / "broker", namesrv, settings=settings) as subject:
            start_registered(subject, namesrv)
            yield Pair(namesrv, subject)


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """The JVMs of the session."""
    found = Drivers(tmp_path_factory.mktemp("clients"))
    yield found
    found.close()


@pytest.fixture(scope="session", params=CLIENTS)
def java(request: pytest.FixtureRequest, drivers: Drivers, pair: Pair) -> JavaDriver:
    """A Java client of each version that talks to the pair unless told otherwise."""
    return drivers(request.param).at(pair.namesrv.address)


@pytest.fixture(scope="session", params=ALL_CLIENTS)
def any_java(request: pytest.FixtureRequest, drivers: Drivers, pair: Pair) -> JavaDriver:
    """The same with the newest release as well."""
    return drivers(request.param).at(pair.namesrv.address)
