"""Reports to the service manager, received by a real socket."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tandemq.boundary import Event, Now, Turn
from tandemq.real.loop import Loop
from tandemq.real.service_manager import REPORT_NS, STATUS_CHARACTERS_MAX, ServiceManager


@pytest.fixture(params=["path", "abstract"])
def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address of a manager's socket as in NOTIFY_SOCKET, and the socket."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@tandemq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(name.replace("@", "\0"))
        bound.setblocking(False)
        yield name, bound


def received(bound: socket.socket) -> list[list[str]]:
    """Return the lines of each report so far."""
    found = []
    while True:
        try:
            found.append(bound.recv(4096).decode().splitlines())
        except BlockingIOError:
            return found


def test_first_report_says_ready_and_later_ones_what_changed(inbox: tuple[str, socket.socket]) -> None:
    address, bound = inbox
    with closing(ServiceManager(address, 30_000_000)) as manager:
        assert manager.report_ns == 10_000_000_000
        manager.starting("opening the store")
        for status in ("serving", "serving", "not ready: no\nname server"):
            manager.alive(status)
        manager.stopping()
        manager.alive("serving")
        assert received(bound) == [
            ["STATUS=opening the store"],
            ["READY=1", "WATCHDOG=1", "STATUS=serving"],
            ["WATCHDOG=1"],
            ["WATCHDOG=1", "STATUS=not ready: no name server"],
            ["STOPPING=1", "STATUS=stopping"],
            ["WATCHDOG=1"],
        ]


def test_manager_without_watchdog_gets_no_signs_of_life(inbox: tuple[str, socket.socket]) -> None:
    address, bound = inbox
    with closing(ServiceManager(address)) as manager:
        assert manager.report_ns == REPORT_NS
        for status in ("a", "a", "b" * 1000):
            manager.alive(status)
    assert received(bound) == [["READY=1", "STATUS=a"], [f"STATUS={'b' * STATUS_CHARACTERS_MAX}"]]


def test_environment_of_children_does_not_name_the_manager() -> None:
    for pid, expected_ns in ((str(os.getpid()), 1_000_000_000), ("", 1_000_000_000), ("1", REPORT_NS)):
        environ = {"NOTIFY_SOCKET": "@none", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": pid, "HOME": "/"}
        with closing(ServiceManager.of_environment(environ)) as manager:
            assert (environ, manager.report_ns) == ({"HOME": "/"}, expected_ns)
    with closing(ServiceManager.of_environment({"WATCHDOG_USEC": "soon"})) as manager:
        assert manager.report_ns == REPORT_NS
        manager.alive("there is no manager")


def test_full_or_absent_socket_stops_nothing(
    inbox: tuple[str, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    address, bound = inbox
    with closing(ServiceManager(address)) as manager:
        for number in range(10_000):
            manager.alive(f"{number}")
        assert 0 < len(received(bound)) < 10_000
        manager.alive("again")
        assert received(bound) == [["STATUS=again"]]
    with closing(ServiceManager("/nonexistent/socket")) as manager:
        manager.alive("there is no manager")
    assert "NOTIFY_SOCKET /nonexistent/socket cannot be used" in caplog.text


class _Node:
    """A node that stops the loop after some turns."""

    def __init__(self, loop: Loop, turns: int) -> None:
        self.loop = loop
        self.left = turns

    def turn(self, _received: Sequence[tuple[int, bytes]], _events: Sequence[Event], _now: Now) -> Turn:
        self.left -= 1
        if not self.left:
            self.loop.stop()
        return Turn()

    def deadline_ms(self) -> int | None:
        return 0


def test_loop_reports_after_its_first_turn_and_once_in_an_interval() -> None:
    for interval_ns, expected in ((0, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]), (1 << 60, [9])):
        loop = Loop()
        node = _Node(loop, 10)
        lefts: list[int] = []
        loop.report_alive(lambda: lefts.append(node.left), interval_ns)  # noqa: B023  # called within this pass
        loop.run(node)
        loop.close()
        assert lefts == expected


def test_manager_that_was_started_again_gets_the_next_report(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as first:
        first.bind(str(address))
        manager = ServiceManager(str(address), 30_000_000)
    with closing(manager):
        manager.alive("serving")  # nobody has the address
        address.unlink()
        manager.alive("serving")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
            second.bind(str(address))
            second.setblocking(False)
            manager.alive("serving")
            manager.alive("serving")
            assert received(second) == [["WATCHDOG=1", "STATUS=serving"], ["WATCHDOG=1"]]
