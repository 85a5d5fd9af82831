"""Whether a group's record continues one that a member has seen, or is an older copy, or a branch of one.

    the registry    1 ── 2 ── 3 ── 4 ── 5        members have seen 5; the registry's data are replaced by a copy of 3
                              └── 4' ── 5'       4' does not continue 4, whatever its epoch and version are

Each record lists its last `CHANGES_MAX` changes, each as (version of the node, calendar time). Writes are conditional
on the version, so the list is the history of the node, and a record continues another one if it lists that one's last
change. Records that are written again unchanged, as claims are, add no change: a copy that lacks only those is not
older.

A record that is founded (the first one, one created again, an operator's decision) continues all records of earlier
epochs. A member that saw more than `CHANGES_MAX` changes ago what it saw last cannot compare, and believes the record;
so it does with records of earlier versions, which list no changes.

Source: docs/internals/failover.md, "When the registry has an older record".
"""

from collections.abc import Collection
from dataclasses import replace

from tandemq.coordination.registry.records import GroupState

CHANGES_MAX = 100


def with_change(state: GroupState, version: int) -> GroupState:
    """Return a record with its own change added; `version`: of the node once it is written."""
    return replace(state, changes=(*state.changes, (version, state.since_ms))[-CHANGES_MAX:])


def continues(state: GroupState, seen: GroupState) -> bool:
    """Return whether a record is the one that was seen, or a later one of the same history."""
    if state.epoch < seen.epoch:
        return False
    if seen.epoch < state.founded or not state.changes or not seen.changes:
        return True
    last_change = seen.changes[-1]
    return last_change in state.changes or last_change[0] < state.changes[0][0]


def is_one_history(records: Collection[GroupState]) -> bool:
    """Return whether of any two records one continues the other."""
    return all(continues(record, other) or continues(other, record) for record in records for other in records)


def newest(records: Collection[GroupState]) -> list[GroupState]:
    """Return the records that no other one continues: one, or several if their histories have parted."""
    return [
        record
        for record in records
        if all(continues(record, other) or not continues(other, record) for other in records)
    ]
