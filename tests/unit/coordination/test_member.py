"""A member's own rules: what it promises, what it refuses to do and says, what it does after a start."""

from dataclasses import replace

import pytest

from tandemq.boundary import Now
from tandemq.codec.ha import Heartbeat
from tandemq.coordination.lease import timing
from tandemq.coordination.member import takeover
from tandemq.coordination.member.follower import RecordFollower
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import MemberStage, PermissionChanged
from tandemq.coordination.registry.interface import NodeFound, Read, Write
from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupMember,
    GroupMode,
    GroupState,
    Mode,
    Role,
    offsets_path,
    with_member,
)
from tests.spec import spec
from tests.unit.coordination.faults import Schedule
from tests.unit.coordination.node import CLUSTER, GROUP, Node
from tests.unit.coordination.world import Violation, World


def group(mode: Mode, size: int = 2, **settings: int) -> World:
    """A group in sync that serves, its clocks exact."""
    world = World(11, mode, size=size, drift_scale=0, traced=True, **settings)  # type: ignore[arg-type]
    world.run(3_000)
    assert len(world.record.in_sync) == size and world.readers() == [world.record.master]
    return world


def member_of(world: World, number: int) -> MemberMachine:
    found = world.nodes[number].member
    assert found is not None, "it lives"
    return found


def beat(world: World, number: int, sender: int, epoch: int) -> int:
    """What a member answers to a heartbeat of another."""
    node = world.nodes[number]
    return member_of(world, number).on_heartbeat(sender, Heartbeat(epoch, 77, 1_300, 0, 0), node.clock())


# Promises.


@spec("F09")
def test_member_grants_leases_only_to_the_holder_of_its_known_epoch() -> None:
    world = group(Mode.ELECT, 3)
    assert beat(world, 2, 1, epoch=1) == 77
    assert beat(world, 2, 3, epoch=1) == 0, "another slave"
    assert beat(world, 2, 1, epoch=2) == beat(world, 2, 1, epoch=0) == 0


@spec("F09")
def test_member_that_is_taking_over_grants_no_lease() -> None:
    world = group(Mode.ELECT)
    world.cut_registry(1)
    world.cut_link(1, 2)
    assert world.step_until(lambda: member_of(world, 2).view.pending is not None, 8_000)
    assert beat(world, 2, 1, epoch=1) == 0


def test_member_that_has_not_read_the_record_grants_no_lease_and_does_not_serve() -> None:
    world = World(1, Mode.ELECT, started=False)
    world.stop_registry()
    world.nodes[1].start()
    world.run(60_000)
    assert member_of(world, 1).stage is MemberStage.UNREAD
    assert beat(world, 1, 2, epoch=1) == 0 and world.readers() == world.writers() == []
    assert member_of(world, 1).heartbeat(world.nodes[1].clock()) is None


# Times.


def test_longer_session_makes_a_longer_lease() -> None:
    world = group(Mode.ELECT)
    status = member_of(world, 1).status(world.nodes[1].clock())
    assert (status.session_ms, status.lease_ms, status.checks) == (2_000, 1_300, 2)
    assert timing(4_000).lease_ms == 2_600


@spec("F14")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_reads_continue_within_4_seconds_of_a_kill(mode: Mode) -> None:
    world = group(mode)
    world.nodes[world.record.master].crash()
    killed = world.now
    assert world.run_until(lambda: bool(world.readers()), 10_000)
    assert world.now - killed <= 4_000


def test_master_tells_how_long_ago_it_took_over_and_only_then() -> None:
    world = group(Mode.ELECT)
    first = world.record.master
    assert member_of(world, first).status(world.nodes[first].clock()).took_ms_ago is None
    world.nodes[first].crash()
    assert world.run_until(lambda: bool(world.writers()), 10_000)
    second = world.record.master
    began = member_of(world, second).status(world.nodes[second].clock()).took_ms_ago
    assert began is not None and began < 1_000
    world.run(world.now + 5_000)
    later = member_of(world, second).status(world.nodes[second].clock()).took_ms_ago
    assert later is not None and 4_900 <= later - began <= 5_100
    world.nodes[first].start()
    assert world.run_until(lambda: len(world.record.in_sync) == 2, 60_000)
    assert member_of(world, second).switch(first, world.nodes[second].clock()).is_accepted
    assert world.run_until(lambda: world.record.master == first and bool(world.writers()), 10_000)
    for number in (first, second):
        assert member_of(world, number).status(world.nodes[number].clock()).took_ms_ago is None


