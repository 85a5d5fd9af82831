"""What a member may do for clients: configured rights, cut down by where the group stands.

    group stands at           master of the record      reader of the record     others
    normal                    configured                -                        NONE
    slave-consume             NONE                      configured and READ      NONE
    handing over (either)     NONE                      NONE                     NONE

A right is not yet permission: only while a lease holds may it be used (`lease`).
Source: docs/internals/failover.md, "Permissions"; requirements F06, F12, F24.
"""

from tandemq.coordination.registry.records import NOBODY, BrokerPermission, GroupMode, GroupState


def right_of(configured: BrokerPermission, broker_id: int, state: GroupState | None) -> BrokerPermission:
    """The table above. `state` None: the record was never read, so nobody may do anything."""
    if state is None or holder_of(state) != broker_id:
        return BrokerPermission.NONE
    return configured if state.mode is GroupMode.NORMAL else configured & BrokerPermission.READ


def holder_of(state: GroupState) -> int:
    """The one member clients may be served by; NOBODY if there is none."""
    if state.mode is GroupMode.NORMAL:
        return state.master
    return state.reader if state.reader != state.master else NOBODY
