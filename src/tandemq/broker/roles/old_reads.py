"""Slaves of a group with a registry that answer pulls of old messages, to keep the master's memory for new ones.

Only in the group's normal state: the master sends consumers there; they return to it, and commit their offsets there.

Source: docs/guides/failover.md, "Consumers far behind".
"""

from collections.abc import Collection

from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.serving import OldReads
from tandemq.broker.roles.registered_id import registered_id_of_slave
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.registry.records import GroupMode

NOBODY_HELPS = OldReads(helps=False, sends_back=False, slaves=())


def old_reads(member: MemberMachine, replication: Replication) -> OldReads:
    """Return which reads of old messages the group allows.

    A slave that consumers may be sent to is in sync, connected to this master, and configured with READ. A slave that
    helps names itself.
    """
    state, own_id = member.view.state, member.id
    if state is None or state.mode is not GroupMode.NORMAL:
        return NOBODY_HELPS
    if state.master != own_id:
        return OldReads(
            helps=_helps(member, replication, state.master, state.in_sync),
            sends_back=True,
            slaves=(registered_id_of_slave(own_id, state.master),),
        )
    links = replication.masters.links
    slaves = [slave for slave in state.in_sync if slave != own_id and slave in links and _is_readable(member, slave)]
    return OldReads(
        helps=False, sends_back=False, slaves=tuple(registered_id_of_slave(slave, own_id) for slave in slaves)
    )


def _helps(member: MemberMachine, replication: Replication, master: int, in_sync: Collection[int]) -> bool:
    """Whether this slave may answer pulls of old messages: it is in sync, and copies the master's log."""
    slave = replication.slave
    return (
        member.id in in_sync
        and slave is not None
        and slave.is_linked
        and _is_readable(member, member.id)
        and _is_readable(member, master)
    )


def _is_readable(member: MemberMachine, broker_id: int) -> bool:
    configured = member.own_of(broker_id)
    return configured is not None and configured.permission.may_read
