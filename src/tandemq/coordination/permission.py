"""Permission of a member: its configured permission, restricted by the state of the group.

    state of the group        master of the record      reader of the record     others
    normal                    configured                -                        NONE
    slave-consume             NONE                      configured and READ      NONE
    handing over (either)     NONE                      NONE                     NONE

The permission is only effective while the member holds a lease (`lease`).
Source: docs/internals/failover.md, "Permissions"; requirements F06, F12, F24.
"""

from tandemq.coordination.registry.records import NOBODY, BrokerPermission, GroupMode, GroupState


def granted_permission(configured: BrokerPermission, broker_id: int, state: GroupState | None) -> BrokerPermission:
    """Return a member's permission by the table above; NONE if `state` is None, that is, the record was never read."""
    if state is None or holder_of(state) != broker_id:
        return BrokerPermission.NONE
    return configured if state.mode is GroupMode.NORMAL else configured & BrokerPermission.READ


def holder_of(state: GroupState) -> int:
    """Return the id of the member that may serve clients; NOBODY if there is none."""
    if state.mode is GroupMode.NORMAL:
        return state.master
    return state.reader if state.reader != state.master else NOBODY