def test_expired_permission_is_reported_with_the_end_of_its_lease() -> None:
    member = member_of(group(Mode.ELECT), 1)
    until = member._facts.lease.until_ms()
    member.permit(Now(until + 4_000, 0))
    (change,) = (effect for effect in member.next_effects() if isinstance(effect, PermissionChanged))
    assert change[:2] == (False, False)
    assert change.at_ms == until


@spec("V18")
def test_writes_continue_within_half_a_second_of_a_switch() -> None:
    world = group(Mode.ELECT)
    node = world.nodes[1]
    assert member_of(world, 1).switch(2, node.clock()).is_accepted
    node.after_input()
    began = world.now
    assert world.run_until(lambda: world.writers() == [2], 5_000)
    assert world.now - began <= 500


@spec("F25")
def test_offset_handover_takes_at_most_3_seconds() -> None:
    world = group(Mode.SLAVE_CONSUME)
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [1], 10_000)
    world.nodes[0].start()
    began = world.now
    assert world.run_until(lambda: world.readers() == [0], 10_000)
    assert world.now - began <= 3_000


@spec("V18")
def test_master_whose_device_failed_hands_over_within_half_a_second() -> None:
    world = group(Mode.ELECT)
    node = world.nodes[1]
    member_of(world, 1).refuse_log(node.clock())
    node.after_input()
    began = world.now
    assert world.run_until(lambda: world.writers() == [2], 5_000)
    assert world.now - began <= 500
    assert "as broker 1 cannot write to its device" in "".join(node.notes)


def test_master_whose_device_failed_hands_over_as_soon_as_another_member_is_in_sync() -> None:
    world = group(Mode.ELECT)
    world.nodes[2].crash()
    assert world.run_until(lambda: world.record.in_sync == (1,), 20_000)
    node = world.nodes[1]
    member_of(world, 1).refuse_log(node.clock())
    node.after_input()
    world.run(world.now + 5_000)
    assert world.readers() == [1]
    world.nodes[2].start()
    assert world.run_until(lambda: world.writers() == [2], 60_000)


# Operators.


def refusal_of_switch(world: World, asked: int, target: int) -> str:
    verdict = member_of(world, asked).switch(target, world.nodes[asked].clock())
    assert not verdict.is_accepted
    return verdict.text


@spec("V18")
def test_switch_is_refused_with_the_reason() -> None:
    world = group(Mode.ELECT, switch_lag_bytes_max=10)
    assert "broker 1 is the master already" in member_of(world, 2).switch(1, world.nodes[2].clock()).text
    assert "not the serving master" in refusal_of_switch(world, 2, 2)
    assert "not a member" in refusal_of_switch(world, 1, 9)
    world.stalled.add((1, 2))
    world.nodes[1].log += range(100, 130)
    member_of(world, 1).on_log(len(world.nodes[1].log), 1)
    assert "lags by" in refusal_of_switch(world, 1, 2)


@spec("V18")
def test_failed_switch_leaves_the_master_unchanged() -> None:
    world = group(Mode.ELECT)
    world.stalled.add((1, 2))
    world.nodes[1].log += [1, 2, 3]
    node = world.nodes[1]
    member_of(world, 1).on_log(len(node.log), 1)
    assert member_of(world, 1).switch(2, node.clock()).is_accepted
    node.after_input()
    assert world.writers() == []
    assert world.run_until(lambda: bool(node.done), 5_000)
    assert not node.done[0].is_done and "not switched" in node.done[0].text
    assert world.run_until(lambda: world.writers() == [1], 1_000)
    assert world.record.epoch == 1


@spec("V18")
def test_master_serves_again_after_an_unwritten_switch_even_without_a_registry() -> None:
    world = group(Mode.ELECT)
    world.cut_links.add(frozenset((1, 2)))  # calls are lost, the open link stays
    node = world.nodes[1]
    assert member_of(world, 1).switch(2, node.clock()).is_accepted
    node.after_input()
    for number in world.nodes:
        world.cut_registry(number)
    assert world.run_until(lambda: bool(node.done), 5_000)
    assert not node.done[0].is_done
    assert world.writers() == [1]
    world.run(world.now + 5_000)
    assert world.writers() == [1]


@spec("F30")
def test_force_is_refused_while_the_holder_is_live_or_not_needed() -> None:
    world = group(Mode.ELECT)
    verdict = member_of(world, 2).force_master(world.nodes[2].clock())
    assert not verdict.is_accepted and "broker 1 is alive" in verdict.text
    assert member_of(world, 1).force_master(world.nodes[1].clock()).is_done
    other = group(Mode.SLAVE_CONSUME)
    verdict = member_of(other, 1).force_master(other.nodes[1].clock())
    assert not verdict.is_accepted and "broker 0 is alive" in verdict.text


