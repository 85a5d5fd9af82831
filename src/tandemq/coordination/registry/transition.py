"""Changes of a group's configuration: changes that could lose data, and resets of the in-sync set that they need.

Writers of configurations (`groupdb.publisher`, `run.groups`) check here whether the group's record and its live brokers
permit a change. Contradictory configurations are refused earlier (`records.contradictions`).

    mode before       mode after                     in-sync set of the record
    static            slave-consume, elect           only the master: lags were not recorded
    slave-consume     elect                          only the master: the set lists members that were ever connected
    unknown           slave-consume, elect           only the master

Stateless functions. Source: docs/guides/failover.md, "Group configuration".
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from tandemq.coordination.registry.lineage import with_change
from tandemq.coordination.registry.records import NOBODY, GroupConfig, GroupMode, GroupState, Mode

MASTER_ID = 0
"""Broker id of the master in mode `static`."""


class Objection(NamedTuple):
    """Why a change of the configuration is refused, and what to do."""

    why: str
    what_to_do: str

    def __str__(self) -> str:
        """Return both in one line."""
        return f"{self.why}: {self.what_to_do}"


def objection(
    state: GroupState, live: Collection[int], before: GroupConfig | None, after: GroupConfig
) -> Objection | None:
    """Return why a new configuration is refused in the group's present state; None if it may be written.

    Args:
        state: the group's record.
        live: ids of the brokers that have a live node.
        before: the present configuration; None if there is none, or it is malformed.
        after: the new configuration.
    """
    for broker_id, part in ((state.master, "is the master"), (state.reader, "serves reads")):
        if broker_id != NOBODY and after.member(broker_id) is None:
            return Objection(f"broker {broker_id} {part} at present, but is not in this configuration", "switch first")
    if before is not None and before.mode is after.mode:
        return None
    if after.mode is Mode.STATIC and state.master not in (MASTER_ID, NOBODY):
        return Objection(
            f"broker {state.master} is its master", f"switch to broker {MASTER_ID} (tandemq ha switch), stop it"
        )
    if after.mode is not Mode.SLAVE_CONSUME and state.mode is GroupMode.SLAVE_CONSUME:
        return Objection(
            f"broker {state.reader} still has consumers' offsets", "wait until it has handed them over, stop it"
        )
    if before is not None and live:
        listed = ", ".join(map(str, sorted(live)))
        return Objection(
            f"brokers {listed} run in mode {before.mode.value}, and members in different modes cannot work together",
            "stop all brokers of the group",
        )
    return None


def removal_objection(live: Collection[int]) -> Objection:
    """Return why the configuration of a group with live brokers may not be removed: they would stop serving."""
    listed = ", ".join(map(str, sorted(live)))
    return Objection(
        f"brokers {listed} of the group are running, and would serve no clients without a configuration",
        "stop them first",
    )


def with_reset_in_sync(
    state: GroupState, version: int, before: GroupConfig | None, after: GroupConfig, wall_ms: int
) -> GroupState | None:
    """Return the record to write before the new configuration; None if it needs no change.

    A member that the previous mode counted as in sync may lack acknowledged messages, and must not be elected.

    Args:
        state: the group's record.
        version: of its node.
        before: the present configuration; None if there is none, or it is malformed.
        after: the new configuration.
        wall_ms: calendar time of the change.
    """
    if before is not None and before.mode is after.mode:
        return None
    if after.mode is Mode.STATIC or (
        before is not None and before.mode is not Mode.STATIC and after.mode is not Mode.ELECT
    ):
        return None
    if state.master == NOBODY or state.in_sync == (state.master,):
        return None
    reason = f"mode {after.mode.value} is configured"
    new = replace(state, in_sync=(state.master,), since_ms=wall_ms, reason=reason, by=NOBODY)
    return with_change(new, version + 1)
