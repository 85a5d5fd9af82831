"""Faults of a group: drawn from a seed, injected one after the other or some at once, all undone at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from chaos.beyond import BeyondFaults
from chaos.brokers import Broker
from chaos.cgroups import CPU, MEMORY, cpu_quota, limit_refusal, memory_limit
from chaos.damaged_files import copies, damage
from chaos.machines import SHARDS, Machine
from chaos.processes import FaultyChild, GrpcProxy
from chaos.proxy import BEHAVIOURS, Behaviour
from chaos.registry_faults import RegistryFaults
from chaos.scarce import few_files, little_memory, starved, thread_stopped
from chaos.storage_faults import StorageFaults
from chaos.world import World
from tandemq.client.connection import try_request
from tandemq.coordination.registry.records import BrokerPermission, Mode
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

OBEYS_SECONDS = 20.0
"""Time limit for a configuration change to take effect."""
_DISTURBED = tuple(each for each in BEHAVIOURS if each != "pass")
_APART: tuple[Behaviour, ...] = ("cut", "stall", "hole")
KINDS = (
    "apart",
    "clock",
    "configure",
    "cpu",
    "damage-log",
    "damage-table",
    "eio",
    "emfile",
    "enospc",
    "eread",
    "ewrite",
    "files",
    "kill",
    "kill-registry",
    "kill-shard",
    "kill-supervisor",
    "lose-disk",
    "lose-log",
    "lose-table",
    "memory",
    "memory-limit",
    "network",
    "older-registry",
    "pause",
    "quota",
    "switch",
    "thread",
)
"""Kinds of faults of brokers; not every run has all."""
_LIMITS = {"quota": CPU, "memory-limit": MEMORY}
"""Kinds that need control groups to their controllers; a machine that has none goes without them."""
_QUOTAS = (0.05, 0.2)
_MEMORY_MORE_BYTES = (1 << 20, 8 << 20)
LOSSES = ("lose-disk", "lose-log", "lose-table")
"""Kinds of losses that a group is not made for."""
ALONE = ("configure", "damage-log", "damage-table", "older-registry")
"""Kinds that wait until the group is whole again: it is not while there are other faults, or after losses."""
ONCE = ("apart", "kill-registry")
"""Kinds of which there is one at a time: they concern more than one process."""
_ATTEMPTS = 50
_LOOK_SECONDS = 0.05
PROXIES = 0.25
"""Share of the faults of the proxies for gRPC clients."""
NEIGHBOUR = 0.3
"""Share of the other faults of the broker beside the group, in runs with one."""
NEIGHBOUR_KINDS = ("eio", "enospc", "eread", "ewrite", "kill", "kill", "pause")

Details = dict[str, Any] | None
"""Further details of a fault for the report."""
OfBroker = Callable[[Broker, float, Random], Details]
OfProxy = Callable[[GrpcProxy, float, Random], Details]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault before it is injected. `inject` gets the seconds that it lasts, and its own random numbers."""

    kind: str
    place: int | str
    inject: Callable[[float, Random], Details]


