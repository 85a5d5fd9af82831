"""Faults of a group: drawn from a seed, injected one after the other, all undone at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from chaos.brokers import Broker
from chaos.damaged_files import copies, damage
from chaos.machines import SHARDS, Machine
from chaos.processes import FaultyChild, GrpcProxy
from chaos.proxy import Behaviour
from chaos.scarce import few_files, little_memory, starved, thread_stopped
from chaos.world import World
from tandemq.client.connection import try_request
from tandemq.coordination.registry.records import BrokerPermission, Mode
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tests.interop.ensembles import Ensemble

OBEYS_SECONDS = 20.0
"""Time limit for a configuration change to take effect."""
_BEHAVIOURS: tuple[Behaviour, ...] = ("cut", "stall", "hole")
KINDS = (
    "apart",
    "clock",
    "configure",
    "cpu",
    "eio",
    "emfile",
    "enospc",
    "eread",
    "files",
    "kill",
    "memory",
    "network",
    "pause",
    "switch",
    "thread",
)
"""Kinds of faults of brokers; not every run has all."""
PROXIES = 0.25
"""Share of the faults of the proxies for gRPC clients."""
NEIGHBOUR = 0.3
"""Share of the other faults of the broker beside the group, in runs with one."""
NEIGHBOUR_KINDS = ("eio", "enospc", "eread", "kill", "kill", "pause")


class Faults:
    """The faults of one run."""

    def __init__(self, world: World, random: Random, only: Sequence[str] = ()) -> None:
        """`only`: kinds of faults of brokers to draw from; empty: all."""
        self._world = world
        self._random = random
        self.done: list[dict[str, Any]] = []
        """Faults so far: name, broker, seconds since the start, duration."""
        self.violations: list[str] = []
        self._more: dict[str, Any] = {}
        """Further details of the current fault for the report."""
        self._begun = time.monotonic()
        self._kinds: dict[str, Callable[[Broker, float], None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "network": self._network,
            "apart": self._apart,
            "eio": self._eio,
            "enospc": self._enospc,
            "eread": self._eread,
            "clock": self._clock,
            "cpu": self._cpu,
            "emfile": self._emfile,
            "files": self._files,
            "memory": self._memory,
            "thread": self._thread,
            "configure": self._configure,
            "switch": self._switch,
        }
        self._of_proxies: dict[str, Callable[[GrpcProxy, float], None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "network": self._network,
            "restart": self._restart,
        }
        if world.ensemble is not None:
            self._kinds["kill-registry"] = partial(self._kill_registry, world.ensemble)
        of_shards: dict[str, Callable[[Broker, float], None]] = {}
        if world.shard is not None:
            of_shards = {"kill-shard": self._kill_shard, "kill-supervisor": self._kill_supervisor}
        self._kinds |= of_shards
        if world.shard is not None:  # a supervisor starts a shard again by itself
            del self._kinds["memory"]
        if world.mode is Mode.STATIC:  # an operator edits settings there
            del self._kinds["configure"], self._kinds["switch"]
        of_registry = ["kill-registry"] if world.ensemble is not None else []
        self._names = sorted(self._kinds) + 2 * (sorted(of_shards) + of_registry)
        """What is drawn from: faults of shards and of the registry count three times."""
        self._only = [name for name in self._names if name in only]

    def run(self, seconds: float) -> None:
        """Inject one fault after the other for this long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._revive()
            kind, place, inject = self._draw()
            lasts = self._random.choice((0.3, 1.0, 2.0, 4.0))
            at = time.monotonic() - self._begun
            inject(lasts)
            entry = {"fault": kind, "broker": place, "at": round(at, 2), "seconds": lasts}
            self.done.append(entry | self._more)
            self._more = {}
            time.sleep(self._random.choice((0.0, 0.5, 2.0, 5.0)))
        self._revive()

    def _draw(self) -> tuple[str, int | str, Callable[[float], None]]:
        """Draw a kind and a process; return both, and what injects the fault."""
        if not self._only and self._random.random() < PROXIES:
            kind, proxy = self._random.choice(sorted(self._of_proxies)), self._random.choice(self._world.proxies)
            return kind, proxy.name, partial(self._of_proxies[kind], proxy)
        neighbour = self._world.neighbour
        if not self._only and neighbour is not None and self._random.random() < NEIGHBOUR:
            kind = self._random.choice(NEIGHBOUR_KINDS)
            return kind, neighbour.name, partial(self._kinds[kind], neighbour)
        kind = self._random.choice(self._only or self._names)
        broker = self._random.choice(self._world.brokers)
        if self._random.random() < 0.6:  # faults of the active member matter most
            broker = self._world.master or broker
        self._world.may_lag |= kind not in ("kill", "kill-shard", "kill-supervisor")
        return kind, broker.broker_id, partial(self._kinds[kind], broker)

    def _revive(self) -> None:
        for child in self._world.children:
            child.revive()

    def _kill(self, child: FaultyChild, seconds: float) -> None:
        child.kill()
        time.sleep(seconds)
        child.start()

    def _kill_shard(self, machine: Broker, _seconds: float) -> None:
        assert isinstance(machine, Machine), "in runs with shards"
        shard = self._random.randrange(SHARDS)
        self._more = {"shard": shard}
        machine.kill_shard(shard)

    def _kill_supervisor(self, machine: Broker, seconds: float) -> None:
        assert isinstance(machine, Machine), "in runs with shards"
        machine.kill_supervisor()
        time.sleep(seconds)
        machine.start()

    def _kill_registry(self, ensemble: Ensemble, broker: Broker, seconds: float) -> None:
        """Kill a server of the registry, in half the cases together with a broker."""
        server = self._random.choice(ensemble.servers)
        with_broker = self._random.random() < 0.5
        self._more = {"server": server.name, "with_broker": with_broker}
        server.kill()
        if with_broker:
            broker.kill()
        time.sleep(seconds)
        server.begin_start()
        if with_broker:
            broker.start()
        ensemble.wait_whole()

    def _pause(self, child: FaultyChild, seconds: float) -> None:
        child.pause(seconds)

    def _restart(self, proxy: GrpcProxy, seconds: float) -> None:
        proxy.restart(seconds)

    def _network(self, child: FaultyChild, seconds: float) -> None:
        """Disturb one kind of connections of a process."""
        what, behaviour = self._random.choice(child.links), self._random.choice(_BEHAVIOURS)
        self._more = {"links": what, "behaviour": behaviour}
        child.behave(what, behaviour)
        time.sleep(seconds)
        child.behave(what, "pass")

    def _apart(self, broker: Broker, seconds: float) -> None:
        """Cut a broker off from registry and slaves, but not from clients."""
        behaviour = self._random.choice(_BEHAVIOURS)
        for other in self._world.brokers:  # its own connections to others' replication ports go through their proxies
            other.behave("slaves", behaviour)
        broker.behave("registry", behaviour)
        time.sleep(seconds)
        for other in self._world.brokers:
            other.behave("slaves", "pass")
        broker.behave("registry", "pass")

    def _eio(self, broker: Broker, seconds: float) -> None:
        """Fail a sync: the broker must acknowledge nothing more until an operator restarts it."""
        broker.fails("eio", on=True)
        time.sleep(min(seconds, 1.0))
        broker.fails("eio", on=False)
        broker.kill()
        broker.start()

    def _enospc(self, broker: Broker, seconds: float) -> None:
        """Fill the disk, for the log, the queues and the tables."""
        broker.fails("enospc", on=True)
        time.sleep(seconds)
        broker.fails("enospc", on=False)

    def _eread(self, broker: Broker, seconds: float) -> None:
        """Fail all reads of its files; what it has in memory stays usable."""
        broker.fails("eread", on=True)
        time.sleep(seconds)
        broker.fails("eread", on=False)

    def _clock(self, broker: Broker, seconds: float) -> None:
        """Set the calendar clock of a process ahead or back: nothing but times may be wrong."""
        ahead = self._random.choice((-3_600, -30, -2, 2, 30, 3_600))
        self._more = {"ahead": ahead}
        broker.set_clock(ahead)
        time.sleep(seconds)
        broker.set_clock(0)

    def _cpu(self, broker: Broker, seconds: float) -> None:
        """Let a process wait for processors: it may lose its lease, and must not serve after that."""
        with starved(broker.serving_pid):
            time.sleep(seconds)

    def _emfile(self, broker: Broker, seconds: float) -> None:
        """Let a process open no more files and connections: it stays, refuses what it cannot do, and recovers."""
        with few_files(broker.serving_pid):
            time.sleep(seconds)

    def _memory(self, broker: Broker, seconds: float) -> None:
        """Let a process have no more memory: it may end, as if killed, and is started again."""
        with little_memory(broker.serving_pid):
            time.sleep(seconds)
        self._more = {"ended": broker.restart_if_ended()}

    def _thread(self, broker: Broker, seconds: float) -> None:
        """Stop one thread of a process: its loop, a worker of the disk, or one that logs."""
        try:
            with thread_stopped(broker.serving_pid, self._random):
                time.sleep(seconds)
        except OSError as error:  # the thread ended before it could be stopped
            self._more = {"refused": str(error)}

    def _files(self, broker: Broker, seconds: float) -> None:
        """Kill a broker, damage a file that it does not need, and start it: everything is there."""
        older = copies(broker.judged_store)
        time.sleep(seconds)
        broker.kill()
        path, kind = damage(broker.judged_store, older, self._random)
        self._more = {"file": path, "kind": kind}
        broker.start()

    def _configure(self, broker: Broker, seconds: float) -> None:
        """Change a member's permission or weight, or remove it; restore the configuration later."""
        administrator = self._world.administrator
        what, config = administrator.draw(self._random, broker.broker_id)
        refusal = administrator.change(config)
        self._more = {"what": what, "refused": refusal}
        if refusal:
            return
        own = config.member(broker.broker_id)
        right = BrokerPermission.NONE if own is None else own.permission
        if own is None and self._random.random() < 0.5:
            broker.kill()
        until = time.monotonic() + OBEYS_SECONDS
        while deviation := self._deviation(broker, right, is_member=own is not None):
            if time.monotonic() > until:
                self.violations.append(f"I6: {OBEYS_SECONDS:g} s after it was configured as {what} {deviation}")
                break
            time.sleep(0.05)
        time.sleep(seconds)
        refusal = administrator.change(administrator.first)
        if refusal:
            self.violations.append(f"I14: the first configuration is refused: {refusal}")
        if not broker.is_running:
            broker.start()

    def _deviation(self, broker: Broker, right: BrokerPermission, *, is_member: bool) -> str:
        """Return how a broker deviates from its configuration; "" if it does not."""
        standing = broker.failover_status()
        if standing.get("mayRead") and not right.may_read:
            return f"{broker.name} may be read"
        if standing.get("mayWrite") and not right.may_write:
            return f"{broker.name} may be written"
        master = self._world.master
        if master is None or is_member or broker.broker_id not in master.failover_status().get("inSync", ()):
            return ""
        return f"{broker.name} is in sync"

    def _switch(self, broker: Broker, _seconds: float) -> None:
        target = {"target": str(broker.broker_id)}
        master = self._world.master
        if master is not None:
            try_request(master.own_address, Command(RequestCode.TANDEM_SWITCH, fields=target))
