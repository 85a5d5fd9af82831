"""The brokers of a run of `chaos.kills`, and their faults.

ElectedGroup   two brokers of TandemQ that elect, behind the connections of `chaos.world`, and two gRPC proxies
Pair           a master and a slave with fixed roles, TandemQ's or Java's, and one gRPC proxy of TandemQ

kill          kill -9 of the master; started again later
kill-slave    kill -9 of the slave
kill-proxy    kill -9 of a gRPC proxy
pause         SIGSTOP of the master for longer than its session at the registry
switch        an operator switches the mastership (elected)
apart         the master reaches neither registry nor slave, and clients still reach it (elected)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Protocol, Self

from chaos.faults import Details, Drawn, Faults
from chaos.rights import rights
from chaos.stores import check
from chaos.world import World
from tandemq.coordination.registry.records import Mode
from tandemq.run.children import synced_slaves
from tandemq.run.ports import Setting
from tests.interop.grpc_proxies import OurProxy
from tests.interop.java import Value, wait_until
from tests.interop.ours import OurBroker
from tests.interop.peers import broker, name_server, start_registered

OURS, ELECT = "ours", "elect"
FIXED_KINDS = ("kill", "kill-proxy", "kill-slave", "pause")
"""Kinds of faults of a group with fixed roles."""
KINDS = ("apart", *FIXED_KINDS, "switch")
"""Kinds of faults of an elected group."""
SESSION_S = 2.0
"""Session of a broker at its registry, by default."""
_WHOLE_S = 60
"""How long a slave may take to get all bytes."""
_SHARES = (0.25, 0.5, 1.0)
"""A fault lasts one of these shares of the longest time."""
_TRANSACTIONS: dict[str, int] = {
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
    "transactionCheckMax": 10_000,
}
_STORE: dict[str, Value] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "flushDiskType": "ASYNC_FLUSH",
    "enableMixedMessageType": True,
    **_TRANSACTIONS,
}


class Group(Protocol):
    """The brokers of one run; a context manager."""

    faults: list[dict[str, Any]]
    """Faults so far: name, broker, seconds since the start, duration."""

    @property
    def address(self) -> str:
        """Address of the name server."""
        ...

    @property
    def endpoints(self) -> list[str]:
        """Addresses of the gRPC proxies."""
        ...

    @property
    def elects(self) -> bool:
        """Whether the master is elected."""
        ...

    @property
    def has_pops(self) -> bool:
        """Whether the brokers serve pops."""
        ...

    def asked(self) -> str:
        """Return the address of a broker whose committed offsets are watched; "" for none."""
        ...

    def inject(self, kinds: Sequence[str], random: Random, seconds: float, down_s: float, gap_s: float) -> None:
        """Inject one fault after the other, all undone at the end.

        Args:
            kinds: what is drawn from.
            random: draws.
            seconds: how long faults begin.
            down_s: longest duration of a fault; a pause lasts longer than a session.
            gap_s: time before each fault.
        """
        ...

    def end(self) -> list[str]:
        """Stop the brokers when all clients have ended; return the violations of brokers and stores."""
        ...

    def __enter__(self) -> Self:
        """Start everything."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        ...


class _Drawn(Faults):
    """Faults of an elected group, of the kinds that were chosen."""

    def begin(self, kind: str, down_s: float, gap_s: float) -> None:
        """Wait, and inject a fault."""
        time.sleep(gap_s)
        self._revive()
        world, lasts = self._world, down_s * self._random.choice(_SHARES)
        master = world.master or world.brokers[0]
        slave = next(one for one in world.brokers if one is not master)
        inject: Callable[[float, Random], Details]
        struck, inject = str(master.broker_id), partial(self._kill, master)
        if kind == "kill-slave":
            struck, inject = str(slave.broker_id), partial(self._kill, slave)
        elif kind == "kill-proxy":
            proxy = self._random.choice(world.proxies)
            struck, inject = proxy.name, partial(self._kill, proxy)
        elif kind == "pause":
            lasts, inject = lasts + SESSION_S, partial(self._pause, master)
        elif kind == "switch":
            struck, lasts, inject = str(slave.broker_id), 0.0, partial(self._switch, slave)
        elif kind == "apart":
            lasts, inject = lasts + SESSION_S, partial(self._apart, master)
        self._inject(Drawn(kind, struck, inject), lasts, Random(self._random.getrandbits(64)))

    def end(self) -> None:
        """Start what ended by itself."""
        self._revive()


