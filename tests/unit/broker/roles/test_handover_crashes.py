"""Crashes of brokers at each step of an offset handover and of a switch: giver, receiver or both are killed or
lose power, and start again later. At most one member serves at a time, no committed offset goes back, no acknowledged
message is lost, and the group returns to its normal state.

A power loss may set offsets back only to those that no member had saved or received; see `Traffic`.
"""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import pytest

from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.persistence import Saver
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import GroupMode, Mode
from tandemq.coordination.slave_consume import HandoverStep
from tandemq.model.codes import RequestCode as Code
from tests.samples import every
from tests.spec import spec
from tests.unit.broker.roles.crashing_group import KILL, MASTER, POWER, SLAVE, CrashingGroup, Point, Traffic

Moment = Callable[[CrashingGroup, Point], bool]
STRIDE = 10
BOTH = {"master": [MASTER], "slave": [SLAVE], "both": [MASTER, SLAVE]}


def is_at(number: int, what: str, path: str) -> Moment:
    """Return the moment of an effect of a member."""
    return lambda _, at: at.number == number and at.what == what and at.path.endswith(path)


def stands(number: int, stage: MemberStage) -> Moment:
    """Return the moment at which a member is in a stage."""
    return lambda group, at: at.number == number and group.brokers[number].failover.member.stage is stage


def gives(number: int, step: HandoverStep) -> Moment:
    """Return the moment at which a member that hands over is at a step."""

    def is_there(group: CrashingGroup, at: Point) -> bool:
        hand = group.brokers[number].failover.member._handover.progress
        return at.number == number and hand is not None and hand.step is step

    return is_there


def has_taken(group: CrashingGroup, _: Point) -> bool:
    member = group.brokers[MASTER].failover.member
    return member._handover.taken is not None or member.view.pending is not None


HANDOVER: dict[str, Moment] = {
    "a: about to register": is_at(MASTER, "asked Create", "/live/0"),
    "a: registered, unknowing": is_at(MASTER, "answered Create", "/live/0"),
    "b: the state seen": stands(MASTER, MemberStage.AWAITING),
    "c: the slave connected": lambda group, _: group.brokers[SLAVE].failover.member.peer(MASTER).is_linked,
    "d: pulls refused": gives(SLAVE, HandoverStep.DRAIN),
    "d: offsets sent": gives(SLAVE, HandoverStep.OFFSETS),
    "e: offsets arrived": is_at(MASTER, "disk replace", "consumerOffset.json"),
    "e: offsets saved": has_taken,
    "e: the slave knows": gives(SLAVE, HandoverStep.WAIT),
    "f: about to write the record": is_at(MASTER, "asked Write", "/state"),
    "f: written, unknowing": is_at(MASTER, "answered Write", "/state"),
    "f: the master serves": lambda group, _: group.brokers[MASTER].may == "RW",
    "f: the slave follows": stands(SLAVE, MemberStage.SLAVE),
}
SWITCH: dict[str, Moment] = {
    "pulls refused": gives(MASTER, HandoverStep.DRAIN),
    "offsets sent": gives(MASTER, HandoverStep.OFFSETS),
    "offsets arrived": is_at(SLAVE, "disk replace", "consumerOffset.json"),
    "the giver knows": gives(MASTER, HandoverStep.WAIT),
    "about to write the record": is_at(MASTER, "asked Write", "/state"),
    "written, unknowing": is_at(MASTER, "answered Write", "/state"),
    "the target prepares": stands(SLAVE, MemberStage.PREPARING),
    "the epoch is about to be saved": is_at(SLAVE, "disk replace", "epochFileCheckpoint"),
    "the target serves": lambda group, _: group.brokers[SLAVE].may == "RW",
}


class Prepare(Protocol):
    """Prepares a group for an operation; returns its traffic and the call that begins the operation."""

    def __call__(self, path: Path, *, seed: int) -> tuple[Traffic, Callable[[], object]]: ...


def reading_slave(path: Path, *, seed: int) -> Traffic:
    """Return a group whose master is down, and whose slave serves reads and is ahead with its offsets."""
    group = CrashingGroup(path, Mode.SLAVE_CONSUME, seed=seed, flush_type="SYNC_FLUSH")
    traffic = Traffic(group)
    for _ in range(40):
        traffic.send(group.brokers[MASTER])
    traffic.is_sending = False
    traffic.pass_time(1_000)
    group.end(MASTER, KILL)
    assert traffic.run_until(lambda: group.brokers[SLAVE].may == "R", 8_000)
    group.brokers[SLAVE].heartbeat("group", {"TopicA": "*"})  # a consumer whose commits are waited for
    traffic.pass_time(300)
    return traffic


def handover(path: Path, *, seed: int) -> tuple[Traffic, Callable[[], object]]:
    """Return a group before the offset handover to its master, and the call that begins it."""
    traffic = reading_slave(path, seed=seed)
    return traffic, lambda: traffic.group.start(MASTER)


def switch(path: Path, *, seed: int) -> tuple[Traffic, Callable[[], object]]:
    """Return a group before an operator's switch, and the call that begins it."""
    group = CrashingGroup(path, Mode.ELECT, seed=seed, flush_type="SYNC_FLUSH")
    traffic = Traffic(group)
    traffic.pass_time(1_500)
    group.brokers[MASTER].heartbeat("group", {"TopicA": "*"})
    return traffic, lambda: group.brokers[MASTER].send_request(Code.TANDEM_SWITCH, {"target": SLAVE})


