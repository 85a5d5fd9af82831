"""The configuration of a group changes during other operations."""

from dataclasses import replace

from tandemq.coordination.registry.records import BrokerPermission, GroupConfig, GroupMember, Mode, Role, with_member
from tests.spec import spec
from tests.unit.coordination.test_member import group, member_of
from tests.unit.coordination.world import World


def without(world: World, number: int) -> None:
    """Remove a member, as an administrator."""
    world.configure(replace(world.config, members=tuple(m for m in world.config.members if m.broker_id != number)))


def permit(world: World, number: int, permission: BrokerPermission) -> None:
    """Change a member's permission, as an administrator."""
    member = world.config.member(number)
    assert member is not None
    world.configure(with_member(world.config, replace(member, permission=permission)))


def switching(world: World, target: int) -> None:
    """Start a switch that waits for its target, which receives nothing."""
    world.stalled.add((1, target))
    world.nodes[1].log += [1, 2, 3]
    node = world.nodes[1]
    member_of(world, 1).on_log(len(node.log), 1)
    assert member_of(world, 1).switch(target, node.clock()).is_accepted
    node.after_input()
    assert world.writers() == []


@spec("V18")
def test_switch_is_given_up_when_its_target_is_removed() -> None:
    world = group(Mode.ELECT)
    switching(world, 2)
    without(world, 2)
    assert world.run_until(lambda: bool(world.nodes[1].done), 1_000)
    assert "may not be written to any more" in world.nodes[1].done[0].text
    world.stalled.clear()
    assert world.run_until(lambda: world.writers() == [1], 1_000)
    assert world.record.master == 1


@spec("V18")
def test_switch_is_given_up_when_its_target_loses_write_permission() -> None:
    world = group(Mode.ELECT)
    switching(world, 2)
    permit(world, 2, BrokerPermission.READ)
    assert world.run_until(lambda: bool(world.nodes[1].done), 1_000)
    world.stalled.clear()
    assert world.run_until(lambda: world.writers() == [1], 1_000)
    assert world.record.master == 1


@spec("R11")
def test_removed_member_does_not_count_while_the_record_still_names_it() -> None:
    world = group(Mode.ELECT, 3)
    assert member_of(world, 1).in_sync_count == 3
    without(world, 3)
    assert world.step_until(lambda: member_of(world, 1).own_of(3) is None, 1_000)
    assert 3 in world.record.in_sync
    assert member_of(world, 1).in_sync_count == 2
    assert 3 in member_of(world, 1).must_ack
    assert world.run_until(lambda: world.record.in_sync == (1, 2), 1_000)


@spec("F09")
def test_group_without_a_configured_master_starts_with_a_writable_member() -> None:
    world = World(11, Mode.ELECT, traced=True)
    rights = {1: BrokerPermission.READ, 2: BrokerPermission.FULL}
    members = tuple(GroupMember(number, Role.SLAVE, right) for number, right in rights.items())
    world.configure(GroupConfig(Mode.ELECT, members))
    assert world.run_until(lambda: world.writers() == [2], 3_000)


@spec("F25")
def test_connection_of_a_removed_and_added_member_still_counts() -> None:
    world = group(Mode.SLAVE_CONSUME)
    assert member_of(world, 1).peer(0).is_linked
    without(world, 1)
    assert world.run_until(lambda: world.record.in_sync == (0,), 2_000)
    world.configure(world.config)
    assert world.run_until(lambda: world.record.in_sync == (0, 1), 2_000)
    assert member_of(world, 1).peer(0).is_linked
    world.pause(0, 5_000)
    assert world.run_until(lambda: world.readers() == [1], 8_000)
    assert world.run_until(lambda: world.readers() == [0], 8_000)