class ElectedGroup:
    """Two brokers of TandemQ that elect their master."""

    elects = has_pops = True

    def __init__(self, directory: Path, settings: dict[str, Setting] | None = None) -> None:
        """`settings`: of the brokers, beside those of all groups."""
        own: dict[str, Setting] = {"flushDiskType": "ASYNC_FLUSH", "enableMixedMessageType": "true"}
        self._world = World(directory, mode=Mode.ELECT, members=2, settings=own | _TRANSACTIONS | (settings or {}))
        self._violations: list[str] = []
        self.faults: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        """Address of the name server."""
        return self._world.name_server.address

    @property
    def endpoints(self) -> list[str]:
        """Addresses of the gRPC proxies."""
        return [proxy.client_address for proxy in self._world.proxies]

    def asked(self) -> str:
        """Return "": any member may be the master, and commits are not observed at one of them."""
        return ""

    def inject(self, kinds: Sequence[str], random: Random, seconds: float, down_s: float, gap_s: float) -> None:
        """See `Group`."""
        faults = _Drawn(self._world, random)
        for kind in turns(kinds, random, seconds):
            faults.begin(kind, down_s, gap_s)
        faults.end()
        self.faults += faults.done
        self._violations += faults.violations
        self._violations += self._world.wait_whole()

    def end(self) -> list[str]:
        """See `Group`."""
        world = self._world
        self._violations += world.wait_whole()
        self._violations += world.stop_all()
        self._violations += rights(world.brokers)
        if not any(text.startswith("I14") for text in self._violations):
            self._violations += check([one.judged_store for one in world.brokers])[0]
        return self._violations

    def __enter__(self) -> Self:
        """Start everything."""
        self._world.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self._world.__exit__(kind, error, trace)


class Pair:
    """A master and a slave with fixed roles."""

    elects = False

    def __init__(self, kind: str, role: str, directory: Path) -> None:
        """`kind`: "ours" or a version of RocketMQ. `role`: of the master, SYNC_MASTER or ASYNC_MASTER."""
        self._server = name_server(kind, directory / "namesrv")
        settings = {**_STORE, "slaveReadEnable": True}
        if kind == OURS:
            settings["haClassicPeers"] = "127.0.0.1"
        self._master = broker(kind, directory / "master", self._server, settings=settings, brokerRole=role)
        of_slave: dict[str, Value] = {
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haMasterAddress": f"127.0.0.1:{self._master.ha_port}",
        }
        self._slave = broker(kind, directory / "slave", self._server, settings={**settings, **of_slave})
        self._proxy = OurProxy(directory / "proxy", self._server.address)
        self._stack = ExitStack()
        self.has_pops = not self._master.version.startswith("4.")
        self.faults: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        """Address of the name server."""
        return self._server.address

    @property
    def endpoints(self) -> list[str]:
        """Address of the gRPC proxy."""
        return [self._proxy.address]

    def asked(self) -> str:
        """Return the address of the master; "" while it does not run."""
        return self._master.address if self._master.is_running else ""

    def inject(self, kinds: Sequence[str], random: Random, seconds: float, down_s: float, gap_s: float) -> None:
        """See `Group`."""
        begun = time.monotonic()
        for kind in turns(kinds, random, seconds):
            time.sleep(gap_s)
            lasts, at = down_s * random.choice(_SHARES), time.monotonic() - begun
            if kind == "pause":
                lasts += SESSION_S
            self._by_kind(kind)(lasts)
            place = {"kill-slave": self._slave.name, "kill-proxy": self._proxy.name}.get(kind, self._master.name)
            self.faults.append({"fault": kind, "broker": place, "at": round(at, 2), "seconds": lasts})

    def _by_kind(self, kind: str) -> Callable[[float], None]:
        return {
            "kill": self._kill_master,
            "kill-slave": self._kill_slave,
            "kill-proxy": self._kill_proxy,
            "pause": self._pause,
        }[kind]

    def _kill_master(self, seconds: float) -> None:
        self._master.kill()
        time.sleep(seconds)
        start_registered(self._master, self._server)

    def _kill_slave(self, seconds: float) -> None:
        self._slave.kill()
        time.sleep(seconds)
        start_registered(self._slave, self._server)

    def _kill_proxy(self, seconds: float) -> None:
        self._proxy.kill()
        time.sleep(seconds)
        self._proxy.start()

    def _pause(self, seconds: float) -> None:
        self._master.sigstop()
        time.sleep(seconds)
        self._master.sigcont()

    def end(self) -> list[str]:
        """See `Group`; stores of Java's brokers are not verified."""
        if not isinstance(self._master, OurBroker) or not isinstance(self._slave, OurBroker):
            return []
        try:
            wait_until(
                lambda: synced_slaves(self._master.address) == 1, what="the slave has all bytes", within_s=_WHOLE_S
            )
        except TimeoutError:
            return [f"I14: {self._slave.name} does not have all bytes {_WHOLE_S} s after the clients ended"]
        members = self._master, self._slave
        found = [f"I16: {one.name} did not stop cleanly" for one in members if one.stop()]
        return found + check([one.store for one in members])[0]

    def __enter__(self) -> Self:
        """Start everything."""
        self._stack.enter_context(self._server)
        self._server.start()
        for one in (self._master, self._slave):
            self._stack.callback(one.kill)
            start_registered(one, self._server)
        self._stack.callback(self._proxy.kill)
        self._proxy.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self._stack.close()


def group_of(brokers: str, role: str, directory: Path) -> Group:
    """Return the brokers of a run, not started. `brokers`: "ours" or a version. `role`: of the master, or "elect"."""
    return ElectedGroup(directory) if role == ELECT else Pair(brokers, role, directory)


def kinds_of(role: str) -> tuple[str, ...]:
    """Return the kinds of faults that a group of this role can have."""
    return KINDS if role == ELECT else FIXED_KINDS


def turns(kinds: Sequence[str], random: Random, seconds: float) -> Iterator[str]:
    """Return kinds of faults until the time is over: each kind once, in an order of their own, then again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        order = list(kinds)
        random.shuffle(order)
        for kind in order:
            if time.monotonic() >= until:
                return
            yield kind
