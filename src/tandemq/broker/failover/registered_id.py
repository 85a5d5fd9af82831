"""The broker id under which a member of a group with a registry registers at name servers."""

from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import MemberStage

MASTER_ID = 0


def registered_id(member: MemberMachine, present: int | None, *, is_master: bool) -> int | None:
    """Return the id: 0 for the broker that may be written to, None for one that may not be used.

    A slave with id 0 in its settings takes that of its master meanwhile.

    Args:
        member: has read the group's record.
        present: the id registered at present.
        is_master: whether the member's log is the one that is replicated.
    """
    state = member.view.state
    assert state is not None, "the record was read"
    if state.master != member.id:
        return member.id if member.id != MASTER_ID else state.master
    if member.stage in (MemberStage.SERVING, MemberStage.HANDING):
        return MASTER_ID
    is_kept = present == MASTER_ID and is_master and member.stage is not MemberStage.AWAITING
    return MASTER_ID if is_kept else None
