"""Offset handover in slave-consume, with a crash, a cut or a delay at each step."""

from collections.abc import Callable
from typing import Any

import pytest

from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.member.service import ServiceState
from tandemq.coordination.registry.records import GroupMode, Mode
from tandemq.coordination.slave_consume import HandoverStep
from tests.mutations.coordination import claim_by_reading
from tests.spec import spec
from tests.unit.coordination.world import Violation, World

MASTER, SLAVE = 0, 1
Moment = Callable[[World], bool]


def reading_slave(seed: int, **settings: Any) -> World:
    """Return a group whose master is down and whose slave serves reads with newer offsets."""
    world = World(seed, Mode.SLAVE_CONSUME, **settings)
    world.run(2_500)
    for message in range(60):
        world.nodes[MASTER].take_message(message)
    world.nodes[MASTER].consume(2)
    world.run(world.now + 1_000)
    world.nodes[MASTER].crash()
    assert world.run_until(lambda: world.readers() == [SLAVE], 8_000)
    for _ in range(4):
        world.nodes[SLAVE].consume(3)
    return world


def step_of(world: World) -> HandoverStep | None:
    member = world.nodes[SLAVE].member
    hand = None if member is None else member._handover.progress
    return None if hand is None else hand.step


def has_taken(world: World) -> bool:
    member = world.nodes[MASTER].member
    return member is not None and member._handover.taken is not None


def is_proposed(world: World) -> bool:
    member = world.nodes[MASTER].member
    return member is not None and member.view.pending is not None


def is_live(world: World) -> bool:
    member = world.nodes[MASTER].member
    return member is not None and member.view.is_live


STEPS: dict[str, Moment] = {
    "a: the master has registered": is_live,
    "b: it has seen the state": lambda world: world.stage(MASTER) is MemberStage.AWAITING,
    "c: the slave is connected": lambda world: bool(world.nodes[SLAVE].links),
    "d: the slave refuses pulls": lambda world: step_of(world) is HandoverStep.DRAIN,
    "d: the offsets are on their way": lambda world: step_of(world) is HandoverStep.OFFSETS,
    "e: the master has stored them": lambda world: has_taken(world) or is_proposed(world),
    "e: the slave knows it": lambda world: step_of(world) is HandoverStep.WAIT,
    "f: the record says normal": lambda world: world.record.mode is GroupMode.NORMAL,
    "f: the master serves": lambda world: world.readers() == [MASTER],
}


def is_healthy(world: World) -> bool:
    return (
        world.record.mode is GroupMode.NORMAL
        and world.readers() == world.writers() == [MASTER]
        and world.stage(SLAVE) is MemberStage.SLAVE
    )


@spec("F25", "F26", "F09", "M07")
@pytest.mark.parametrize("back_ms", [200, 6_000])
@pytest.mark.parametrize("victim", [MASTER, SLAVE])
@pytest.mark.parametrize("step", STEPS)
def test_crash_at_each_step_loses_no_offset_and_ends_normal(step: str, victim: int, back_ms: int) -> None:
    world = reading_slave(3)
    read_to = world.nodes[SLAVE].offset
    assert read_to > world.nodes[MASTER].offset
    world.nodes[MASTER].start()
    assert world.step_until(lambda: STEPS[step](world), 12_000), "the step is never reached"
    world.nodes[victim].crash()
    world.after(back_ms, world.nodes[victim].start)
    world.run(world.now + back_ms)
    assert world.run_until(lambda: is_healthy(world), 15_000), world.record
    assert world.nodes[MASTER].offset >= read_to


@spec("F25", "F26")
@pytest.mark.parametrize("what", ["link", "master's registry", "slave's registry", "both registries"])
@pytest.mark.parametrize("step", STEPS)
def test_cut_at_each_step_leaves_at_most_one_reader(step: str, what: str) -> None:
    world = reading_slave(4)
    world.nodes[MASTER].start()
    assert world.step_until(lambda: STEPS[step](world), 12_000), "the step is never reached"
    if what == "link":
        world.cut_link(MASTER, SLAVE)
    if what in ("master's registry", "both registries"):
        world.cut_registry(MASTER)
    if what in ("slave's registry", "both registries"):
        world.cut_registry(SLAVE)
    for _ in range(60):
        world.traffic()
        world.run(world.now + 100)
    world.heal()
    assert world.run_until(lambda: is_healthy(world), 15_000), world.record


