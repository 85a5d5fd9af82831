"""Roles of slave-consume groups: any member may be the configured master, switches, promotion, several slaves."""

from dataclasses import replace

import pytest

from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.member.takeover import Takeover
from tandemq.coordination.registry.records import BrokerPermission, GroupMode, Mode, Role
from tests.spec import spec
from tests.unit.coordination.world import World


def group(size: int = 2, master: int = 0) -> World:
    """Return a group with messages, all members in sync."""
    world = World(11, Mode.SLAVE_CONSUME, size=size, master=master, drift_scale=0)
    assert world.run_until(lambda: is_served(world, master) and len(world.record.in_sync) == size, 5_000)
    offer(world, 10)
    return world


def is_served(world: World, master: int) -> bool:
    record = world.record
    is_normal = record is not None and record.mode is GroupMode.NORMAL and record.master == master
    return is_normal and world.readers() == world.writers() == [master]


def offer(world: World, count: int) -> None:
    for _ in range(count):
        world.traffic()
        world.run(world.now + 50)


def configure_master(world: World, chosen: int) -> None:
    members = tuple(
        replace(one, role=Role.MASTER if one.broker_id == chosen else Role.SLAVE) for one in world.config.members
    )
    world.config = replace(world.config, members=members)
    world.configure(world.config)


def restart(world: World, number: int) -> None:
    world.nodes[number].crash()
    world.nodes[number].start()


def force(world: World, number: int, *, is_preview: bool = False) -> str:
    member = world.nodes[number].member
    assert member is not None
    result = member.force_master(world.nodes[number].clock(), is_preview=is_preview)
    world.nodes[number].after_input()
    return result.text if result.is_accepted else f"refused: {result.text}"


@spec("F02", "F12")
@pytest.mark.parametrize("master", [0, 1, 2])
def test_any_member_can_be_the_configured_master(master: int) -> None:
    world = group(3, master)
    world.nodes[master].crash()
    assert world.run_until(lambda: world.record.mode is GroupMode.SLAVE_CONSUME, 8_000)
    assert world.run_until(lambda: len(world.readers()) == 1, 500)
    assert world.writers() == []
    world.nodes[master].start()
    assert world.run_until(lambda: is_served(world, master), 10_000)


@spec("F02")
def test_changed_master_takes_effect_when_the_present_one_starts_again() -> None:
    world = group()
    configure_master(world, 1)
    offer(world, 100)
    assert is_served(world, 0), "not while it runs"
    restart(world, 1)
    offer(world, 100)
    assert is_served(world, 0), "nor by a start of the other one alone"
    restart(world, 0)
    assert world.run_until(lambda: is_served(world, 1), 10_000)
    world.check_history(world.nodes[1])
    assert world.record.reason == "switch from broker 0 to 1 as configured"


@spec("F02")
def test_configured_master_takes_over_when_it_has_the_whole_log() -> None:
    world = group(3)
    configure_master(world, 2)
    world.nodes[2].crash()
    offer(world, 50)
    restart(world, 0)
    assert world.run_until(lambda: is_served(world, 0), 10_000), "its present master serves until then"
    offer(world, 20)
    world.nodes[2].start()
    assert world.run_until(lambda: is_served(world, 2), 10_000)
    world.check_history(world.nodes[2])


@spec("F02", "V18")
def test_switch_hands_over_log_and_offsets() -> None:
    world = group()
    offset = world.nodes[0].offset
    member = world.nodes[0].member
    assert member is not None and member.switch(1, world.nodes[0].clock()).is_accepted
    world.nodes[0].after_input()
    began = world.now
    assert world.run_until(lambda: is_served(world, 1), 2_000)
    assert world.now - began < 1_000
    assert world.nodes[1].offset >= offset > 0
    world.check_history(world.nodes[1])
    assert world.record.epoch == 2
    offer(world, 10)
    assert world.run_until(lambda: world.nodes[0].log == world.nodes[1].log, 2_000)


@spec("F02", "F30")
def test_operator_promotes_the_reader_when_the_master_is_lost() -> None:
    world = group()
    assert "broker 0 is alive" in force(world, 1)
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [1], 8_000)
    assert "0 bytes of broker 0's log" in force(world, 1, is_preview=True)
    assert world.writers() == []
    force(world, 1)
    assert world.run_until(lambda: is_served(world, 1), 8_000)
    offer(world, 10)
    # The old master returns with an empty disk, and copies everything.
    old = world.nodes[0]
    old.log.clear()
    old.epochs.clear()
    old.offset, old.is_whole, old.held = 0, False, (0, 0)
    old.start()
    assert world.run_until(lambda: world.record.in_sync == (0, 1), 8_000)
    assert world.nodes[0].log == world.nodes[1].log
    assert is_served(world, 1), "though the configuration names broker 0"
    restart(world, 1)
    assert world.run_until(lambda: is_served(world, 0), 15_000), "until the next start"
    world.check_history(world.nodes[0])


