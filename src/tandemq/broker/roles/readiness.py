"""Readiness of a broker: the reasons why it serves no clients, for `/readyz`.

A master is ready if it may be read or written, and accepts what it may; a slave is ready while it replicates.
Source: docs/guides/monitoring.md.
"""

from collections.abc import Iterator

from tandemq.boundary import Now
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.roles.registry_role import RegistryRole, RegistryRoleOf
from tandemq.coordination.member.orders import MemberStage
from tandemq.replication.slave import SlaveSessionState


class Readiness(Feature):
    """Answers whether a broker can serve clients."""

    def __init__(self, kernel: Kernel, role: RegistryRoleOf) -> None:
        """`role` returns the role, if a registry decides it."""
        self._store = kernel.store
        self._puts = kernel.puts
        self._replication = kernel.features.find(Replication)
        self._role = role
        self._turn = kernel.turn

    def not_ready(self, now: Now) -> list[str]:
        """Return why the broker cannot serve; empty if it can."""
        role = self._role()
        if role is not None:
            return list(self._of_member(role, now))
        if not self._turn.serving.is_master:
            return list(self._of_slave())
        return [] if self._puts.refusal is None else [self._puts.refusal[1]]

    def _of_member(self, role: RegistryRole, now: Now) -> Iterator[str]:
        status = role.member.status(now)
        if status.stage is MemberStage.SLAVE:
            yield from self._of_slave()
        elif not (status.may_read or status.may_write):
            yield f"{status.stage.value}: {status.why}"
        elif status.may_write and self._puts.refusal is not None:
            yield self._puts.refusal[1]
        if status.registry != "up":
            yield f"the registry {role.registry.address.hosts} does not answer"

    def _of_slave(self) -> Iterator[str]:
        slave = self._replication.slave
        session = slave.session if slave is not None else None
        if session is None or session.state is not SlaveSessionState.TRANSFER:
            yield "it has no connection to its master"