@spec("F30")
@pytest.mark.parametrize(("after_ms", "expected"), [(0, []), (5_000, [0])])
def test_master_takes_reading_back_automatically_only_if_configured(after_ms: int, expected: list[int]) -> None:
    world = group(Mode.SLAVE_CONSUME, unclean_hand_back_after_ms=after_ms)
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [1], 10_000)
    world.nodes[1].crash()
    world.nodes[0].start()
    world.run(world.now + 30_000)
    assert world.readers() == expected
    status = member_of(world, 0).status(world.nodes[0].clock())
    assert expected or (status.stage is MemberStage.AWAITING and "force-master" in status.why)


def read_at_slave(world: World, count: int, unread: int = 0) -> None:
    """The master dies, the slave reads; some messages are consumed there, one every 100 ms."""
    for message in range(count + unread):
        world.nodes[0].take_message(message)
    world.run(world.now + 200)
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [1], 10_000)
    for _ in range(count):
        world.nodes[1].consume(1)
        world.run(world.now + 100)


@spec("F42")
def test_master_that_returns_alone_takes_reading_back_with_the_offsets_in_the_registry() -> None:
    world = group(Mode.SLAVE_CONSUME)
    read_at_slave(world, 50)
    world.nodes[1].crash()
    assert world.nodes[0].offset == 0
    world.nodes[0].start()
    assert not world.run_until(lambda: world.readers() == [0], 25_000), "the reader may still return"
    assert world.run_until(lambda: world.readers() == [0], 15_000)
    assert 38 <= world.nodes[0].offset <= 50
    assert "with the offsets that it had copied" in world.record.reason
    world.nodes[1].start()
    assert world.run_until(lambda: len(world.record.in_sync) == 2, 10_000)
    assert world.record.reading_since == 0


@spec("F42", "F30")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_forced_master_has_the_offsets_that_a_reader_copied_before_and_after_its_restart(is_restarted: bool) -> None:
    world = group(Mode.SLAVE_CONSUME)
    read_at_slave(world, 30, unread=10)
    if is_restarted:
        world.nodes[1].crash()
        world.run(world.now + 1_000)
        world.nodes[1].start()
        assert world.run_until(lambda: world.readers() == [1], 10_000)
    world.nodes[1].consume(10)
    world.run(world.now + 2_000)
    world.nodes[1].crash()
    world.nodes[0].start()
    world.run(world.now + 2_500)
    assert member_of(world, 0).force_master(world.nodes[0].clock()).is_accepted
    world.is_unclean = True
    assert world.run_until(lambda: world.readers() == [0], 15_000)
    assert world.nodes[0].offset == 40


@spec("F42")
def test_offsets_of_an_earlier_reading_do_not_count() -> None:
    world = group(Mode.SLAVE_CONSUME, unclean_hand_back_after_ms=3_000)
    read_at_slave(world, 30)
    world.run(world.now + 2_000)
    world.nodes[0].start()
    assert world.run_until(lambda: world.readers() == [0], 10_000)
    world.nodes[0].offset = 5  # an operator reset it
    world.nodes[1].commits.clear()
    world.run(world.now + 2_000)
    world.nodes[0].crash()
    world.nodes[1].offset = 5
    assert world.run_until(lambda: world.readers() == [1], 10_000)
    world.nodes[1].crash()
    world.nodes[0].start()
    assert world.run_until(lambda: world.readers() == [0], 15_000)
    assert world.nodes[0].offset == 5
    assert "without its offsets" in world.record.reason


@spec("F42")
def test_what_was_committed_during_a_handover_that_was_given_up_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    world = group(Mode.SLAVE_CONSUME, unclean_hand_back_after_ms=3_000)
    read_at_slave(world, 20, unread=20)
    monkeypatch.setattr(MemberMachine, "may_take_offsets", lambda *_: False)
    world.nodes[0].start()
    assert world.run_until(lambda: world.stage(1) is MemberStage.HANDING, 10_000)
    while world.stage(1) is MemberStage.HANDING:
        world.nodes[1].consume(1)
        world.run(world.now + 100)
    assert world.nodes[1].offset > 20
    committed = world.nodes[1].offset
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [1], 10_000)
    world.run(world.now + 2_000)
    world.nodes[1].crash()
    world.nodes[0].start()
    assert world.run_until(lambda: world.readers() == [0], 20_000)
    assert world.nodes[0].offset == committed


