"""Programs under a service manager: what each kind of process reports to a real socket, from its start to its end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.blackbox.programs import WAIT_S

BROKER = ("broker", "--set", "listenPort=0", "--set", "haListenPort=0", "--set", "bindAddress=127.0.0.1")
NAME_SERVER = ("namesrv", "--port", "0", "--set", "bindAddress=127.0.0.1")
PROXY = ("proxy", "-n", "127.0.0.1:1", "--port", "0", "--set", "bindAddress=127.0.0.1")
KAFKA = ("kafka", "-n", "127.0.0.1:1", "--port", "0")
CONSOLE = ("console", "-n", "127.0.0.1:1", "--port", "0", "--database", "sqlite:///console.db")


class Manager:
    """A service manager: a process that it started, and the reports of that process alone."""

    def __init__(self, directory: Path, words: tuple[str, ...], watchdog_us: int) -> None:
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(str(directory / "notify"))
        self._inbox.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.reports: list[str] = []
        variables = {"NOTIFY_SOCKET": str(directory / "notify"), "WATCHDOG_USEC": str(watchdog_us)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandemq", *words], cwd=directory, env={**os.environ, **variables}
        )

    def receive(self, line: str) -> None:
        """Wait for a report with a line that begins so."""
        deadline = time.monotonic() + WAIT_S
        self._inbox.settimeout(1.0)
        while True:
            try:
                data, ancillary, _, _ = self._inbox.recvmsg(4096, 64)
            except TimeoutError:
                assert time.monotonic() < deadline and self.process.poll() is None, f"no {line}: {self.reports}"
                continue
            pid = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
            assert pid == self.process.pid, f"a child reports too: {data!r}"
            lines = data.decode().splitlines()
            self.reports += lines
            if any(each.startswith(line) for each in lines):
                return

    def is_silent_for(self, seconds: float) -> bool:
        """Return whether no report comes for so long."""
        self._inbox.settimeout(seconds)
        try:
            self._inbox.recv(4096)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._inbox.close()


@contextmanager
def managed(directory: Path, words: tuple[str, ...], watchdog_us: int = 3_000_000) -> Iterator[Manager]:
    manager = Manager(directory, words, watchdog_us)
    try:
        yield manager
    finally:
        manager.close()


def port_of(status: str) -> int:
    return int(status.rpartition(":")[2])


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.parametrize("words", [BROKER, NAME_SERVER, CONSOLE, KAFKA], ids=["broker", "namesrv", "console", "kafka"])
def test_process_reports_that_it_serves_lives_and_stops(tmp_path: Path, words: tuple[str, ...]) -> None:
    with managed(tmp_path, words) as manager:
        manager.receive("READY=1")
        (status,) = [line for line in manager.reports if line.startswith("STATUS=serving at")]
        socket.create_connection(("127.0.0.1", port_of(status)), WAIT_S).close()
        manager.reports.clear()
        for _ in range(2):
            manager.receive("WATCHDOG=1")
        assert "READY=1" not in manager.reports
        manager.process.send_signal(signal.SIGTERM)
        manager.receive("STOPPING=1")
        assert manager.process.wait(WAIT_S) == 0


def test_status_of_the_kafka_front_says_when_no_name_server_responds(tmp_path: Path) -> None:
    with managed(tmp_path, KAFKA) as manager:
        manager.receive("READY=1")
        manager.receive("STATUS=not ready: no name server responds")
        manager.receive("WATCHDOG=1")


@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one", "two"])
def test_proxy_reports_as_one_process_even_with_several(tmp_path: Path, more: tuple[str, ...]) -> None:
    port = free_port()
    with managed(tmp_path, (*PROXY, *more, "--port", port)) as manager:
        manager.receive("READY=1")
        socket.create_connection(("127.0.0.1", int(port)), WAIT_S).close()
        expected = "serving with 2 processes" if more else "not ready: no name server responds"
        assert f"STATUS={expected}" in manager.reports
        manager.receive("WATCHDOG=1")
        manager.process.send_signal(signal.SIGTERM)
        manager.receive("STOPPING=1")
        assert manager.process.wait(WAIT_S) == 0


def test_proxy_beside_a_broker_does_not_speak_for_it(tmp_path: Path) -> None:
    words = (*BROKER, "-n", "127.0.0.1:1", "--proxy-port", "0")
    with managed(tmp_path, words, 600_000_000) as manager:
        manager.receive("READY=1")
        manager.process.send_signal(signal.SIGTERM)
        manager.receive("STOPPING=1")
        assert manager.process.wait(WAIT_S) == 0


def test_group_with_a_hung_process_gives_no_signs_of_life(tmp_path: Path) -> None:
    with managed(tmp_path, (*PROXY, "--processes", "2", "--port", free_port()), 4_500_000) as manager:
        manager.receive("READY=1")
        child = int(Path(f"/proc/{manager.process.pid}/task/{manager.process.pid}/children").read_text().split()[0])
        os.kill(child, signal.SIGSTOP)
        try:
            deadline = time.monotonic() + WAIT_S
            while not manager.is_silent_for(4.0):
                assert time.monotonic() < deadline, "a hung process was not noticed"
        finally:
            os.kill(child, signal.SIGCONT)
        manager.receive("WATCHDOG=1")


def test_shards_report_as_one_process_and_a_hung_one_is_replaced(tmp_path: Path) -> None:
    with managed(tmp_path, (*BROKER, "--shards", "2")) as manager:
        manager.receive("STATUS=starting 2 shards")
        assert "READY=1" not in manager.reports
        manager.receive("READY=1")
        hung = int(Path(f"/proc/{manager.process.pid}/task/{manager.process.pid}/children").read_text().split()[0])
        os.kill(hung, signal.SIGSTOP)
        manager.receive("STATUS=not ready: broker-a: ended (killed by SIGKILL)")
        manager.receive("STATUS=serving with 2 shards")
        manager.receive("WATCHDOG=1")
        manager.process.send_signal(signal.SIGTERM)
        manager.receive("STOPPING=1")
        assert manager.process.wait(WAIT_S) == 0