@spec("F30")
def test_slave_is_not_promoted_while_another_one_serves_reads_or_without_write_permission() -> None:
    world = group(3)
    world.nodes[0].crash()
    assert world.run_until(lambda: len(world.readers()) == 1, 8_000)
    reader = world.readers()[0]
    other = 3 - reader
    world.run(world.now + 500)
    assert f"broker {reader} is alive" in force(world, other)
    members = tuple(
        replace(one, permission=BrokerPermission.READ) if one.broker_id == reader else one
        for one in world.config.members
    )
    world.configure(replace(world.config, members=members))
    world.run(world.now + 500)
    assert "allow it WRITE first" in force(world, reader)


@spec("F17", "F18")
def test_slave_that_was_away_leaves_the_set_while_another_one_stays() -> None:
    world = group(3)
    world.nodes[2].crash()
    assert world.run_until(lambda: world.record.in_sync == (0, 1), 5_000)
    offer(world, 20)
    world.nodes[1].crash()
    world.run(world.now + 30_000)
    assert world.record.in_sync == (0, 1), "the last one stays: it may still serve reads"
    world.nodes[2].start()
    assert world.run_until(lambda: world.record.in_sync == (0, 2), 5_000)


@spec("F15", "F31")
def test_dead_slave_does_not_end_the_lease_that_another_one_grants() -> None:
    world = group(3)
    world.nodes[2].crash()
    assert world.run_until(lambda: world.record.in_sync == (0, 1), 5_000)
    world.run(world.now + 500)
    world.cut_registry(0)
    world.run(world.now + 20_000)
    assert world.readers() == world.writers() == [0]


@spec("F17")
def test_stale_slave_never_takes_over_before_a_fresh_one() -> None:
    world = group(3)
    world.cut_link(0, 1)
    assert world.run_until(lambda: world.record.in_sync == (0, 2), 5_000)
    offer(world, 40)
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [2], 8_000)
    world.nodes[2].crash()
    world.run(world.now + 20_000)
    assert world.readers() == []
    assert world.stage(1) is MemberStage.SLAVE


def exempt(world: World, number: int) -> None:
    """Configure a slave that may not be read."""
    members = tuple(
        replace(one, permission=BrokerPermission.NONE) if one.broker_id == number else one
        for one in world.config.members
    )
    world.configure(replace(world.config, members=members))
    world.run(world.now + 500)


@spec("F40", "F17")
def test_slave_stays_in_the_set_beside_one_that_may_not_be_read() -> None:
    world = group(3)
    exempt(world, 1)
    world.nodes[2].crash()
    offer(world, 20)
    world.run(world.now + 30_000)
    assert world.record.in_sync == (0, 1, 2), "no other slave may serve reads"
    world.nodes[2].start()
    world.run(world.now + 3_000)
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [2], 8_000)


@spec("F40", "F31")
def test_dead_slave_that_may_not_be_read_leaves_the_set() -> None:
    world = group(2)
    exempt(world, 1)
    world.nodes[1].crash()
    node = world.nodes[0]
    assert node.member is not None
    member = node.member
    assert world.run_until(lambda: member.status(node.clock()).in_sync == (0,), 5_000)
    world.cut_registry(0)
    world.run(world.now + 10_000)
    assert world.writers() == [0], "no member could take over, so it needs no lease"


def reader_after_a_stall(seed: int) -> int:
    """Return which of two slaves in sync serves reads, after one of them got nothing more from the master."""
    world = World(seed, Mode.SLAVE_CONSUME, size=3, drift_scale=0)
    assert world.run_until(lambda: is_served(world, 0) and len(world.record.in_sync) == 3, 5_000)
    world.stalled.add((0, 1))
    offer(world, 6)
    assert world.record.in_sync == (0, 1, 2)
    world.nodes[0].crash()
    assert world.run_until(lambda: len(world.readers()) == 1, 8_000)
    return world.readers()[0]


@spec("F17")
def test_longest_log_takes_over_reading() -> None:
    assert {reader_after_a_stall(seed) for seed in range(10)} == {2}


def test_without_that_order_the_shorter_log_could_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Takeover, "_place", lambda *_: 0)
    assert 1 in {reader_after_a_stall(seed) for seed in range(10)}


def test_operator_removes_a_dead_slave_while_the_group_runs() -> None:
    world = group(2)
    world.nodes[1].crash()
    world.run(world.now + 5_000)
    assert world.record.in_sync == (0, 1)
    world.configure(replace(world.config, members=world.config.members[:1]))
    assert world.run_until(lambda: world.record.in_sync == (0,), 3_000)
    world.cut_registry(0)
    world.run(world.now + 10_000)
    assert world.writers() == [0], "no member could take over, so it needs no lease"


@spec("F09", "M07")
def test_last_holder_hands_its_offsets_over_after_the_record_was_lost() -> None:
    world = group(3)
    world.nodes[0].crash()
    assert world.run_until(lambda: len(world.readers()) == 1, 8_000)
    reader = world.nodes[world.readers()[0]]
    offer(world, 5)
    offset = reader.offset
    other = world.nodes[3 - reader.id]
    assert other.offset < offset
    reader.crash()
    other.crash()
    world.lose_registry()
    for node in world.nodes.values():
        node.start()
    assert world.run_until(lambda: is_served(world, world.record.master if world.record else 0), 20_000)
    assert world.nodes[world.record.master].offset >= offset