@spec("F42")
def test_copy_that_the_registry_did_not_take_is_written_again() -> None:
    world = group(Mode.SLAVE_CONSUME, unclean_hand_back_after_ms=3_000)
    read_at_slave(world, 20, unread=10)
    path = offsets_path(CLUSTER, GROUP)
    found = world.tree.execute(world.admin, Read(path))
    assert isinstance(found, NodeFound)
    world.tree.execute(world.admin, Write(path, b"not what a reader writes", found.version))
    world.nodes[1].consume(10)
    world.run(world.now + 4_000)
    world.nodes[1].crash()
    world.nodes[0].start()
    assert world.run_until(lambda: world.readers() == [0], 15_000)
    assert world.nodes[0].offset == 30


# A log that may have lost something.


def lose(node: Node, keep: int) -> None:
    node.crash()
    del node.log[keep:]
    node.is_whole = False


@spec("R11")
def test_master_that_lost_the_end_of_its_log_resigns_to_a_member_in_sync() -> None:
    world = group(Mode.ELECT)
    for message in range(5):
        world.nodes[1].take_message(message)
    world.run(world.now + 200)
    lose(world.nodes[1], 2)
    world.nodes[1].start()
    assert world.run_until(lambda: world.writers() == [2], 6_000)
    assert world.record.epoch == 2
    assert world.run_until(lambda: world.nodes[1].log == world.nodes[2].log == [0, 1, 2, 3, 4], 3_000)
    assert world.run_until(lambda: member_of(world, 1).is_log_whole, 3_000)


def emptied_slave_alone() -> World:
    """The slave lost its store, and then its master died."""
    world = group(Mode.ELECT)
    for message in range(5):
        world.nodes[1].take_message(message)
    world.run(world.now + 200)
    lose(world.nodes[2], 0)
    world.cut_links.add(frozenset((1, 2)))
    world.nodes[2].start()
    world.nodes[1].crash()
    return world


def test_without_that_rule_a_slave_with_an_emptied_store_would_lose_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "may_become_master", lambda **facts: facts["is_in_sync"])
    monkeypatch.setattr(RecordFollower, "_may_lead", lambda _: True)
    world = emptied_slave_alone()
    with pytest.raises(Violation):
        world.run(world.now + 20_000)


@spec("R11")
def test_slave_with_an_emptied_store_is_not_elected() -> None:
    world = emptied_slave_alone()
    world.run(world.now + 20_000)
    assert world.writers() == [] and world.record.master == 1
    world.nodes[1].start()
    world.heal()
    assert world.run_until(lambda: world.nodes[2].log == [0, 1, 2, 3, 4], 6_000)


@spec("R11")
def test_master_with_a_failed_flush_resigns_to_a_member_in_sync() -> None:
    world = group(Mode.ELECT)
    node = world.nodes[1]
    member_of(world, 1).doubt_log("fdatasync failed", node.clock())
    assert world.writers() == [], "at once"
    node.after_input()
    assert world.run_until(lambda: world.writers() == [2], 1_000)
    assert world.run_until(lambda: member_of(world, 1).is_log_whole, 3_000)


@spec("R11")
def test_member_without_write_permission_is_not_elected() -> None:
    world = group(Mode.ELECT)
    world.configure(with_member(world.config, GroupMember(2, Role.SLAVE, BrokerPermission.READ)))
    world.run(world.now + 500)
    assert "may not be written to" in refusal_of_switch(world, 1, 2)
    world.nodes[1].crash()
    world.run(world.now + 10_000)
    assert world.record.master == 1


def test_only_an_operator_accepts_the_loss_if_no_other_member_is_in_sync() -> None:
    world = group(Mode.ELECT)
    world.nodes[2].crash()
    assert world.run_until(lambda: world.record.in_sync == (1,), 20_000)
    lose(world.nodes[1], 0)
    world.nodes[1].start()
    world.run(world.now + 10_000)
    assert world.writers() == [] and "may be lost" in member_of(world, 1).why
    node = world.nodes[1]
    assert member_of(world, 1).force_master(node.clock()).is_accepted
    node.after_input()
    assert world.run_until(lambda: world.writers() == [1], 3_000)
    assert world.record.epoch == 2, "what is written now is another history"


# Configuration and start.


@spec("F02", "V17")
def test_role_comes_from_the_registry_at_the_start_and_on_change() -> None:
    world = group(Mode.ELECT, 3)
    assert (world.stage(1), world.stage(2), world.stage(3)) == (
        MemberStage.SERVING,
        MemberStage.SLAVE,
        MemberStage.SLAVE,
    )
    world.nodes[2].crash()
    world.nodes[2].start()
    assert world.run_until(lambda: world.stage(2) is MemberStage.SLAVE, 5_000)
    state: GroupState = world.record
    world.write_state(replace(state, epoch=state.epoch + 1, master=3, reader=3))
    assert world.run_until(lambda: world.writers() == [3] and world.stage(1) is MemberStage.SLAVE, 5_000)