def is_normal(group: CrashingGroup) -> bool:
    """Return whether one member serves and the other has all of its log; in `slave-consume` the master serves."""
    record = group.record
    may = {number: broker.may for number, broker in group.brokers.items()}
    leader = MASTER if group.mode is Mode.SLAVE_CONSUME else record.master
    return (
        record.mode is GroupMode.NORMAL
        and may == {number: "RW" if number == leader else "" for number in (MASTER, SLAVE)}
        and record.in_sync == (MASTER, SLAVE)
        and group.brokers[1 - leader].stage == "slave"
        and group.brokers[MASTER].log_end == group.brokers[SLAVE].log_end
    )


def crash_at(
    traffic: Traffic,
    begin: Callable[[], object],
    moment: Moment,
    victims: list[int],
    how: str,
    back_ms: int,
    *,
    is_over: Callable[[CrashingGroup], bool] = lambda _: False,
) -> bool:
    """Begin, crash the victims at the moment, start them later, and check; return False if the moment never came."""
    group = traffic.group
    struck: list[Point] = []

    def strike(at: Point) -> None:
        if moment(group, at):
            struck.append(at)
            traffic.strike(victims, how)

    group.on_point = strike
    begin()
    group.settle()
    traffic.run_until(lambda: bool(struck) or is_over(group), 8_000)
    if not struck:
        return False
    traffic.pass_time(back_ms)
    for number in victims:
        group.start(number)
    traffic.is_sending = True
    if not traffic.run_until(lambda: is_normal(group), 12_000):
        traffic.help()
        assert traffic.run_until(lambda: is_normal(group), 12_000), (struck, group.record)
    traffic.pass_time(300)
    traffic.check(next(broker for broker in group.brokers.values() if broker.may))
    return True


def back_ms(seed: int) -> int:
    """Return when crashed members start again: before another could have taken over, or long after."""
    return 200 if seed % 2 else 5_000


def crash_at_step(path: Path, prepare: Prepare, steps: dict[str, Moment], step: str, victims: str, how: str) -> None:
    seed = list(steps).index(step) + list(BOTH).index(victims) + (how == KILL)
    traffic, begin = prepare(path, seed=seed)
    assert crash_at(traffic, begin, steps[step], BOTH[victims], how, back_ms(seed)), "the step was not reached"


@spec("F25", "F26", "F09", "F22", "F33", "M07")
@pytest.mark.parametrize(("step", "victims", "how"), every(5, product(HANDOVER, BOTH, [KILL, POWER])))
def test_crash_at_each_step_of_an_offset_handover(step: str, victims: str, how: str, tmp_path: Path) -> None:
    crash_at_step(tmp_path, handover, HANDOVER, step, victims, how)


@spec("V18", "F09", "F33", "M07")
@pytest.mark.parametrize(("step", "victims", "how"), every(5, product(SWITCH, BOTH, [KILL, POWER])))
def test_crash_at_each_step_of_a_switch(step: str, victims: str, how: str, tmp_path: Path) -> None:
    crash_at_step(tmp_path, switch, SWITCH, step, victims, how)


class Nth:
    """The nth effect of a member."""

    def __init__(self, number: int, nth: int) -> None:
        self._number, self._left = number, nth

    def __call__(self, _: CrashingGroup, at: Point) -> bool:
        self._left -= at.number == self._number
        return self._left <= 0


@spec("F25", "F26", "F09", "F33")
@pytest.mark.parametrize("first", every(5, range(1, STRIDE + 1)))
@pytest.mark.parametrize("victim", [MASTER, SLAVE])
def test_crash_between_any_two_effects_of_an_offset_handover(victim: int, first: int, tmp_path: Path) -> None:
    for nth in range(first, 1_000, STRIDE):
        traffic, begin = handover(tmp_path, seed=nth)
        how = POWER if nth % 4 < 2 else KILL
        if not crash_at(traffic, begin, Nth(victim, nth), [victim], how, back_ms(nth), is_over=is_normal):
            assert nth > 30, "fewer effects than a handover has"
            return


def forget(_: ConsumerOffsets, raw: dict[str, Any]) -> None:
    assert raw["offsetTable"], "there is something to merge"


def test_checker_detects_offsets_that_were_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerOffsets, "merge_positions", forget)
    traffic, begin = handover(tmp_path, seed=1)
    with pytest.raises(AssertionError, match="a committed offset went back"):
        crash_at(traffic, begin, HANDOVER["f: the master serves"], [SLAVE], KILL, 200)


def test_checker_detects_offsets_that_count_before_they_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Saver, "begin", lambda *_: None)
    monkeypatch.setattr(MemberMachine, "may_take_offsets", take_at_once)
    traffic, begin = handover(tmp_path, seed=1)
    with pytest.raises(AssertionError, match="a committed offset went back"):
        crash_at(traffic, begin, HANDOVER["f: written, unknowing"], [MASTER], POWER, 200)


def take_at_once(member: MemberMachine, giver: int, token: int) -> bool:
    may_take = member._handover.may_take(giver, token)
    if may_take:
        member._handover.taken = token
    return may_take
