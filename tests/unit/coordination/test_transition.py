"""Configuration changes permitted by a group's record and its live brokers, for all pairs of modes."""

from dataclasses import replace
from itertools import product

import pytest

from tandemq.coordination.registry.records import NOBODY, GroupConfig, GroupMember, GroupMode, GroupState, Mode, Role
from tandemq.coordination.registry.transition import objection, with_reset_in_sync
from tests.spec import spec

NORMAL = GroupState(3, 0, (0, 1), reader=0)
ELECTED = GroupState(3, 1, (0, 1), reader=1)
READ_FROM_SLAVE = GroupState(3, 0, (0, 1), GroupMode.SLAVE_CONSUME, 1)


def config(mode: Mode) -> GroupConfig:
    return GroupConfig(mode, (GroupMember(0, Role.MASTER), GroupMember(1, Role.SLAVE)))


@spec("F02", "F33")
@pytest.mark.parametrize(("before", "after"), list(product([None, *Mode], Mode)))
def test_each_pair_of_modes(before: Mode | None, after: Mode) -> None:
    known = None if before is None else config(before)
    is_other = before is not after
    assert (objection(NORMAL, (), known, config(after)) is None) is True
    assert (objection(ELECTED, (), known, config(after)) is None) is (not is_other or after is not Mode.STATIC)
    taken = objection(READ_FROM_SLAVE, (), known, config(after))
    assert (taken is None) is (not is_other or after is Mode.SLAVE_CONSUME)
    assert (objection(NORMAL, (0,), known, config(after)) is None) is (before is None or not is_other)
    begun = with_reset_in_sync(NORMAL, 7, known, config(after), 1_234)
    is_forgotten = is_other and (after is Mode.ELECT or (after is Mode.SLAVE_CONSUME and before in (None, Mode.STATIC)))
    assert (begun is not None) is is_forgotten
    if begun is not None:
        assert (begun.in_sync, begun.epoch, begun.by) == ((0,), 3, NOBODY)
        assert begun.since_ms == 1_234
        assert begun.changes[-1] == (8, 1_234), "members can compare it with what they have seen"


def test_serving_broker_must_stay_a_member() -> None:
    alone = replace(config(Mode.ELECT), members=(GroupMember(0, Role.MASTER),))
    found = objection(ELECTED, (), config(Mode.ELECT), alone)
    assert str(found) == "broker 1 is the master at present, but is not in this configuration: switch first"
    assert objection(GroupState(3, NOBODY, ()), (), config(Mode.ELECT), alone) is None
    assert with_reset_in_sync(GroupState(3, NOBODY, ()), 7, config(Mode.STATIC), alone, 1_234) is None
