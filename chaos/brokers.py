"""A member of a group behind its proxies; its device can fail, see `chaos.broken`.

broker n listens at 127.x.y.1+n; clients and members reach it at 127.x.y.11+n, slaves at 127.x.y.21+n. x and y belong to
this process, so that no other takes a port while its broker is down. Linux only: all of 127.0.0.0/8 are addresses of
this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.processes import FaultyChild
from chaos.proxy import Behaviour, Proxies, Proxy, ProxyLoop
from tandemq.client.connection import try_request
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.children import BrokerChild
from tandemq.run.ports import Setting

GROUP = "broker-a"
PROGRAM: tuple[str, ...] = ("-m", "chaos.broken")
"""Python's arguments for a broker, before the directory of its faults."""
START_SECONDS = 60.0
ENDS_SECONDS = 10.0
"""Maximum time that a process without memory takes to end."""
_LOOK_SECONDS = 0.05
_PORT, _HA_PORT = 10911, 10912
_NETWORK = f"127.{16 + os.getpid() // 250 % 200}.{1 + os.getpid() % 250}"
_OWN, _FOR_CLIENTS, _FOR_SLAVES = 1, 11, 21


class Broker(BrokerChild, FaultyChild):
    """A member behind its proxies."""

    links = ("clients", "slaves", "registry")

    def __init__(
        self,
        number: int,
        directory: Path,
        registry: Proxies | None,
        where: ProxyLoop,
        settings: Mapping[str, Setting],
        *,
        group: str = GROUP,
    ) -> None:
        """`number`: makes its addresses; it is the broker id in the group that fails over, 0 in another one."""
        self.registry_link = registry
        self.faults = directory / f"faults-{number}"
        self.faults.mkdir()
        self.program = (*PROGRAM, str(self.faults))
        self._where = where
        self._links: dict[str, Proxy] = {}
        self._host = f"{_NETWORK}.{_OWN + number}"
        own: dict[str, Setting] = {
            "bindAddress": self._host,
            "listenPort": _PORT,
            "haListenPort": _HA_PORT,
            "brokerIP1": f"{_NETWORK}.{_FOR_CLIENTS + number}",
            "brokerIP2": f"{_NETWORK}.{_FOR_SLAVES + number}",
        }
        broker_id = number if group == GROUP else 0
        super().__init__(group, broker_id, directory, {"brokerRole": _role(broker_id), **settings, **own})

    def wait_ready(self) -> None:
        """Start and wait until it listens; then its proxies listen too."""
        super().wait_ready()
        self.make_links()

    def make_links(self) -> None:
        """Have its proxies listen."""
        for what, key in (("clients", "address"), ("slaves", "haAddress")):
            if what not in self._links:
                host, _, port = str(self.startup[key]).rpartition(":")
                self._links[what] = self.link_to((host, int(port)))

    def link_to(self, advertised: tuple[str, int]) -> Proxy:
        """Return a proxy at an address that it advertises, in front of its own one."""
        return Proxy(self._where, advertised, (self._host, advertised[1]))

    def behave(self, what: str, behaviour: Behaviour) -> None:
        """Set the behaviour of its connections from clients, from slaves, or to the registry."""
        link = self.registry_link if what == "registry" else self._links.get(what)
        if link is not None:
            link.behave(behaviour)

    @property
    def own_address(self) -> str:
        """Return its own address, past its proxy."""
        return f"{self._host}:{_PORT}"

    @property
    def judged_store(self) -> Path:
        """The store that the clients' messages are in."""
        return self.store

    def standing(self) -> dict[str, Any]:
        """Return its status, past its proxy."""
        answer = try_request(self.own_address, Command(RequestCode.TANDEM_FAILOVER_STATUS)) if self.is_running else None
        return loads(answer.body) if answer is not None and answer.code == ResponseCode.SUCCESS else {}

    def restart_if_ended(self) -> bool:
        """Start it again if it ended, or is about to, as it may; return whether it had."""
        until = time.monotonic() + ENDS_SECONDS
        while self.is_running and not self.standing() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        return super().restart_if_ended()

    def pause(self, seconds: float) -> None:
        """Pause it; on return the broker has checked its lease again and logged that."""
        super().pause(seconds)
        self.failover_status()

    def fails(self, kind: str, *, on: bool) -> None:
        """Let its device start or stop failing: see `chaos.broken`."""
        (self.faults / kind).touch() if on else (self.faults / kind).unlink(missing_ok=True)

    def set_clock(self, ahead_seconds: int) -> None:
        """Set its calendar clock ahead, or back."""
        file = self.faults / "clock.new"
        file.write_text(str(ahead_seconds), encoding="ascii")
        file.replace(self.faults / "clock")

    @property
    def serving_pid(self) -> int:
        """Process that serves the clients."""
        return self.pid


def _role(number: int) -> str:
    return "SLAVE" if number else "SYNC_MASTER"
