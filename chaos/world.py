"""A group of real brokers behind proxies, with the actions of faults and operators.

broker n    see `chaos.brokers`; it reaches the registry through a proxy of its own
machines    in runs with shards, members are `chaos.machines`, and broker-a-1 is at ports 10 above
neighbour   a broker of another group, with a fixed role, in runs with a static topic; addresses as broker `members`
proxies     two proxies for gRPC clients, see `chaos.processes`
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos.administrator import Administrator
from chaos.brokers import GROUP, START_SECONDS, Broker
from chaos.machines import SHARDS, Machine
from chaos.processes import FaultyChild, GrpcProxy
from chaos.proxy import Proxies, Proxy, ProxyLoop
from chaos.registries import RegistryServers
from tandemq.client.connection import try_request
from tandemq.codec.remoting.fastjson import loads
from tandemq.config.samples import ON_ANY_DISK
from tandemq.config.shards import shard_name
from tandemq.coordination.registry.records import Mode
from tandemq.errors import LocalError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.children import Child, synced_slaves
from tandemq.run.groups import configure
from tandemq.run.ports import LOOPBACK, ReservedPorts, Setting
from tandemq.run.secret import SECRET_FILE_NAME, make_secret_file

NEIGHBOUR = "broker-b"
GRPC_PROXIES = 2
_LOG_FILE_BYTES = 512 << 10
"""Size of a file of a member's log, of which a run has several."""
_LOOK_SECONDS = 0.05


