"""Programs and proxies that end with their test; what a test that takes minutes says meanwhile."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from tandemq.config.settings import NameServerConfig
from tandemq.run.nameserver import NameServerProcess
from tandemq.run.ports import ReservedPorts
from tests.blackbox.certificates import Authority
from tests.blackbox.in_process import running
from tests.blackbox.kills import Tell
from tests.blackbox.pair import Start
from tests.blackbox.programs import Program, Proxy

StartNameServer = Callable[..., NameServerProcess]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def start_name_server(authority: Authority, tmp_path: Path) -> Iterator[StartNameServer]:
    def begin(cert: tuple[str, str] | None = None, **more: object) -> NameServerProcess:
        cert_file, key_file = cert or authority.issue("names")
        config = NameServerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            data_path=str(tmp_path / "names"),
            tls_mode="enforcing",
            tls_file="",
            tls_cert_file=cert_file,
            tls_key_file=key_file,
            registry_enable=True,
        )
        server = NameServerProcess(replace(config, **more))  # type: ignore[arg-type]
        return stack.enter_context(running(server))

    with ExitStack() as stack:
        yield begin


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def begin(name: str, **settings: object) -> Program:
        programs.append(Program(tmp_path / name, **settings))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


@pytest.fixture
def proxied() -> Iterator[Callable[[int], Proxy]]:
    proxies: list[Proxy] = []

    def begin(port: int) -> Proxy:
        proxies.append(Proxy(port))
        return proxies[-1]

    yield begin
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port where connections are refused."""
    with closing(ReservedPorts()) as ports:
        yield ports.reserve()


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Tell:
    """Says a line on the terminal at once, with the seconds since the test began."""
    began = time.monotonic()

    def say(line: str) -> None:
        with capfd.disabled():
            print(f"\n{request.node.name} {time.monotonic() - began:.0f} s: {line}", end="", flush=True)

    return say
