"""Faults of a group's registry: a server is killed, or all data are replaced by an older copy.

    copy ─► the record changes, or not ─► all members in sync ─► (brokers killed) ─► restored ─► operator ─► all in sync

All members have seen the newest record then, so none may serve by the copy: unless nothing has changed since, the group
waits until an operator, who follows the advice of `tandemq ha status`, has named a member. No log is truncated before.
"""

from __future__ import annotations

import subprocess
import sys
import time
from random import Random
from typing import Any

from chaos.brokers import START_SECONDS, Broker
from chaos.registries import chosen, refusing
from chaos.world import World
from tandemq.client.connection import try_request
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

OPERATOR_SECONDS = 90.0
"""Time limit for a group to be active again after its registry has gone back."""
_KILLED = 0.5
"""Share of the restores during which all members are killed."""
_CHANGES = ("switch", "kill", "nothing")
_DOWN_SECONDS = 5.0
"""How long a master is down, so that another one is elected, or leaves the members in sync."""
_ADVICE, _ADVICE_SECONDS = "force-master", 45.0
_STEADY_SECONDS = 5.0
"""How long all members have to be in sync: members have read the restored record by then, and old leases are over."""
_LOOK_SECONDS = 0.1


class RegistryFaults:
    """The faults of one run."""

    def __init__(self, world: World, violations: list[str]) -> None:
        """`violations`: gets what is found."""
        self._world = world
        self._violations = violations

    def kill(self, broker: Broker, seconds: float, random: Random) -> dict[str, Any]:
        """Kill a server of the registry, in half the cases together with a broker."""
        registry = self._world.registry
        number, with_broker = random.randrange(len(registry.servers)), random.random() < 0.5
        name = registry.kill(number)
        if with_broker:
            broker.kill()
        time.sleep(seconds)
        registry.start(number)
        if with_broker:
            broker.start()
        return {"server": name, "with_broker": with_broker}

    def older(self, broker: Broker, seconds: float, random: Random) -> dict[str, Any]:
        """Replace the registry's data by an older copy, and be the operator."""
        world, copy = self._world, self._world.directory / "registry-copy"
        world.wait(world.is_in_sync)
        world.registry.copy(copy)
        before = _epoch(world.brokers)
        change = random.choice(_CHANGES)
        self._change(change, broker)
        world.wait(world.is_in_sync)
        world.wait(lambda: len({_status_epoch(one) for one in world.brokers}) == 1)
        after, ends = _epoch(world.brokers), {one.broker_id: one.log_end() for one in world.brokers}
        is_killed = random.random() < _KILLED
        for one in world.brokers if is_killed else ():
            one.kill()
        world.registry.restore(copy, seconds)
        for one in random.sample(world.brokers, len(world.brokers)) if is_killed else ():
            one.start()
        forced = self._operate(random, ends, after)
        return {"change": change, "killed": is_killed, "epochs": [before, after], "forced": forced}

    def _change(self, change: str, broker: Broker) -> None:
        """Have the group's record change."""
        world = self._world
        master = world.master
        if change == "switch" and master is not None and world.mode is Mode.ELECT:
            other = next(one for one in world.brokers if one is not master)
            target = {"target": str(other.broker_id)}
            try_request(master.own_address, Command(RequestCode.TANDEM_SWITCH, fields=target))
            world.wait(lambda: other.failover_status().get("mayWrite"))
        elif change != "nothing":
            (master or broker).kill()
            time.sleep(_DOWN_SECONDS)
            (master or broker).start()

    def _operate(self, random: Random, ends: dict[int, int], epoch: int) -> int | None:
        """Be the operator until all members are in sync; return the member that was forced to serve, None if none was.

        `epoch`: the newest one that all members have seen; `ends`: their log ends then.
        """
        world, forced = self._world, None
        until = time.monotonic() + OPERATOR_SECONDS
        in_sync_since: float | None = None
        while time.monotonic() < until:
            if not world.is_in_sync():  # with all bytes it is for moments only while messages arrive
                in_sync_since = None
            elif in_sync_since is None:
                in_sync_since = time.monotonic()
            elif time.monotonic() > in_sync_since + _STEADY_SECONDS:
                break
            statuses = {one.broker_id: one.failover_status() for one in world.brokers}
            reasons = {broker_id: str(status.get("why", "")) for broker_id, status in statuses.items()}
            serving = [broker_id for broker_id, status in statuses.items() if status.get("mayWrite")]
            if found := [broker_id for broker_id in serving if statuses[broker_id]["epoch"] < epoch]:
                served = statuses[found[0]]["epoch"]
                self._violations.append(f"I1: broker {found[0]} serves by epoch {served}; all have seen epoch {epoch}")
                break
            target = chosen(reasons, serving, random) if forced is None else None
            if target is not None:
                self._check_logs(refusing(reasons), ends)
                forced = target if self._force(target) else None
            time.sleep(_LOOK_SECONDS)
        return forced

    def follow_advice(self) -> None:
        """Force the member with the longest log to serve if members ask for that, as they do after great losses."""
        world = self._world
        until = time.monotonic() + _ADVICE_SECONDS
        while not world.is_in_sync() and time.monotonic() < until:
            reasons = [str(one.failover_status().get("why", "")) for one in world.brokers]
            if any(_ADVICE in why for why in reasons):
                self._force(max(world.brokers, key=Broker.log_end).broker_id)
            time.sleep(_LOOK_SECONDS)

    def _check_logs(self, refuse: list[int], ends: dict[int, int]) -> None:
        """I1: check that members that refuse the record have kept their logs."""
        for one in self._world.brokers:
            end = one.log_end() if one.broker_id in refuse else -1
            if 0 <= end < ends[one.broker_id]:
                text = f"I1: {one.name} has truncated its log from {ends[one.broker_id]} to {end} by an older record"
                self._violations.append(text)

    def _force(self, broker_id: int) -> bool:
        """Run `tandemq ha force-master`; return whether it succeeded."""
        world = self._world
        words = ["ha", "force-master", "--broker", world.group, "--id", str(broker_id), "--yes"]
        words += [word for one in world.brokers for word in ("--address", one.own_address)]
        command = [sys.executable, "-m", "tandemq", *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * START_SECONDS)  # noqa: S603  # our own program
        return done.returncode == 0


def _status_epoch(broker: Broker) -> int:
    return int(broker.failover_status().get("epoch", -1))


def _epoch(brokers: list[Broker]) -> int:
    """Return the newest epoch that a member reports."""
    return max(map(_status_epoch, brokers))
