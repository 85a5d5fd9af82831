"""The registry loses a group's record: it is reported, no member serves wrongly, no acknowledged message is lost."""

import pytest

from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import GroupMode, Mode
from tests.spec import spec
from tests.unit.coordination.node import Node
from tests.unit.coordination.world import World


def served(mode: Mode, size: int = 2, seed: int = 5) -> World:
    """Return a group with acknowledged messages and all members in sync."""
    world = World(seed, mode, size=size)
    assert world.run_until(lambda: is_healthy(world), 8_000)
    offer(world, 20)
    return world


def is_healthy(world: World) -> bool:
    record = world.record
    return (
        record is not None
        and record.mode is GroupMode.NORMAL
        and len(record.in_sync) == len(world.nodes)
        and world.readers() == world.writers() == [record.master]
    )


def offer(world: World, count: int) -> None:
    for _ in range(count):
        world.traffic()
        world.run(world.now + 50)


def problem(node: Node) -> str:
    assert node.member is not None
    return node.member.problem(node.clock().mono_ms)


@spec("F09")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_lost_record_is_created_again_when_all_members_are_connected(mode: Mode) -> None:
    world = served(mode)
    known = dict(world.acked)
    epoch = world.record.epoch
    world.lose_registry()
    assert world.run_until(lambda: is_healthy(world), 15_000)
    assert world.record.epoch > epoch
    master = world.nodes[world.record.master]
    assert known
    assert all(master.log[at] == message for at, message in known.items())


@spec("F09", "R11")
def test_returning_member_does_not_create_the_record_without_members_with_longer_logs() -> None:
    world = served(Mode.ELECT, size=3)
    old = world.nodes[world.record.master]
    old.crash()
    assert world.run_until(lambda: len(world.writers()) == 1, 10_000)
    offer(world, 20)
    for node in world.nodes.values():
        if node.member is not None:
            node.crash()
    world.lose_registry()
    old.start()
    world.run(world.now + 10_000)
    assert world.readers() == world.writers() == []
    others = [number for number in world.nodes if number != old.id]
    assert f"missing: broker {others[0]}, {others[1]}; if" in problem(old)
    for number in others:
        world.nodes[number].start()
    assert world.run_until(lambda: is_healthy(world), 15_000)
    world.check_history(world.nodes[world.record.master])
    assert world.record.master in others
    assert problem(old) == ""


@spec("F09")
def test_members_stop_serving_when_the_registry_has_an_older_record() -> None:
    world = served(Mode.ELECT, size=3)
    early = world.record
    old = world.nodes[early.master]
    old.crash()
    assert world.run_until(lambda: len(world.writers()) == 1, 10_000)
    offer(world, 5)
    world.lose_registry(state=early)
    world.run(world.now + 6_000)
    assert world.readers() == world.writers() == []
    for node in world.nodes.values():
        if node is not old:
            assert "an older copy of the registry's data was restored" in problem(node)


@spec("F30")
def test_operator_creates_a_lost_record_with_one_member() -> None:
    world = served(Mode.ELECT, size=3)
    left, *gone = list(world.nodes.values())
    for node in gone:
        node.crash()
    world.lose_registry()
    world.run(world.now + 5_000)
    assert world.writers() == []
    assert left.member is not None
    assert left.member.stage is MemberStage.UNREAD
    preview = left.member.force_master(left.clock(), is_preview=True)
    assert preview.is_accepted
    assert "messages that only others have are lost" in preview.text
    world.run(world.now + 2_000)
    assert world.writers() == []
    left.input(lambda m, now: m.force_master(now))
    assert world.run_until(lambda: world.writers() == [left.id], 5_000)


@spec("F09", "R11")
@pytest.mark.parametrize("seed", range(5))
def test_broker_with_an_empty_store_does_not_begin_a_group_that_a_live_member_knows(seed: int) -> None:
    world = served(Mode.ELECT, seed=seed)
    known, first = dict(world.acked), world.nodes[world.record.master]
    first.crash()
    world.lose_registry()
    world.run(world.now + 5_000)
    first.log, first.epochs, first.held, first.seen, first.is_whole = [], [], (0, 0), None, False
    first.start()
    assert world.run_until(lambda: is_healthy(world), 20_000)
    master = world.nodes[world.record.master]
    assert known and all(master.log[at] == message for at, message in known.items())


def test_reader_hands_over_its_offsets_after_the_record_was_lost() -> None:
    world = served(Mode.SLAVE_CONSUME)
    world.nodes[0].crash()
    assert world.run_until(lambda: world.readers() == [1], 10_000)
    for _ in range(40):
        world.nodes[1].consume(1)
        world.run(world.now + 20)
    offset = world.nodes[1].offset
    world.lose_registry()
    world.run(world.now + 5_000)
    assert world.readers() == []
    world.nodes[0].start()
    assert world.run_until(lambda: is_healthy(world), 20_000)
    assert world.nodes[0].offset >= offset


@spec("F09")
def test_first_start_of_a_group_does_not_wait() -> None:
    world = World(3, Mode.ELECT, size=3, started=False)
    world.nodes[1].start()
    assert world.run_until(lambda: world.writers() == [1], 3_000)
