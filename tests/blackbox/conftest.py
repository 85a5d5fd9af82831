"""Programs and proxies that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.blackbox.pair import Start
from tests.blackbox.ports import Reserved
from tests.blackbox.programs import Program, Proxy


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
    reserved = Reserved()
    yield reserved.port
    reserved.close()
