"""The group of `chaos.world`, each of whose processes runs the last release or this tree, and changes between them.

    World ─┬─ name server, which hosts the registry if no other is given
           ├─ Member 0, 1, …     brokers; in `static` without a registry
           └─ VersionedProxy     two proxies for gRPC clients

A process changes its version as docs/guides/upgrade.md says: stopped cleanly, started by the other program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chaos.brokers import Broker
from chaos.clients import Clients
from chaos.grpc_connection import CALLS_PER_PROXY
from chaos.processes import GrpcProxy
from chaos.proxy import Proxies, Proxy, ProxyLoop
from chaos.world import World
from tandemq.client.connection import try_request
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import Mode
from tandemq.errors import LocalError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.children import Child
from tandemq.run.ports import Setting
from tests.blackbox.programs import wait_until

PROGRESS_S = 120.0
MORE = 20
"""Messages, of each kind of client, that show that it goes on."""
_TOO_FEW = "RemoteError: the half message is stored with "


class Version(NamedTuple):
    """A program that servers run: an interpreter, and its arguments before those of `tandemq`."""

    name: str
    interpreter: str
    program: tuple[str, ...]

    def install(self, child: Child) -> None:
        """Have a process run this program from its next start on."""
        child.interpreter = self.interpreter
        child.program = self.program

    def command(self, *words: str | Path) -> list[str]:
        """Return a command line of `tandemq`."""
        return [self.interpreter, *self.program, *map(str, words)]


TREE = Version("this tree", sys.executable, ("-m", "tandemq"))


def released(python: str) -> Version:
    """Return the last release, which an interpreter has: the tree, which variables name, is kept out of it."""
    return Version("the last release", python, ("-I", "-m", "tandemq"))


class Member(Broker):
    """A broker of either version; it has no failing device."""

    def __init__(
        self, number: int, directory: Path, registry: Proxies | None, where: ProxyLoop, settings: Mapping[str, Setting]
    ) -> None:
        """See `Broker`."""
        super().__init__(number, directory, registry, where, settings)
        self.program = ("-m", "tandemq")


class VersionedWorld(World):
    """A name server, members of a group and two proxies; all start with one version."""

    def __init__(
        self,
        directory: Path,
        *,
        mode: Mode,
        first: Version,
        settings: Mapping[str, Setting],
        members: int = 2,
        registry: str = "",
    ) -> None:
        """`first`: version at the start; others as of `World`. `settings`: of all members; brokerRole is the
        master's."""
        own = dict(settings)
        self._master_role = own.pop("brokerRole", "SYNC_MASTER")
        super().__init__(directory, mode=mode, members=members, registry=registry, settings=own)
        self._first = first
        first.install(self.name_server)

    def make_broker(self, number: int, link: Proxies, where: ProxyLoop, settings: dict[str, Setting]) -> Broker:
        """Return a member; that of a static group has roles by its settings alone."""
        role = "SLAVE" if number else self._master_role
        if self.mode is Mode.STATIC:
            del settings["registryAddr"]
        made = Member(number, self.directory, link, where, {**settings, "brokerRole": role})
        self._first.install(made)
        return made

    def make_proxy(self, number: int, port: int, routes: Proxy, where: ProxyLoop) -> GrpcProxy:
        """Return a proxy of the first version."""
        made = super().make_proxy(number, port, routes, where)
        self._first.install(made)
        return made

    def change(self, child: Child, version: Version) -> None:
        """Restart a process with a version, cleanly, and wait until the group is whole.

        Raises:
            LocalError: it did not stop cleanly, or the group is not whole again in time.
        """
        if not child.stop():
            raise LocalError(f"{child.name} did not stop cleanly", hint=f"its log is {child.log_path}")
        version.install(child)
        self.restart(child)

    def restart(self, child: Child) -> None:
        """Start a process that has ended, and wait until the group is whole and its name server has all members."""
        child.start()
        self.wait(self.is_whole)
        self.wait(self._are_registered)

    def _are_registered(self) -> bool:
        answer = try_request(self.name_server.address, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        table = loads(answer.body).get("brokerAddrTable", {}) if answer is not None and answer.code == 0 else {}
        return len(table.get(self.group, {}).get("brokerAddrs", {})) == self.members


class Load:
    """The clients of `chaos.clients` under way: what they have got done, and which sends have failed."""

    def __init__(self, world: VersionedWorld, clients: Clients) -> None:
        self._world = world
        self._clients = clients

    @property
    def failed(self) -> dict[str, int]:
        """Errors of sends that clients were given, each with its number; attempts that were repeated are none.

        Nor are half messages that too few members have: they are stored, and the client rolls them back. A group of two
        has no others while one member is away.
        """
        left_out = ("gRPC:",) if self._world.members > 2 else ("gRPC:", _TOO_FEW)
        errors = self._clients.history.errors
        found = {error: count for error, count in errors.items() if not error.startswith(left_out)}
        refused = self._clients.grpc.report()["failed"]
        return {**found, "gRPC": refused} if refused else found

    def wait_for_routes(self) -> None:
        """Wait until clients have used each proxy, so that each has the route while the name server is away."""
        self._wait({"sent by gRPC": self._done()["sent by gRPC"] + CALLS_PER_PROXY * len(self._world.proxies)})

    def wait_for_more(self) -> None:
        """Wait until each kind of client has got more done."""
        self._wait({name: done + MORE for name, done in self._done().items()})

    def _wait(self, wanted: Mapping[str, int]) -> None:
        def is_done() -> bool:
            return all(done >= wanted.get(name, 0) for name, done in self._done().items())

        what = f"clients go on, from {self._done()} to {wanted}; logs: {self._world.directory}"
        wait_until(is_done, what, seconds=PROGRESS_S)

    def _done(self) -> dict[str, int]:
        clients = self._clients
        history = clients.history
        grpc: dict[str, Any] = clients.grpc.report()
        return {
            "sent": len(history.acknowledged),
            "received": len(history.delivered),
            "filtered": len(clients.filtered.bodies),
            "popped": len(clients.popped.bodies),
            "transactions": clients.transacting.transactions.confirmed,
            "sent by gRPC": grpc["sent"],
            "popped by gRPC": grpc["acknowledged"],
        }
