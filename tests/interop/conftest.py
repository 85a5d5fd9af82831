"""One name server, one broker of the subject and one JVM per client version for all tests that do not break them.

Tests that start and kill brokers of their own mostly wait for JVMs; they carry `background`, begin on worker threads
when the session starts, and are asked for their outcome at its end.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.driver import JavaDriver
from tests.interop.java import live
from tests.interop.peers import (
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


class Drivers:
    """A JVM per client version, started when first asked for; name servers come with each order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, JavaDriver] = {}
        self._lock = threading.Lock()

    def __call__(self, version: str) -> JavaDriver:
        with self._lock:
            if version not in self._running:
                # The default of 30 s between looks at the name server would only make the tests slow.
                driver = JavaDriver(version, self._directory / f"client-{version}", poll_ms=1000)
                self._running[version] = driver.start()
            return self._running[version]

    def close(self) -> None:
        for driver in self._running.values():
            driver.close()


_WORKERS = 3
_drivers = pytest.StashKey[Drivers]()
_futures: dict[str, Future[None]] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "background: begun on a worker thread when the session starts, because it mostly waits for JVMs; may ask "
        "for its parameters, `drivers` and `tmp_path` only",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs Java; what runs in the background is asked for its outcome last."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(600 if item.get_closest_marker("background") else 180))
    items.sort(key=lambda item: item.get_closest_marker("background") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Begin the background tests, run the others beside them; what they wrote is kept if something failed."""
    if session.config.option.collectonly:
        return (yield)
    directory = Path(tempfile.mkdtemp(prefix="tandemq-interop-"))
    drivers = session.config.stash[_drivers] = Drivers(directory)
    with ThreadPoolExecutor(_WORKERS, "background") as pool:
        for number, item in enumerate(session.items):
            if isinstance(item, pytest.Function) and item.get_closest_marker("background"):
                path = directory / f"{number}-{item.originalname}"
                _futures[item.nodeid] = pool.submit(_run, item, drivers, path)
        try:
            return (yield)
        finally:
            pool.shutdown(cancel_futures=True)
            drivers.close()
            if session.testsfailed:
                print(f"\nlogs and stores: {directory}")
            else:
                shutil.rmtree(directory)


def _run(item: pytest.Function, drivers: Drivers, path: Path) -> None:
    path.mkdir()
    values = {**item.callspec.params} if hasattr(item, "callspec") else {}
    known = {**values, "drivers": drivers, "tmp_path": path}
    item.obj(**{name: known[name] for name in inspect.signature(item.obj).parameters})


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """A background test has run or is running: its outcome is that of its thread."""
    if pyfuncitem.nodeid not in _futures:
        return None
    _futures[pyfuncitem.nodeid].result()
    return True


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
def drivers(request: pytest.FixtureRequest) -> Drivers:
    """The JVMs of the session."""
    return request.config.stash[_drivers]


@pytest.fixture(scope="session", params=CLIENTS)
def java(request: pytest.FixtureRequest, drivers: Drivers, pair: Pair) -> JavaDriver:
    """A Java client of each version that talks to the pair unless told otherwise."""
    return drivers(request.param).at(pair.namesrv.address)