@spec("F10")
def test_removed_permission_ends_at_once() -> None:
    world = group(Mode.SLAVE_CONSUME)
    world.configure(with_member(world.config, GroupMember(0, Role.MASTER, BrokerPermission.NONE)))
    assert world.run_until(lambda: world.readers() == world.writers() == [], 500)
    assert not member_of(world, 0).may_commit(world.nodes[0].clock().mono_ms)
    world.run(world.now + 10_000)
    assert world.readers() == [] and world.record.mode is GroupMode.NORMAL


def test_changed_mode_takes_effect_at_the_next_start_and_is_reported() -> None:
    world = group(Mode.ELECT)
    members = (GroupMember(0, Role.MASTER), GroupMember(1, Role.SLAVE), GroupMember(2, Role.SLAVE))
    world.configure(replace(world.config, mode=Mode.SLAVE_CONSUME, members=members))
    world.run(world.now + 1_000)
    status = member_of(world, 1).status(world.nodes[1].clock())
    assert status.mode is Mode.ELECT and "restart them to change the mode" in status.trouble


def test_broker_that_is_not_a_member_does_not_serve_and_reports_it() -> None:
    world = group(Mode.ELECT)
    world.configure(replace(world.config, members=tuple(m for m in world.config.members if m.broker_id != 1)))
    assert world.run_until(lambda: world.stage(1) is MemberStage.UNREAD, 1_000)
    assert 1 not in world.readers() and "configuration" in member_of(world, 1).why


@spec("F30")
def test_both_dead_and_only_the_slave_returns() -> None:
    world = group(Mode.ELECT)
    world.nodes[1].crash()
    world.nodes[2].crash()
    world.run(world.now + 30_000)
    world.nodes[2].start()
    assert world.run_until(lambda: world.writers() == [2], 6_000)
    assert world.record.epoch == 2


def dropped(world: World, number: int) -> None:
    """Remove one member from the configuration."""
    world.configure(replace(world.config, members=tuple(m for m in world.config.members if m.broker_id != number)))


@spec("R11", "V18")
def test_member_removed_from_the_configuration_leaves_the_in_sync_set() -> None:
    world = group(Mode.ELECT, size=3)
    assert world.run_until(lambda: world.record.in_sync == (1, 2, 3), 5_000)
    dropped(world, 3)
    assert world.run_until(lambda: world.record.in_sync == (1, 2), 3_000)
    world.run(world.now + 3_000)
    assert world.record.in_sync == (1, 2)
    assert member_of(world, 1).must_ack == {1, 2}


@spec("R11")
def test_master_resigns_to_a_member_with_write_permission() -> None:
    world = group(Mode.ELECT, size=3)
    assert world.run_until(lambda: world.record.in_sync == (1, 2, 3), 5_000)
    rights = {1: BrokerPermission.FULL, 2: BrokerPermission.READ, 3: BrokerPermission.FULL}
    members = tuple(replace(one, permission=rights[one.broker_id]) for one in world.config.members)
    world.configure(replace(world.config, members=members))
    world.run(world.now + 500)
    world.nodes[1].input(lambda m, now: m.doubt_log("a flush failed", now, is_final=True))
    assert world.run_until(lambda: world.writers() == [3], 6_000)
    assert 2 in world.record.in_sync


@spec("R11")
def test_members_without_write_permission_do_not_delay_an_election() -> None:
    world = group(Mode.ELECT, size=3)
    members = tuple(
        replace(
            one,
            permission=BrokerPermission.READ if one.broker_id == 2 else BrokerPermission.FULL,
            priority=int(one.broker_id == 2),
        )
        for one in world.config.members
    )
    world.configure(replace(world.config, members=members))
    assert world.run_until(lambda: world.record.in_sync == (1, 2, 3), 5_000)
    world.run(world.now + 500)
    candidate = member_of(world, 3)
    assert candidate._takeover._place((1,)) == 0
    world.nodes[1].crash()
    assert world.run_until(lambda: world.writers() == [3], 6_000)


def test_unchanged_write_of_the_record_is_not_a_claim_of_a_master_with_a_lost_log_end() -> None:
    """Regression: the proposal of a successor had an unknown outcome, and the record was written again."""
    Schedule(2109).run()
