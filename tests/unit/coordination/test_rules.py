"""Truth tables: permissions in every state, the isolated master, leases, elections and the in-sync set."""

import itertools

import pytest

from tandemq.coordination.election import Candidate, may_become_master, rank_of
from tandemq.coordination.in_sync import InSync
from tandemq.coordination.lease import FOREVER, HEARTBEATS_KEPT, Lease, drift_of, is_lonely, timing
from tandemq.coordination.liveness import AbsenceChecks, GroupPeer
from tandemq.coordination.permission import granted_permission, holder_of
from tandemq.coordination.registry.records import NOBODY, BrokerPermission, GroupMode, GroupState
from tandemq.coordination.slave_consume import may_take_reading
from tests.spec import spec

NORMAL = GroupState(1, 0, (0, 1), GroupMode.NORMAL, 0)
CONSUMING = GroupState(1, 0, (0, 1), GroupMode.SLAVE_CONSUME, 1)
READ_PART = {
    BrokerPermission.FULL: BrokerPermission.READ,
    BrokerPermission.WRITE: BrokerPermission.NONE,
    BrokerPermission.READ: BrokerPermission.READ,
    BrokerPermission.NONE: BrokerPermission.NONE,
}


@spec("F12", "F06")
@pytest.mark.parametrize("configured", list(BrokerPermission))
def test_permission_by_state(configured: BrokerPermission) -> None:
    assert granted_permission(configured, 0, NORMAL) is configured
    assert granted_permission(configured, 1, NORMAL) is BrokerPermission.NONE
    assert granted_permission(configured, 0, CONSUMING) is BrokerPermission.NONE
    assert granted_permission(configured, 1, CONSUMING) is READ_PART[configured]
    assert (
        granted_permission(configured, 2, NORMAL)
        is granted_permission(configured, 2, CONSUMING)
        is BrokerPermission.NONE
    )
    assert granted_permission(configured, 0, None) is BrokerPermission.NONE


@spec("F09")
def test_record_with_the_master_as_slave_reader_permits_no_member() -> None:
    assert holder_of(GroupState(1, 0, (0, 1), GroupMode.SLAVE_CONSUME, 0)) == NOBODY


@spec("F31", "F28", "F29")
@pytest.mark.parametrize("facts", list(itertools.product((False, True), repeat=5)))
def test_master_is_isolated_only_if_all_five_conditions_hold(facts: tuple[bool, bool, bool, bool, bool]) -> None:
    is_master, assigned, once, alone, lost = facts
    lonely = is_lonely(
        is_master=is_master,
        has_slave_assigned=assigned,
        slave_once_connected=once,
        no_slave_connected=alone,
        registry_lost=lost,
    )
    assert lonely is (facts == (True, True, True, True, True))


@spec("F13", "F17", "F19")
@pytest.mark.parametrize("mine", list(BrokerPermission))
@pytest.mark.parametrize("masters", list(BrokerPermission))
def test_slave_takes_reading_only_if_both_are_configured_to_read(
    mine: BrokerPermission, masters: BrokerPermission
) -> None:
    both_read = mine in (BrokerPermission.FULL, BrokerPermission.READ) and masters in (
        BrokerPermission.FULL,
        BrokerPermission.READ,
    )
    assert may_take_reading(NORMAL, 1, mine, masters) is both_read
    assert not may_take_reading(CONSUMING, 1, mine, masters)
    assert not may_take_reading(NORMAL, 2, mine, masters), "never connected"
    assert not may_take_reading(NORMAL, 0, mine, masters), "the master itself"


@pytest.mark.parametrize("session_ms", [100, 200, 500, 1_000, 2_000, 4_000, 6_000, 20_000, 40_000])
@pytest.mark.parametrize("checks", [1, 2, 5])
def test_lease_ends_before_a_takeover_is_possible(session_ms: int, checks: int) -> None:
    times = timing(session_ms, checks=checks)
    assert (times.checks - 1) * times.check_ms + session_ms > times.lease_ms + times.drift_ms
    assert times.checks >= checks
    assert times.silence_ms >= times.lease_ms + drift_of(times.lease_ms)