class Faults:
    """The faults of one run."""

    def __init__(
        self, world: World, random: Random, only: Sequence[str] = (), *, at_once: int = 1, is_beyond: bool = False
    ) -> None:
        """No faults yet.

        Args:
            world: in which they happen.
            random: draws them.
            only: kinds of faults of brokers to draw from; empty: all.
            at_once: how many there are at the same time at most; two at least if it is not 1.
            is_beyond: whether there are also losses that the group is not made for, see `chaos.beyond`.
        """
        self._world = world
        self._random = random
        self._at_once = at_once
        self.done: list[dict[str, Any]] = []
        """Faults so far: name, broker, seconds since the start, duration."""
        self.violations: list[str] = []
        self._begun = time.monotonic()
        registry, storage = RegistryFaults(world, self.violations), StorageFaults(world, self.violations)
        self._follow_advice = registry.follow_advice if is_beyond and world.mode is not Mode.STATIC else None
        self._kinds: dict[str, OfBroker] = {
            "kill": self._kill,
            "pause": self._pause,
            "network": self._network,
            "apart": self._apart,
            "eio": self._eio,
            "enospc": self._enospc,
            "eread": self._eread,
            "ewrite": self._ewrite,
            "clock": self._clock,
            "cpu": self._cpu,
            "emfile": self._emfile,
            "files": self._files,
            "memory": self._memory,
            "memory-limit": self._memory_limit,
            "quota": self._quota,
            "thread": self._thread,
            "configure": self._configure,
            "switch": self._switch,
            "kill-registry": registry.kill,
            "older-registry": registry.older,
            "damage-log": storage.log,
            "damage-table": storage.table,
        }
        self._of_proxies: dict[str, OfProxy] = {
            "kill": self._kill,
            "pause": self._pause,
            "network": self._network,
            "restart": self._restart,
        }
        of_shards: dict[str, OfBroker] = {}
        if world.shard is not None:
            of_shards = {"kill-shard": self._kill_shard, "kill-supervisor": self._kill_supervisor}
        self._kinds |= of_shards
        if is_beyond:
            losses = BeyondFaults(world)
            self._kinds |= {"lose-log": losses.log, "lose-table": losses.table, "lose-disk": losses.disk}
        for kind in (*self._impossible(), *(ALONE if is_beyond else ())):
            self._kinds.pop(kind, None)
        names = sorted(self._kinds)
        self._names = names + 2 * [*sorted(of_shards), "kill-registry"] + 4 * [name for name in names if name in LOSSES]
        """What is drawn from: faults of shards and of the registry count three times, losses five times."""
        self._only = [name for name in names if name in only]

    def _impossible(self) -> list[str]:
        """Return the kinds that a run with these members cannot have."""
        found = []
        if self._world.shard is not None:  # a supervisor starts a shard again; the operator here has one group
            found += ["memory", "memory-limit", "older-registry"]
        if self._world.mode is Mode.STATIC:  # an operator edits settings there, and the registry decides nothing
            found += ["configure", "switch", "older-registry"]
        found += [kind for kind, controller in _LIMITS.items() if limit_refusal(controller)]
        return found

    def run(self, seconds: float) -> None:
        """Inject faults, one or some after the others, for this long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._revive()
            self.inject(self._draw_some())
            time.sleep(self._random.choice((0.0, 0.5, 2.0, 5.0)))
        self._revive()
        if self._follow_advice is not None:
            self._follow_advice()

    def inject(self, faults: Sequence[Drawn]) -> None:
        """Inject faults at once; return when all are over, and raise the first error then."""
        work = [self._planned(drawn) for drawn in faults]
        if len(work) == 1:
            work[0]()
            return
        with ThreadPoolExecutor(len(work)) as pool:
            running = [pool.submit(one) for one in work]
        for one in running:
            one.result()

    def _planned(self, drawn: Drawn) -> Callable[[], None]:
        """Return what injects a fault, with all that is drawn for it."""
        lasts = self._random.choice((0.3, 1.0, 2.0, 4.0))
        return partial(self._inject, drawn, lasts, Random(self._random.getrandbits(64)))

    def _inject(self, drawn: Drawn, seconds: float, random: Random) -> None:
        at = time.monotonic() - self._begun
        details = drawn.inject(seconds, random) or {}
        entry = {"fault": drawn.kind, "broker": drawn.place, "at": round(at, 2), "seconds": seconds}
        self.done.append(entry | details)

    def _draw_some(self) -> list[Drawn]:
        """Draw the faults that happen at once: of different processes, and none that needs a group without others."""
        first = self._draw()
        if self._at_once == 1 or first.kind in ALONE:
            return [first]
        found = [first]
        count = self._random.randint(2, self._at_once)
        for _ in range(_ATTEMPTS):
            if len(found) == count:
                break
            other = self._draw()
            is_free = all(other.place != one.place for one in found) and other.kind not in ALONE
            if is_free and not (other.kind in ONCE and any(one.kind == other.kind for one in found)):
                found.append(other)
        return found

    def _draw(self) -> Drawn:
        """Draw a kind and a process."""
        if not self._only and self._random.random() < PROXIES:
            kind, proxy = self._random.choice(sorted(self._of_proxies)), self._random.choice(self._world.proxies)
            return Drawn(kind, proxy.name, partial(self._of_proxies[kind], proxy))
        neighbour = self._world.neighbour
        if not self._only and neighbour is not None and self._random.random() < NEIGHBOUR:
            kind = self._random.choice(NEIGHBOUR_KINDS)
            return Drawn(kind, neighbour.name, partial(self._kinds[kind], neighbour))
        kind = self._random.choice(self._only or self._names)
        broker = self._random.choice(self._world.brokers)
        if self._random.random() < 0.6:  # faults of the active member matter most
            broker = self._world.master or broker
        self._world.may_lag |= kind not in ("kill", "kill-shard", "kill-supervisor")
        return Drawn(kind, broker.broker_id, partial(self._kinds[kind], broker))

    def _revive(self) -> None:
        for child in self._world.children:
            child.revive()

    def _kill(self, child: FaultyChild, seconds: float, _random: Random) -> None:
        child.kill()
        time.sleep(seconds)
        child.start()

    def _kill_shard(self, machine: Broker, _seconds: float, random: Random) -> Details:
        assert isinstance(machine, Machine), "in runs with shards"
        shard = random.randrange(SHARDS)
        machine.kill_shard(shard)
        return {"shard": shard}

    def _kill_supervisor(self, machine: Broker, seconds: float, _random: Random) -> None:
        assert isinstance(machine, Machine), "in runs with shards"
        machine.kill_supervisor()
        time.sleep(seconds)
        machine.start()

    def _pause(self, child: FaultyChild, seconds: float, _random: Random) -> None:
        child.pause(seconds)

    def _restart(self, proxy: GrpcProxy, seconds: float, _random: Random) -> None:
        proxy.restart(seconds)

    def _network(self, child: FaultyChild, seconds: float, random: Random) -> Details:
        """Disturb one kind of connections of a process."""
        what, behaviour = random.choice(child.links), random.choice(_DISTURBED)
        child.behave(what, behaviour)
        time.sleep(seconds)
        child.behave(what, "pass")
        return {"links": what, "behaviour": behaviour}

    def _apart(self, broker: Broker, seconds: float, random: Random) -> Details:
        """Cut a broker off from registry and slaves, but not from clients."""
        behaviour = random.choice(_APART)
        for other in self._world.brokers:  # its own connections to others' replication ports go through their proxies
            other.behave("slaves", behaviour)
        broker.behave("registry", behaviour)
        time.sleep(seconds)
        for other in self._world.brokers:
            other.behave("slaves", "pass")
        broker.behave("registry", "pass")
        return {"behaviour": behaviour}

    def _eio(self, broker: Broker, seconds: float, _random: Random) -> None:
        """Fail all syncs."""
        self._fail_device(broker, "eio", min(seconds, 1.0))

    def _ewrite(self, broker: Broker, seconds: float, _random: Random) -> None:
        """Fail all writes."""
        self._fail_device(broker, "ewrite", seconds)

    def _fail_device(self, broker: Broker, kind: str, seconds: float) -> None:
        """Fail calls: the broker takes nothing more until an operator restarts it, and another one in sync leads."""
        standing = broker.failover_status() if self._world.mode is Mode.ELECT and self._at_once == 1 else {}
        broker.fails(kind, on=True)
        time.sleep(seconds)
        if standing.get("mayWrite") and len(standing["inSync"]) > 1:
            until = time.monotonic() + OBEYS_SECONDS
            while broker.failover_status().get("mayWrite"):
                if time.monotonic() > until:
                    self.violations.append(f"I14: {broker.name} leads {OBEYS_SECONDS:g} s after its device failed")
                    break
                time.sleep(_LOOK_SECONDS)
        broker.fails(kind, on=False)
        broker.kill()
        broker.start()

    def _enospc(self, broker: Broker, seconds: float, _random: Random) -> None:
        """Fill the disk, for the log, the queues and the tables."""
        broker.fails("enospc", on=True)
        time.sleep(seconds)
        broker.fails("enospc", on=False)

    def _eread(self, broker: Broker, seconds: float, _random: Random) -> None:
        """Fail all reads of its files; what it has in memory stays usable."""
        broker.fails("eread", on=True)
        time.sleep(seconds)
        broker.fails("eread", on=False)

    def _clock(self, broker: Broker, seconds: float, random: Random) -> Details:
        """Set the calendar clock of a process ahead or back: nothing but times may be wrong."""
        ahead = random.choice((-3_600, -30, -2, 2, 30, 3_600))
        broker.set_clock(ahead)
        time.sleep(seconds)
        broker.set_clock(0)
        return {"ahead": ahead}

    def _cpu(self, broker: Broker, seconds: float, _random: Random) -> None:
        """Let a process wait for processors: it may lose its lease, and must not serve after that."""
        with starved(broker.serving_pid):
            time.sleep(seconds)

    def _emfile(self, broker: Broker, seconds: float, _random: Random) -> None:
        """Let a process open no more files and connections: it stays, refuses what it cannot do, and recovers."""
        with few_files(broker.serving_pid):
            time.sleep(seconds)

    def _memory(self, broker: Broker, seconds: float, _random: Random) -> Details:
        """Let a process have no more memory: it may end, as if killed, and is started again."""
        with little_memory(broker.serving_pid):
            broker.watch(seconds)
        return {"ended": broker.restart_if_ended()}

    def _memory_limit(self, broker: Broker, seconds: float, random: Random) -> Details:
        """Let the kernel take pages of files from a process, or kill it for lack of memory."""
        more = random.choice(_MEMORY_MORE_BYTES)
        with memory_limit(broker.serving_pid, more):
            broker.watch(seconds)
        return {"more": more, "ended": broker.restart_if_ended()}

    def _quota(self, broker: Broker, seconds: float, random: Random) -> Details:
        """Let a process have a part of a processor: it stands still again and again, for most of 100 ms."""
        share = random.choice(_QUOTAS)
        with cpu_quota(broker.serving_pid, share):
            time.sleep(seconds)
        return {"share": share}

    def _thread(self, broker: Broker, seconds: float, random: Random) -> Details:
        """Stop one thread of a process: its loop, a worker of the disk, or one that logs."""
        try:
            with thread_stopped(broker.serving_pid, random):
                time.sleep(seconds)
        except OSError as error:  # the thread ended before it could be stopped
            return {"refused": str(error)}
        return None

    def _files(self, broker: Broker, seconds: float, random: Random) -> Details:
        """Kill a broker, damage a file that it does not need, and start it: everything is there."""
        older = copies(broker.judged_store)
        time.sleep(seconds)
        broker.kill()
        path, kind = damage(broker.judged_store, older, random)
        broker.start()
        return {"file": path, "kind": kind}

    def _configure(self, broker: Broker, seconds: float, random: Random) -> Details:
        """Change a member's permission or weight, or remove it; restore the configuration later."""
        administrator = self._world.administrator
        what, config = administrator.draw(random, broker.broker_id)
        refusal = administrator.change(config)
        details = {"what": what, "refused": refusal}
        if refusal:
            return details
        own = config.member(broker.broker_id)
        right = BrokerPermission.NONE if own is None else own.permission
        if own is None and random.random() < 0.5:
            broker.kill()
        until = time.monotonic() + OBEYS_SECONDS
        while deviation := self._deviation(broker, right, is_member=own is not None):
            if time.monotonic() > until:
                self.violations.append(f"I6: {OBEYS_SECONDS:g} s after it was configured as {what} {deviation}")
                break
            time.sleep(_LOOK_SECONDS)
        time.sleep(seconds)
        refusal = administrator.change(administrator.first)
        if refusal:
            self.violations.append(f"I14: the first configuration is refused: {refusal}")
        if not broker.is_running:
            broker.start()
        return details

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

    def _switch(self, broker: Broker, _seconds: float, _random: Random) -> None:
        target = {"target": str(broker.broker_id)}
        master = self._world.master
        if master is not None:
            try_request(master.own_address, Command(RequestCode.TANDEM_SWITCH, fields=target))