@spec("F26")
def test_master_does_not_serve_reads_before_it_has_the_offsets() -> None:
    """The offsets never arrive: the master refuses reads whatever the record says, and the slave serves them again."""
    world = reading_slave(5)
    world.nodes[MASTER].start()
    assert world.step_until(lambda: step_of(world) is HandoverStep.DRAIN, 12_000)
    world.cut_links.add(frozenset((MASTER, SLAVE)))  # calls are lost, the open link stays
    assert world.run_until(lambda: world.readers() == [SLAVE], 6_000)
    assert world.stage(MASTER) is MemberStage.AWAITING


def hand_over_with_a_late_master(seed: int) -> World:
    """The master's write is in flight for longer than the slave waits for it."""
    world = reading_slave(seed, hand_over_ms=400, drain_ms=100, hand_back_wait_ms=3_000)
    world.nodes[MASTER].start()
    assert world.step_until(lambda: step_of(world) is HandoverStep.OFFSETS, 12_000)
    world.registry_delay_ms[MASTER] = 900
    for _ in range(40):
        world.traffic()
        world.run(world.now + 50)
    world.registry_delay_ms.clear()
    return world


@spec("F26", "F09")
def test_slave_that_gave_up_the_handover_writes_the_record_before_it_serves_reads() -> None:
    world = hand_over_with_a_late_master(6)
    assert world.run_until(lambda: is_healthy(world), 12_000)


def test_without_that_write_both_would_serve_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServiceState, "reclaim", claim_by_reading)
    with pytest.raises(Violation):
        hand_over_with_a_late_master(6)


def hand_over_while_master_has_no_registry(seed: int) -> World:
    """The master stores the offsets and cannot write; meanwhile the slave reads on."""
    world = reading_slave(seed, hand_over_ms=2_500, drain_ms=1_500, hand_back_wait_ms=60_000)
    world.nodes[MASTER].start()
    assert world.step_until(lambda: step_of(world) is HandoverStep.DRAIN, 12_000)
    world.cut_registry(MASTER)
    assert world.step_until(lambda: has_taken(world), 2_000)
    assert world.run_until(lambda: world.readers() == [SLAVE], 6_000)
    world.nodes[SLAVE].consume(3)
    world.join_registry(MASTER)
    world.run(world.now + 5_000)
    return world


@spec("F26", "M07")
def test_offsets_of_an_abandoned_handover_are_ignored() -> None:
    world = hand_over_while_master_has_no_registry(7)
    assert world.record.mode is GroupMode.SLAVE_CONSUME
    assert world.readers() == [SLAVE]


@spec("F26")
def test_slave_continues_to_serve_reads_if_the_registry_is_lost_before_it_sends_its_offsets() -> None:
    world = reading_slave(9, hand_over_ms=4_000, drain_ms=2_500)
    world.nodes[MASTER].start()
    assert world.step_until(lambda: step_of(world) is HandoverStep.DRAIN, 12_000)
    world.cut_registry(MASTER)
    world.cut_registry(SLAVE)
    assert world.run_until(lambda: world.readers() == [SLAVE], 3_000)
    world.run(world.now + 5_000)
    assert world.readers() == [SLAVE]
    world.heal()
    assert world.run_until(lambda: is_healthy(world), 15_000), world.record


@spec("F10", "F25")
def test_commits_are_accepted_until_the_offsets_are_sent() -> None:
    world = reading_slave(8)
    world.nodes[MASTER].start()
    slave = world.nodes[SLAVE]
    assert slave.member is not None
    assert world.step_until(lambda: step_of(world) is HandoverStep.DRAIN, 12_000)
    now_ms = slave.clock().mono_ms
    assert not slave.member.may_read(now_ms) and slave.member.may_commit(now_ms)
    assert world.step_until(lambda: step_of(world) is HandoverStep.OFFSETS, 2_000)
    assert not slave.member.may_commit(slave.clock().mono_ms)