def test_default_timeouts() -> None:
    times = timing(2_000)
    assert (times.lease_ms, times.checks, times.check_ms) == (1_300, 2, 1_000)


@spec("F15", "F16")
def test_lease_is_held_while_registry_or_all_peers_grant_it() -> None:
    lease = Lease()
    assert lease.until_ms({2, 3}, 1_300) < 0
    lease.confirmed(1_000)
    assert lease.until_ms({2, 3}, 1_300) == 2_300
    number = lease.next_heartbeat(5_000)
    lease.echoed(2, number)
    assert lease.until_ms({2, 3}, 1_300) == 2_300, "one of two has promised"
    lease.echoed(3, number)
    assert lease.until_ms({2, 3}, 1_300) == 6_300
    assert lease.until_ms((), 1_300) == FOREVER, "nobody can take over"


def test_echo_of_an_unsent_heartbeat_grants_nothing() -> None:
    lease = Lease()
    lease.echoed(2, 7)
    assert lease.until_ms({2}, 1_300) < 0
    old = lease.next_heartbeat(0)
    for sent_ms in range(1, HEARTBEATS_KEPT + 1):
        lease.next_heartbeat(sent_ms)
    lease.echoed(2, old)
    assert lease.until_ms({2}, 1_300) < 0, "forgotten"


@spec("F15")
def test_late_echo_counts_while_commits_make_many_heartbeats() -> None:
    lease = Lease()
    first = lease.next_heartbeat(10)
    for sent_ms in range(20, 1_000, 10):
        lease.next_heartbeat(sent_ms)
    lease.echoed(2, first)
    assert lease.until_ms({2}, 1_300) == 1_310


@spec("F17")
def test_only_consecutive_checks_count() -> None:
    checks = AbsenceChecks()
    checks.begin(1_000)
    assert checks.is_due(1_000, 1_000) and not checks.is_due(1_900, 1_000)
    checks.found(holds=True)
    assert checks.is_due(2_000, 1_000)
    checks.found(holds=False)
    assert checks.count == 0
    checks.found(holds=True)
    checks.reset()
    assert checks.count == 0 and checks.next_ms is None


@spec("R11")
def test_election_order_is_history_then_priority_then_id() -> None:
    line = [Candidate(1, 7, 100, 0), Candidate(2, 7, 200, 0), Candidate(3, 8, 50, 0), Candidate(4, 7, 100, 5)]
    assert [rank_of(one.broker_id, line) for one in line] == [3, 1, 0, 2]
    assert rank_of(2, [Candidate(1, 7, 100, 0), Candidate(2, 7, 100, 0)]) == 1
    assert not may_become_master(is_in_sync=False, is_log_whole=True, is_forced=False)
    assert not may_become_master(is_in_sync=True, is_log_whole=False, is_forced=False)
    assert may_become_master(is_in_sync=True, is_log_whole=True, is_forced=False)
    assert may_become_master(is_in_sync=False, is_log_whole=False, is_forced=True)


# The in-sync set.


def linked(acked: int, caught_up_ms: int = 0) -> GroupPeer:
    return GroupPeer(0, is_linked=True, acked=acked, caught_up_ms=caught_up_ms, tables_ms=caught_up_ms, has_tables=True)


def next_set(
    sync: InSync, now_ms: int, peers: dict[int, GroupPeer], gone: tuple[int, ...] = ()
) -> frozenset[int] | None:
    return sync.next_members(now_ms, peers, gone=gone, candidates={1, 2, 3}, lag_ms_max=15_000)


@spec("R11")
def test_joining_slave_must_acknowledge_and_joins_at_the_confirm_offset() -> None:
    sync = InSync(1, (1,))
    sync.serve(100, 0, now_ms=0)
    assert sync.confirm(150, {}) == 150
    peers = {2: linked(140, caught_up_ms=1_000)}
    assert next_set(sync, 1_000, peers) is None, "it does not have what was acknowledged"
    assert sync.must_ack == {1, 2}
    assert sync.confirm(200, peers) == 150, "nothing more is acknowledged without it"
    peers[2].acked = 150
    assert next_set(sync, 1_100, peers) == frozenset({1, 2})
    sync.adopt((1,), (1, 2))
    assert sync.confirm(200, peers) == 150
    peers[2].acked = 180
    assert sync.confirm(200, peers) == 180


