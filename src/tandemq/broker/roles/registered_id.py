"""The broker id under which a member of a group with a registry registers at name servers."""

from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import GroupMode

MASTER_ID = 0


def registered_id_of_slave(broker_id: int, master: int) -> int:
    """Return the id of a slave: its own, or that of its master if its own is 0."""
    return broker_id if broker_id != MASTER_ID else master


def registered_id(member: MemberMachine, present: int | None, *, is_master: bool) -> int | None:
    """Return the id: 0 for the broker that may be written to, None for one that may not be used.

    While a slave serves reads, the other slaves are not registered: clients other than TandemQ's would pull from them.

    Args:
        member: has read the group's record.
        present: the id registered at present.
        is_master: whether the member's log is the one that is replicated.
    """
    state = member.view.state
    assert state is not None, "the record was read"
    if state.master != member.id:
        is_reader_elsewhere = state.mode is GroupMode.SLAVE_CONSUME and state.reader != member.id
        return None if is_reader_elsewhere else registered_id_of_slave(member.id, state.master)
    if member.stage in (MemberStage.SERVING, MemberStage.HANDING):
        return MASTER_ID
    is_kept = present == MASTER_ID and is_master and member.stage is not MemberStage.AWAITING
    return MASTER_ID if is_kept else None