class World:
    """Name server, registry and members; a context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        mode: Mode,
        members: int,
        registry: str = "",
        servers: RegistryServers | None = None,
        settings: Mapping[str, Setting] | None = None,
        neighbour: Mapping[str, Setting] | None = None,
        shard: int | None = None,
    ) -> None:
        """`registry`: "zookeeper://host:port" or the like; empty: the name server hosts it. `servers`: its servers;
        None: the name server. `neighbour`: more settings of a broker of another group; None: there is none. `shard`:
        members are machines with two shards, of which the clients use this one; None: they are brokers."""
        self.directory = directory
        self.mode = mode
        self.members = members
        self.shard = shard
        self.group = GROUP if shard is None else shard_name(GROUP, shard)
        """The group that the clients use."""
        self.other_group = "" if shard is None else shard_name(GROUP, SHARDS - 1 - shard)
        """The group of the other shard; "" without shards."""
        self.may_lag = False
        """Whether a running member may lack commits that the active one has received."""
        self._registry = registry
        self._settings = dict(settings or {})
        self._stack = ExitStack()
        self.brokers: list[Broker] = []
        self.proxies: list[GrpcProxy] = []
        self.neighbour: Broker | None = None
        self._neighbour_settings = neighbour
        self.administrator: Administrator
        """Changes the group's configuration; set on entering the context."""
        self._name_server_port = 0
        self.name_server = Child("namesrv", directory, self._name_server_words)
        self.registry = servers or RegistryServers.of_name_server(self.name_server, directory / "namesrv")
        """Servers of the registry, which have faults too."""

    def _name_server_words(self) -> list[str]:
        data, secret = f"kvConfigPath={self.directory / 'namesrv'}", f"haSecretFile={self.secret}"
        return [
            "namesrv",
            "--port",
            str(self._name_server_port),
            "--set",
            f"bindAddress={LOOPBACK}",
            "--set",
            data,
            "--set",
            secret,
            "--set",
            "registryEnable=true",
        ]

    def __enter__(self) -> Self:
        """Start everything; return when the group is active and all members are in sync."""
        ports = self._stack.enter_context(closing(ReservedPorts()))
        self._name_server_port = ports.reserve()
        self.name_server.start()
        self._stack.callback(self.name_server.stop)
        where = ProxyLoop()
        self._stack.callback(where.stop)
        registry = self.registry_address
        configure(registry, self._groups(), self.mode, self.members, secret_file=self.secret)
        self.administrator = Administrator(self.directory, registry, self.group, self.mode, self.members, self.secret)
        self._stack.callback(self.administrator.close)
        kind, _, hosts = registry.partition("://")
        for number in range(self.members):
            link = Proxies(where, hosts)
            settings = {
                "namesrvAddr": self.name_server.address,
                "registryAddr": f"{kind}://{link.address}",
                "haSecretFile": str(self.secret),
                **ON_ANY_DISK,
                "mappedFileSizeCommitLog": _LOG_FILE_BYTES,
                "registerNameServerPeriod": 10_000,
                **self._settings,
            }
            self.brokers.append(self.make_broker(number, link, where, settings))
            self._stack.callback(self.brokers[-1].stop)
            self.brokers[-1].start()
        if self._neighbour_settings is not None:
            self._start_neighbour(where, self._neighbour_settings)
        for number in range(GRPC_PROXIES):
            routes = Proxy(where, (LOOPBACK, 0), (LOOPBACK, self._name_server_port))
            self.proxies.append(self.make_proxy(number, ports.reserve(), routes, where))
            self._stack.callback(self.proxies[-1].stop)
            self.proxies[-1].start()
        self.wait(self.is_whole)
        return self

    def make_broker(self, number: int, link: Proxies, where: ProxyLoop, settings: dict[str, Setting]) -> Broker:
        """Return a member, not started. `link`: its way to the registry."""
        if self.shard is None:
            return Broker(number, self.directory, link, where, settings)
        return Machine(number, self.directory, link, where, settings, shard=self.shard)

    def make_proxy(self, number: int, port: int, routes: Proxy, where: ProxyLoop) -> GrpcProxy:
        """Return a proxy for gRPC clients, not started. `routes`: its way to the name server."""
        return GrpcProxy(number, self.directory, port, routes, self.secret, where)

    def _groups(self) -> list[str]:
        return [GROUP] if self.shard is None else [shard_name(GROUP, number) for number in range(SHARDS)]

    def _start_neighbour(self, where: ProxyLoop, more: Mapping[str, Setting]) -> None:
        settings = {
            "namesrvAddr": self.name_server.address,
            **ON_ANY_DISK,
            "mappedFileSizeCommitLog": 4 << 20,
            "registerNameServerPeriod": 10_000,
            **self._settings,
            **more,
        }
        self.neighbour = Broker(self.members, self.directory, None, where, settings, group=NEIGHBOUR)
        self._stack.callback(self.neighbour.stop)
        self.neighbour.start()

    @property
    def all_brokers(self) -> list[Broker]:
        """Return the members of the group, and the neighbour."""
        return self.brokers if self.neighbour is None else [*self.brokers, self.neighbour]

    @property
    def children(self) -> list[FaultyChild]:
        """Return the processes that have faults."""
        return [*self.all_brokers, *self.proxies]

    @property
    def deaths(self) -> int:
        """Return how often brokers have been seen dead."""
        return sum(len(broker.deaths) for broker in self.all_brokers)

    @property
    def registry_address(self) -> str:
        """Return the registry's address, past all proxies."""
        return self._registry or f"namesrv://{self.name_server.address}"

    @property
    def secret(self) -> Path:
        """Return the secret of members and tools."""
        path = self.directory / SECRET_FILE_NAME
        make_secret_file(path)
        return path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self._stack.close()

    @property
    def master(self) -> Broker | None:
        """Return the member that may be written now; of a static group the one that its settings name."""
        if self.mode is Mode.STATIC:
            return self.brokers[0] if self.brokers and self.brokers[0].is_running else None
        return next((broker for broker in self.brokers if broker.failover_status().get("mayWrite")), None)

    @property
    def readable(self) -> list[Broker]:
        """Return the members whose offsets are watched; those of a static group go back with a killed process."""
        return [] if self.mode is Mode.STATIC else self.brokers

    def is_whole(self) -> bool:
        """Return whether all brokers run, one member is active, and all others have its bytes and are in sync."""
        master = self.master
        if master is None or not self.is_in_sync():
            return False
        return synced_slaves(master.own_address) == self.members - 1 and self._is_other_shard_whole()

    def is_in_sync(self) -> bool:
        """Return whether all brokers run, one member is active, and all others are in sync."""
        master = self.master
        if master is None or not all(broker.is_running for broker in self.all_brokers):
            return False
        return self.mode is Mode.STATIC or len(master.failover_status().get("inSync", ())) == self.members

    def _is_other_shard_whole(self) -> bool:
        """Return the same of the shard that the clients do not use; True without shards."""
        if self.shard is None:
            return True
        addresses = [
            machine.shard_address(SHARDS - 1 - self.shard) for machine in self.brokers if isinstance(machine, Machine)
        ]
        if self.mode is Mode.STATIC:
            return synced_slaves(addresses[0]) == self.members - 1
        statuses = [_status(address) for address in addresses]
        return any(
            status.get("mayWrite")
            and len(status.get("inSync", ())) == self.members
            and synced_slaves(address) == self.members - 1
            for address, status in zip(addresses, statuses, strict=True)
        )

    def stop_all(self) -> list[str]:
        """Stop proxies and brokers cleanly at once; return the violations of all process ends."""
        for child in self.children:
            child.signal_stop()
        unclean = [f"I16: {child.name} did not stop cleanly" for child in self.children if not child.stop()]
        return [text for child in self.children for text in child.ended] + unclean + self.registry.ended()

    def wait_whole(self) -> list[str]:
        """Wait until the group is whole; return violations of I14."""
        try:
            self.wait(self.is_whole)
        except TandemError as error:
            reasons = {broker.broker_id: broker.failover_status().get("why", "no answer") for broker in self.brokers}
            return [f"I14: it does not serve again: {error}; {reasons}"]
        return []

    def wait(self, condition: Any, seconds: float = START_SECONDS) -> None:
        """Wait for a state.

        Raises:
            LocalError: it was not reached in time.
        """
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise LocalError(f"the group did not get there within {seconds:g} s", hint=f"logs: {self.directory}")
            time.sleep(_LOOK_SECONDS)


def _status(address: str) -> dict[str, Any]:
    answer = try_request(address, Command(RequestCode.TANDEM_FAILOVER_STATUS))
    return loads(answer.body) if answer is not None and answer.code == ResponseCode.SUCCESS else {}