@spec("R11")
def test_slave_joins_only_with_the_published_metadata() -> None:
    sync = InSync(1, (1,))
    sync.serve(100, 100, now_ms=0)
    peers = {2: linked(100, caught_up_ms=1_000)}
    peers[2].has_tables = False
    assert next_set(sync, 1_000, peers) is None
    assert sync.must_ack == {1, 2}, "and answers wait for it meanwhile"
    peers[2].has_tables = True
    assert next_set(sync, 1_100, peers) == frozenset({1, 2})


def test_slave_that_stops_while_joining_delays_acknowledgements_for_at_most_a_second() -> None:
    sync = InSync(1, (1,))
    sync.serve(100, 0, now_ms=0)
    sync.confirm(150, {})
    peers = {2: linked(140, caught_up_ms=1_000)}
    next_set(sync, 1_000, peers)
    assert sync.must_ack == {1, 2}
    assert next_set(sync, 2_001, peers) is None
    assert sync.must_ack == {1} and sync.confirm(200, peers) == 200


@spec("R11")
def test_slave_joins_only_with_the_log_from_before_the_mastership() -> None:
    sync = InSync(1, (1, 2))
    sync.serve(100, 0, now_ms=0)
    peers = {2: linked(100, 900), 3: linked(60, 900)}
    sync.confirm(100, {2: GroupPeer(heard_ms=0)})
    assert next_set(sync, 1_000, peers) is None, (
        "nothing is confirmed yet, but up to 100 may have been acknowledged before"
    )
    peers[3].acked = 100
    sync.confirm(100, peers)
    assert next_set(sync, 1_000, peers) == frozenset({1, 2, 3})


@spec("R11")
def test_removal_takes_effect_when_the_registry_has_stored_it() -> None:
    sync = InSync(1, (1, 2))
    sync.serve(100, 100, now_ms=0)
    peers = {2: linked(100, caught_up_ms=0)}
    assert next_set(sync, 15_000, peers) is None
    assert next_set(sync, 15_001, peers) == frozenset({1})
    sync.adopt((1, 2), (1,))
    assert sync.must_ack == {1, 2}
    assert sync.confirm(200, peers) == 100
    assert next_set(sync, 15_002, peers) is None, "one change at a time"
    sync.adopt((1,), ())
    assert sync.must_ack == {1} and sync.confirm(200, peers) == 200


@spec("R11")
def test_slave_that_cannot_save_metadata_leaves_and_does_not_join() -> None:
    sync = InSync(1, (1, 2))
    sync.serve(100, 100, now_ms=0)
    peers = {2: linked(100, caught_up_ms=20_000)}
    peers[2].tables_ms = 4_999
    assert next_set(sync, 19_999, peers) is None
    assert next_set(sync, 20_000, peers) == frozenset({1})
    sync.adopt((1,), ())
    assert next_set(sync, 20_001, peers) is None
    assert sync.must_ack == {1}, "no response waits for it while it does not keep up"
    peers[2].tables_ms = 20_002
    assert next_set(sync, 20_002, peers) == frozenset({1, 2})


def test_slave_missing_in_registry_and_disconnected_leaves_at_once() -> None:
    sync = InSync(1, (1, 2))
    sync.serve(100, 100, now_ms=0)
    peers = {2: linked(100, caught_up_ms=900)}
    assert next_set(sync, 1_000, peers, gone=(2,)) is None, "its link lives"
    peers[2].is_linked = False
    assert next_set(sync, 1_000, peers, gone=(2,)) == frozenset({1})


def test_confirm_offset_never_decreases() -> None:
    sync = InSync(1, (1, 2))
    sync.serve(100, 0, now_ms=0)
    peers = {2: linked(90)}
    assert sync.confirm(100, peers) == 90
    peers[2].is_linked = False
    assert sync.confirm(120, peers) == 90
    peers[2] = linked(10)
    assert sync.confirm(120, peers) == 90
