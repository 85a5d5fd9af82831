"""Processes of a run that faults kill, stop and pause, and the proxies for gRPC clients among them.

proxy n    `tandemq proxy` on 127.0.0.1; clients reach it, and it reaches the name server, through proxies of
           `chaos.proxy`, brokers through those of the brokers
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaos.proxy import Behaviour, Proxy, ProxyLoop
from chaos.resources import Growth, Usage, usage
from tandemq.errors import TandemError
from tandemq.run.children import Child
from tandemq.run.ports import LOOPBACK

_LOOK_SECONDS = 0.005
_TRACEBACK = "Traceback (most recent call last)"


class FaultyChild(Child):
    """A child process that is killed, paused, stopped, and cut off."""

    links: tuple[str, ...] = ()
    """Kinds of its connections that can be disturbed."""

    def __init__(self, name: str, directory: Path, arguments: Callable[[], list[str]]) -> None:
        """See `Child`."""
        super().__init__(name, directory, arguments)
        self.deaths: list[int] = []
        """Times at which it was seen dead, ms of the monotonic clock."""
        self.ended: list[str] = []
        """Violations of I16: the output of a process that ended by itself, or did not stop cleanly."""
        self.early: Usage | None = None
        """Resource usage when it began to listen."""

    def wait_ready(self) -> None:
        """Start and wait until it listens."""
        super().wait_ready()
        self.early = usage(self.pid)

    def behave(self, what: str, behaviour: Behaviour) -> None:
        """Set the behaviour of one kind of its connections."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill it (SIGKILL), and note the time."""
        super().kill()
        self.deaths.append(mono_ms())

    def revive(self) -> None:
        """Start it again if it ended by itself, as a service manager would, and note that."""
        if not self.is_running:
            silent_s = time.time() - self.log_path.stat().st_mtime  # it printed why it ended
            self.deaths.append(mono_ms() - int(silent_s * 1000))
            self.ended.append(f"I16: {self.name} ended by itself: {''.join(self.last_lines(1))}")
            self.start()

    def start_if_it_can(self) -> bool:
        """Start it; return False if it refuses. A traceback is no refusal, but a violation."""
        before = self.log_path.stat().st_size
        try:
            self.start()
        except TandemError:
            self._died()
            text = self.log_path.read_bytes()[before:].decode(errors="replace")
            if _TRACEBACK in text:
                self.ended.append(f"I16: {self.name} crashed at its start: {text.strip().splitlines()[-1]}")
            return False
        return True

    def watch(self, seconds: float) -> None:
        """Let time pass; note when it ends, as it may for lack of memory."""
        until, was_running = time.monotonic() + seconds, self.is_running
        while time.monotonic() < until:
            if was_running and not self.is_running:
                was_running = False
                self.deaths.append(mono_ms())
            time.sleep(_LOOK_SECONDS)

    def restart_if_ended(self) -> bool:
        """Start it again if it ended, as it may; return whether it had."""
        if self.is_running:
            return False
        self.deaths.append(mono_ms())
        self.start()
        return True

    def stop(self) -> bool:
        """Stop it cleanly, and note the time."""
        was_there = self.is_running
        is_clean = super().stop()
        if was_there:
            self._died()
        return is_clean

    def _died(self) -> None:
        """Note that it is seen dead now."""
        self.deaths.append(mono_ms())

    def pause(self, seconds: float) -> None:
        """Pause it with SIGSTOP and SIGCONT."""
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)

    def growth(self) -> Growth | None:
        """Return its resource usage early and now; None if it does not run."""
        now = usage(self.pid)
        return Growth(self.name, self.early, now) if self.early is not None and now is not None else None


class GrpcProxy(FaultyChild):
    """A proxy for gRPC clients."""

    links = ("clients", "routes")

    def __init__(
        self, number: int, directory: Path, port: int, name_server: Proxy, secret_file: Path, where: ProxyLoop
    ) -> None:
        """`name_server`: by which it reaches the name server."""
        self._port = port
        self._secret_file = secret_file
        self._links = {"routes": name_server, "clients": Proxy(where, (LOOPBACK, 0), (LOOPBACK, port))}
        super().__init__(f"proxy-{number}", directory, self._words)

    def _words(self) -> list[str]:
        settings = ("--set", f"bindAddress={LOOPBACK}", "--set", f"haSecretFile={self._secret_file}")
        return ["proxy", "--namesrv", self._links["routes"].address, "--port", str(self._port), *settings]

    def behave(self, what: str, behaviour: Behaviour) -> None:
        """Set the behaviour of its connections from clients, or to the name server."""
        self._links[what].behave(behaviour)

    @property
    def client_address(self) -> str:
        """Return the address at which clients reach it."""
        return self._links["clients"].address

    def restart(self, seconds: float) -> None:
        """Stop it cleanly, and start it again later."""
        if not self.stop():
            self.ended.append(f"I16: {self.name} did not stop cleanly")
        time.sleep(seconds)
        self.start()


def mono_ms() -> int:
    """Return the clock that brokers log permissions by; all processes of this machine share it."""
    return time.monotonic_ns() // 1_000_000
