"""The lease of this member: its times, its grants, and the members it protects against.

Source: docs/internals/failover.md, "Leases"; requirements F15, F16, F31.
"""

from tandemq.coordination.lease import NEVER, SESSION_MS, Lease, timing
from tandemq.coordination.member.orders import MemberSettings
from tandemq.coordination.registry.records import GroupMode
from tandemq.coordination.registry.view import RegistryView


class HeldLease:
    """Times until which this member may serve in the roles that the record assigns to it."""

    def __init__(self, settings: MemberSettings, view: RegistryView) -> None:
        """Nothing is granted yet."""
        self._settings = settings
        self._view = view
        self.grants = Lease()
        self.timing = timing(SESSION_MS, checks=settings.checks)
        """Of the default session until the registry grants one."""

    def session_granted(self, timeout_ms: int) -> None:
        """Adapt all times to the timeout of a new session."""
        self.timing = timing(timeout_ms, checks=self._settings.checks)

    @property
    def order_ms(self) -> int:
        """How long an operator's order waits: until leases of others are over and all checks have succeeded in a row,
        with as many that did not."""
        timing = self.timing
        return max(self._settings.force_ms, timing.silence_ms + 2 * timing.checks * timing.check_ms)

    def until_ms(self) -> int:
        """When the lease ends, monotonic; FOREVER if no member could take over."""
        is_claimed = self._view.written_session == self._view.session_id != 0
        return max(self.peers_until_ms(), self.registry_until_ms() if is_claimed else NEVER)

    def peers_until_ms(self) -> int:
        """When the grants of the rivals end; FOREVER if there are none."""
        return self.grants.peers_until_ms(self.rivals(), self.timing.lease_ms)

    def registry_until_ms(self) -> int:
        """When the grant of the registry ends."""
        return self.grants.registry_until_ms(self.timing.lease_ms)

    def rivals(self) -> frozenset[int]:
        """Members that could take over, by the record or by a change of it whose outcome is unknown."""
        state, pending = self._view.state, self._view.pending
        if state is None:
            return frozenset()
        if state.mode is GroupMode.SLAVE_CONSUME:
            return frozenset({state.master})
        asked = pending.state.in_sync if pending is not None else ()
        return (frozenset(state.in_sync) | frozenset(asked)) - {self._settings.broker_id}
