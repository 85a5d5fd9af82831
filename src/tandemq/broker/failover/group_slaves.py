"""Slaves of a group with a registry that answer pulls of old messages, to keep the master's memory for new ones.

Only in the group's normal state: the master sends consumers there; they return to it, and commit their offsets there.

Source: docs/guides/failover.md, "Consumers far behind".
"""

from tandemq.broker.failover.registered_id import MASTER_ID, registered_id_of_slave
from tandemq.broker.ha.service import Replication
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.registry.records import GroupMode, GroupState


class GroupSlaves:
    """What one member of the group knows about it; a `SlaveChoice` of the pull path."""

    def __init__(self, member: MemberMachine, replication: Replication) -> None:
        """Take the collaborators."""
        self._member = member
        self._replication = replication

    def reading_slave(self, wanted: int) -> int:
        """Return the id under which a slave is registered that consumers may be sent to, `wanted` if possible; 0: none.

        It is in sync, connected to this master, and configured with READ. A slave that helps returns its own.
        """
        state, own_id = self._normal_state(), self._member.id
        if state is None:
            return MASTER_ID
        if state.master != own_id:
            return registered_id_of_slave(own_id, state.master)
        links = self._replication.masters.links
        slaves = [slave for slave in state.in_sync if slave != own_id and slave in links and self._is_readable(slave)]
        found = [registered_id_of_slave(slave, own_id) for slave in slaves]
        return wanted if wanted in found else min(found, default=MASTER_ID)

    def helps(self) -> bool:
        """Return whether this member may answer pulls of old messages: it is in sync, and copies the master's log."""
        state, own_id, slave = self._normal_state(), self._member.id, self._replication.slave
        return (
            state is not None
            and state.master != own_id
            and own_id in state.in_sync
            and slave is not None
            and slave.is_linked
            and self._is_readable(own_id)
            and self._is_readable(state.master)
        )

    def sends_back(self) -> bool:
        """Return whether consumers that pull here should pull from the master."""
        state = self._normal_state()
        return state is not None and state.master != self._member.id

    def _normal_state(self) -> GroupState | None:
        state = self._member.view.state
        return state if state is not None and state.mode is GroupMode.NORMAL else None

    def _is_readable(self, broker_id: int) -> bool:
        configured = self._member.own_of(broker_id)
        return configured is not None and configured.permission.may_read
