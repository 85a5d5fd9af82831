"""Machines on which the commands of a page run, as processes of this one.

    page ──► shell ─┬─ /etc, /var/lib, /opt      directories of the machine
                    ├─ 10.0.0.N                  loopback addresses of this process, so that ports stay as they are
                    └─ systemctl, chown          systemctl runs what the page's unit files and zoo.cfg say

`Machine.run` runs lines of a page as its reader would. Linux only: every address of 127.0.0.0/8 is the loopback there.
"""

import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemq.config.samples import ON_ANY_DISK
from tests.blackbox.programs import wait_until

SHELL_S = 300
SYSTEMCTL = """#!/bin/sh
echo "$*" > {directory}/orders && read -r code < {directory}/codes && exit "$code"
"""
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "haReconnectInterval": 50,
    **ON_ANY_DISK,
}
"""Settings that tests add to a page's: small files."""
VERSION = "0.1.0"


class Machine:
    """One machine: its files, its services and its shell."""

    def __init__(self, directory: Path, number: int, zookeeper: Callable[[Path], list[str]] | None = None) -> None:
        """`zookeeper`: the command of a server with this configuration file."""
        self.directory = directory
        self._zookeeper = zookeeper
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        octets = os.getpid()
        self.subnet = f"127.{64 + octets // 256 % 128}.{octets % 256}"
        self.address = f"{self.subnet}.{number}"
        for name in ("etc/tandemq", "etc/zookeeper/conf", "etc/systemd/system", "var/lib", "opt", "bin", "home"):
            (directory / name).mkdir(parents=True)
        for fifo in ("orders", "codes"):
            os.mkfifo(directory / fifo)
        self._tool(directory / "bin" / "systemctl", SYSTEMCTL.format(directory=directory))
        self._tool(directory / "bin" / "chown", "#!/bin/sh\n")
        self.install(VERSION, [str(Path(entry).absolute()) for entry in sys.path])
        (directory / "opt" / "tandemq").symlink_to(f"tandemq-{VERSION}")
        threading.Thread(target=self._obey, daemon=True).start()

    def install(self, version: str, path: list[str]) -> None:
        """Make a `tandemq` that imports from `path`, as `pip install` into /opt/tandemq-VERSION does."""
        text = f'#!/bin/sh\nPYTHONPATH={":".join(path)} exec {sys.executable} -m tandemq "$@"\n'
        self._tool(self.directory / "opt" / f"tandemq-{version}" / "bin" / "tandemq", text)

    def _tool(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def local(self, text: str) -> str:
        """Return a text of a page with the directories and addresses of this machine."""
        for place in ("/etc/", "/var/lib/", "/opt/"):
            text = text.replace(place, f"{self.directory}{place}")
        return text.replace("10.0.0.", f"{self.subnet}.")

    def path(self, place: str) -> Path:
        """Return where this machine has a file of a page."""
        return self.directory / place.lstrip("/")

    def run(self, text: str, *, code: int = 0) -> str:
        """Run lines of a page, and return what they print; they must end with this exit code."""
        environment = self.path("/etc/tandemq/environment")
        known = f"set -a; . {environment}; set +a\n" if environment.exists() else ""
        done = subprocess.run(
            ["bash", "-e", "-c", known + self.local(text)],
            cwd=self.directory,
            env=os.environ
            | {
                "PATH": f"{self.directory}/bin:{self.directory}/opt/tandemq/bin:/usr/bin:/bin",
                "HOME": str(self.directory / "home"),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SHELL_S,
            check=False,
        )
        assert done.returncode == code, f"{text}\n{done.stdout}{done.stderr}\n{self.last_lines()}"
        return done.stdout

    def last_lines(self) -> str:
        """Return the ends of the logs of all services."""
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self.directory.glob("*.log")))

    # --- services

    def _obey(self) -> None:
        while True:
            words = (self.directory / "orders").read_text(encoding="utf-8").split()
            if words == ["leave"]:
                return
            code = 0
            try:
                self._do(words)
            except (OSError, AssertionError, ValueError, subprocess.SubprocessError) as error:
                print(f"systemctl {words}: {error}", file=sys.stderr)
                code = 1
            (self.directory / "codes").write_text(f"{code}\n", encoding="utf-8")

    def _do(self, words: list[str]) -> None:
        verb, names = words[0], [word for word in words[1:] if not word.startswith("-") and word != "KILL"]
        for name in names:
            if verb == "kill":
                self._end(name, signal.SIGKILL)
            elif verb in {"stop", "restart"}:
                self._end(name, signal.SIGTERM)
            if verb in {"start", "restart"} and not self.is_active(name):
                self._begin(name)
        assert verb in {"start", "stop", "restart", "kill", "enable"}, verb

    def is_active(self, service: str) -> bool:
        """Return whether a service runs."""
        process = self._processes.get(service)
        return process is not None and process.poll() is None

    def _begin(self, service: str) -> None:
        with (self.directory / f"{service}.log").open("ab") as log:
            # A session of its own, so that signals from the terminal do not reach it.
            self._processes[service] = subprocess.Popen(
                self._command(service), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _command(self, service: str) -> list[str]:
        if service == "zookeeper":
            assert self._zookeeper is not None
            return self._zookeeper(self.path("/etc/zookeeper/conf/zoo.cfg"))
        template, _, instance = service.partition("@")
        unit = self.path(f"/etc/systemd/system/{template}@.service").read_text(encoding="utf-8")
        [command] = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
        return shlex.split(command.replace("%i", instance))

    def _end(self, service: str, with_signal: signal.Signals) -> None:
        process = self._processes.get(service)
        if process is not None and process.poll() is None:
            process.send_signal(with_signal)
            process.wait(SHELL_S)

    def close(self) -> None:
        """Stop everything."""
        (self.directory / "orders").write_text("leave\n", encoding="utf-8")
        for process in self._processes.values():
            process.kill()
            process.wait()


@contextmanager
def machines(directory: Path, zookeeper: Callable[[Path], list[str]] | None = None) -> Iterator[list[Machine]]:
    """Three machines without services."""
    found = [Machine(directory / f"machine-{number}", number, zookeeper) for number in (1, 2, 3)]
    try:
        yield found
    finally:
        for machine in found:
            machine.close()


def healthy(machine: Machine) -> None:
    """Wait until the cluster is healthy."""

    def is_so() -> bool:
        try:
            return machine.run("tandemq ha check --broker broker-a").startswith("HEALTHY: 1 group, 3 brokers")
        except AssertionError:
            return False

    wait_until(is_so, "the cluster is healthy")
