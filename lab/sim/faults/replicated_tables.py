"""Faults when a mapping, users or limits change: the slaves do not get that, and the master is killed once it confirms.

A change that was confirmed has to be known to the next master, so it must not be confirmed then.
"""

from collections.abc import Callable
from random import Random

from lab.sim.world.cluster import Host
from lab.sim.world.groups import GroupCluster
from lab.sim.world.network import Network
from lab.sim.world.world import MS, World

BLOCKED_MS = (100, 1_200)
DOWN_MS = (3_000, 7_000)


class ChangeFaults:
    """The faults of one seed, around the requests of an administrator."""

    def __init__(
        self,
        world: World,
        network: Network,
        cluster: GroupCluster,
        is_over: Callable[[], bool],
        *,
        what: str,
        rate: float,
    ) -> None:
        """Its own generator keeps other faults as they are.

        Args:
            world: in which they happen.
            network: to cut masters off.
            cluster: their groups.
            is_over: returns whether faults have ended.
            what: what changes.
            rate: share of the requests.
        """
        self._world = world
        self._network = network
        self._cluster = cluster
        self._is_over = is_over
        self._what = what
        self._rate = rate
        self._random = Random(f"{world.seed}-{what}-faults")
        self._cut: dict[str, Host] = {}
        self._killed: set[tuple[str, str]] = set()
        """Network paths of killed masters: data that they had sent does not arrive before they run again."""

    def sent(self, name: str) -> None:
        """Cut the master off from its slaves for a moment, at times, when it is sent a change."""
        group = next(group for group in self._cluster.plan.groups if group.name == name)
        leader = self._cluster.leader(group)
        self._cut.pop(name, None)
        if self._is_over() or leader is None or self._random.random() > self._rate:
            return
        self._world.fault(f"{self._what}-held-up", leader.name)
        self._cut[name] = leader
        pairs = self._block(leader)

        def unblock() -> None:
            for pair in pairs:
                if pair not in self._killed:
                    self._network.blocked.pop(pair, None)

        self._world.after(self._random.randrange(*BLOCKED_MS) * MS, unblock)

    def _block(self, leader: Host) -> list[tuple[str, str]]:
        others = [member for member in self._cluster.members(leader.group) if member is not leader]
        pairs = [(leader.machine.ip, other.machine.ip) for other in others]
        for source, target in pairs:
            self._network.block(source, target)
        return pairs

    def confirmed(self, name: str) -> None:
        """Kill a master that was cut off, and has confirmed the change."""
        leader = self._cut.pop(name, None)
        if leader is not None and leader.process is not None and not self._is_over():
            self._world.fault("kill-master", f"{leader.name}, which has confirmed: {self._what}")
            pairs = self._block(leader)
            self._killed.update(pairs)
            leader.kill()

            def start() -> None:
                for pair in pairs:
                    self._killed.discard(pair)
                    self._network.blocked.pop(pair, None)
                leader.start()

            self._world.after(self._random.randrange(*DOWN_MS) * MS, start)
