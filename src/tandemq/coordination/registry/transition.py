"""From one configuration of a group to the next: what would lose something, and what must be forgotten first.

Whoever writes a configuration into the registry asks here (`groupdb.publisher`, `run.groups`): the record of the group
and the brokers that live must allow it. What contradicts itself is refused before (`records.contradictions`).

    mode before       after                          in-sync set of the record
    static            slave-consume, elect           the master alone: nobody noted who fell behind
    slave-consume     elect                          the master alone: there it says who was ever connected
    unknown           slave-consume, elect           the master alone

Owner: nobody; plain functions. Source: docs/guides/failover.md, "Group configuration".
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from tandemq.coordination.registry.records import NOBODY, GroupConfig, GroupMode, GroupState, Mode

MASTER_ID = 0
"""Of the master where roles are fixed."""


class Objection(NamedTuple):
    """Why a configuration may not follow the present one, and what to do about it."""

    why: str
    what_to_do: str

    def __str__(self) -> str:
        """Both, for a line."""
        return f"{self.why}: {self.what_to_do}"


def objection(
    state: GroupState, living: Collection[int], before: GroupConfig | None, after: GroupConfig
) -> Objection | None:
    """Why this configuration would lose something as the group stands now; None if it may be written.

    Args:
        state: the group's record.
        living: ids of the brokers that have a live node.
        before: the configuration it takes the place of; None: there is none, or it cannot be read.
        after: the new one.
    """
    for broker_id, does in ((state.master, "is master"), (state.reader, "serves reads")):
        if broker_id != NOBODY and after.member(broker_id) is None:
            return Objection(
                f"broker {broker_id} {does} at present, and is unknown in this configuration", "switch first"
            )
    if before is not None and before.mode is after.mode:
        return None
    if after.mode is not Mode.ELECT and state.master not in (MASTER_ID, NOBODY):
        return Objection(
            f"broker {state.master} is its master", f"switch to broker {MASTER_ID} (tandemq ha switch), stop it"
        )
    if after.mode is not Mode.SLAVE_CONSUME and state.mode is GroupMode.SLAVE_CONSUME:
        return Objection(
            f"broker {state.reader} still has consumers' offsets", "wait until it has handed them back, stop it"
        )
    if before is not None and living:
        listed = ", ".join(map(str, sorted(living)))
        return Objection(
            f"brokers {listed} run in mode {before.mode.value}, and members of two modes would not "
            "understand each other",
            "stop all brokers of the group",
        )
    return None


def removal_objection(living: Collection[int]) -> Objection:
    """Why a group whose brokers live may not lose its configuration: they would serve nobody from then on."""
    listed = ", ".join(map(str, sorted(living)))
    return Objection(
        f"brokers {listed} of the group run, and would serve nobody without a configuration", "stop them first"
    )


def forgotten(state: GroupState, before: GroupConfig | None, after: GroupConfig) -> GroupState | None:
    """The record as it must be before this configuration is; None: as it is.

    Whom the mode before counted as in sync may lack what was acknowledged, and could be elected.
    """
    if before is not None and before.mode is after.mode:
        return None
    if after.mode is Mode.STATIC or (
        before is not None and before.mode is not Mode.STATIC and after.mode is not Mode.ELECT
    ):
        return None
    if state.master == NOBODY or state.in_sync == (state.master,):
        return None
    return replace(state, in_sync=(state.master,), reason=f"mode {after.mode.value} is configured", by=NOBODY)
