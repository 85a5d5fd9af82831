"""I1 when the registry is replaced by an older copy: a member that has seen more neither follows nor truncates.

Until an operator decides which log counts, or the machine loses bytes. A member that has seen no more than the copy may
be elected: what it lacks is a loss like one that an operator has accepted, because nobody who knows of it is there.
"""

from lab.sim.world.cluster import Host
from lab.sim.world.groups import stage_of, state_of
from lab.sim.world.world import Violation, World
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.lineage import continues
from tandemq.coordination.registry.records import GroupState


class OlderRegistryChecks:
    """The members of a run that have seen more than the registry's copy."""

    def __init__(self, world: World) -> None:
        """The registry has not gone back."""
        self._world = world
        self._knowing: dict[str, GroupState] = {}
        """Host to the newest record that it had seen, until an operator decides."""
        self._ends: dict[str, int] = {}
        """Host to its log end when it was last looked at."""
        self._parted: set[str] = set()
        """Groups in which some member has seen more, until an operator decides."""
        self.restored_us: int | None = None

    def restored(self, knowing: dict[str, GroupState]) -> None:
        """Note that the registry goes back now, and which members have seen newer state."""
        self.restored_us = self._world.now_us
        self._knowing, self._ends = knowing, dict.fromkeys(knowing, 0)
        self._parted = {name.partition("/")[0] for name in knowing}

    def decided(self, group: str) -> None:
        """An operator chooses the log that counts."""
        self._parted.discard(group)
        self._knowing = {name: seen for name, seen in self._knowing.items() if not name.startswith(f"{group}/")}

    def may_lack(self, host: Host) -> bool:
        """Return whether a member may be elected without acknowledged messages: it has seen no more than the copy."""
        return host.group.name in self._parted and host.name not in self._knowing

    def turned(self, host: Host) -> None:
        """Check a member after one of its turns.

        Raises:
            Violation: I1, it has truncated its log, or serves or follows by the older record.
        """
        seen = self._knowing.get(host.name)
        if seen is None or host.broker is None or self.restored_us is None:
            return
        before, end = self._ends[host.name], host.broker.store.log.written_end
        if end < before and not any(when >= self.restored_us for when in host.losses_us):
            raise Violation("I1", f"{host.name} has truncated its log from {before} to {end} by an older record")
        self._ends[host.name] = end
        state, stage = state_of(host), stage_of(host)
        if stage in (MemberStage.SERVING, MemberStage.SLAVE) and state is not None and not continues(state, seen):
            raise Violation("I1", f"{host.name} is {stage} by an older record of epoch {state.epoch}; it saw {seen}")
