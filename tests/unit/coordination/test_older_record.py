"""The registry's data are replaced by an older copy: no log is truncated, and an operator decides which one counts."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tandemq.client.aio.admin import FORCE_MS
from tandemq.coordination.member.held_lease import HeldLease
from tandemq.coordination.member.orders import MemberSettings, MemberStage
from tandemq.coordination.registry.interface import NodeFound, Read
from tandemq.coordination.registry.lineage import CHANGES_MAX, continues, is_one_history, newest, with_change
from tandemq.coordination.registry.records import GroupState, Mode, state_path
from tandemq.coordination.registry.tree import Change
from tandemq.coordination.registry.view import RegistryView
from tests.samples import first
from tests.spec import spec
from tests.unit.coordination.node import CLUSTER, GROUP, Node
from tests.unit.coordination.test_founding import is_healthy, offer, problem, served
from tests.unit.coordination.world import World


def stop_all(world: World) -> None:
    for node in world.nodes.values():
        node.crash()


def parted() -> tuple[World, list[int]]:
    """Return a group of 1, 2, 3 whose registry has gone back to a copy in which 3 is in sync, all members stopped; and
    the log that 1 and 2 have, with 500 messages acknowledged without 3."""
    world = served(Mode.ELECT, size=3)
    copy = world.copy_registry()
    master = world.record.master
    assert master != 3
    world.nodes[3].crash()
    assert world.run_until(lambda: world.record.in_sync == (1, 2), 10_000)
    before = len(world.acked)
    offer(world, 500)
    assert len(world.acked) - before > 400
    world.run(world.now + 2_000)
    log = list(world.nodes[master].log)
    stop_all(world)
    world.run(world.now + 5_000)
    world.restore_registry(copy)
    assert 3 in world.record.in_sync
    return world, log


def restored(seed: int) -> tuple[World, Node, Node]:
    """Return a stopped group whose registry has gone back to a copy with all in sync; its holder there, which has seen
    no more, and the master that was elected since."""
    world = World(seed, Mode.ELECT, size=3)
    assert world.run_until(lambda: is_healthy(world), 10_000)
    copy, holder = world.copy_registry(), world.nodes[world.record.master]
    holder.crash()
    assert world.run_until(lambda: bool(world.writers()), 20_000)
    elected = world.nodes[world.record.master]
    offer(world, 20)
    stop_all(world)
    world.run(world.now + 5_000)
    world.restore_registry(copy)
    world.epochs.clear()  # the holder may use the number of an epoch again
    world.is_unclean = True
    return world, holder, elected


def version(world: World) -> int:
    found = world.tree.execute(world.admin, Read(state_path(CLUSTER, GROUP)))
    assert isinstance(found, NodeFound)
    return found.version


def served_beside_a_refusal() -> tuple[World, Node, Node, Node]:
    """Return a group that serves by an older copy, which one live member refuses: master, slave, that member."""
    world = served(Mode.ELECT, size=3)
    copy, master = world.copy_registry(), world.nodes[world.record.master]
    slave, refusing = (node for node in world.nodes.values() if node is not master)
    master.crash()
    slave.crash()
    world.run(world.now + 8_000)
    world.is_unclean = True
    order(world, refusing)
    offer(world, 20)
    stop_all(world)
    world.run(world.now + 5_000)
    world.restore_registry(copy)
    world.epochs.clear()
    master.start()
    slave.start()
    assert world.run_until(lambda: world.writers() == [master.id] and world.record.in_sync != (refusing.id,), 15_000)
    refusing.start()
    world.run(world.now + 5_000)
    assert world.writers() == [master.id] and world.stage(refusing.id) is MemberStage.UNREAD
    return world, master, slave, refusing


def order(world: World, node: Node) -> str:
    """Force a member to be the master, and return the text of the preview."""
    assert node.member is not None
    preview = node.member.force_master(node.clock(), is_preview=True)
    assert preview.is_accepted, preview.text

    def is_served() -> bool:
        if not world.writers():
            node.input(lambda m, now: m.force_master(now))  # repeated by an impatient operator, which is harmless
        return world.writers() == [node.id]

    node.input(lambda m, now: m.force_master(now))
    assert world.run_until(is_served, 15_000)
    return preview.text


@spec("F09", "F30", "R11")
def test_members_keep_what_was_acknowledged_when_an_older_registry_elects_one_that_had_left() -> None:
    world, log = parted()
    world.is_unclean = True  # 3 cannot know: it is elected, and what it lacks is not lost
    world.nodes[3].start()
    assert world.run_until(lambda: world.writers() == [3], 15_000)
    offer(world, 10)
    for number in (1, 2):
        world.nodes[number].start()
    world.run(world.now + 10_000)
    assert world.writers() == [3]
    for number in (1, 2):
        node = world.nodes[number]
        assert node.log == log, "nothing is truncated"
        assert node.member is not None and node.member.stage is MemberStage.UNREAD
        assert "an older copy of the registry's data was restored; this broker serves no client" in problem(node)
        assert "the registry's record is refused as an older copy" in node.notes
        assert node.member.is_record_older
    assert "broker 1, 2 has seen a newer record of the group" in problem(world.nodes[3])
    # The operator decides for the longer log, and first has to stop the other one.
    chosen = world.nodes[1]
    assert chosen.member is not None
    refused = chosen.member.force_master(chosen.clock(), is_preview=True)
    assert not refused.is_accepted and "broker 3 may serve by the older record: stop it" in refused.text
    world.nodes[3].crash()
    world.run(world.now + 4_000)
    text = order(world, chosen)
    assert "does not continue the newest one that this broker has seen" in text
    assert "messages that only others have are lost, acknowledged ones too" in text and "3 (not connected)" in text
    assert chosen.done[-1].is_done
    assert chosen.log[: len(log)] == log
    world.nodes[3].start()
    assert world.run_until(lambda: is_healthy(world), 20_000)
    assert world.nodes[3].log[: len(log)] == log
    assert all(problem(node) == "" for node in world.nodes.values())


@spec("F30")
def test_operator_may_choose_the_member_that_was_elected_in_ignorance() -> None:
    world, _ = parted()
    world.is_unclean = True
    world.nodes[3].start()
    assert world.run_until(lambda: world.writers() == [3], 15_000)
    world.nodes[1].start()
    world.nodes[2].start()
    world.run(world.now + 5_000)
    epoch = world.record.epoch
    text = order(world, world.nodes[3])
    assert "broker 1, 2 has seen a newer record" in text and "the histories have parted" in text
    assert world.run_until(lambda: is_healthy(world), 20_000)
    assert world.record.epoch > epoch and world.record.master == 3
    assert world.nodes[1].log == world.nodes[3].log


@spec("F09")
@pytest.mark.parametrize("other", [1, 2])
def test_no_member_is_elected_by_an_older_record_while_one_that_has_seen_more_is_alive(other: int) -> None:
    world, log = parted()
    world.nodes[3].start()
    world.nodes[other].start()
    world.run(world.now + 15_000)
    assert world.readers() == world.writers() == []
    for node in world.nodes.values():
        if node.member is None:
            node.start()
    world.run(world.now + 5_000)
    assert world.writers() == []
    text = order(world, world.nodes[2])
    assert "force that one instead" not in text
    assert world.run_until(lambda: is_healthy(world), 20_000)
    assert world.nodes[3].log[: len(log)] == log


@spec("F09", "F30")
@pytest.mark.parametrize("seed", range(1, 6))
def test_holder_by_an_older_record_leads_only_when_no_live_member_has_seen_more(seed: int) -> None:
    world, holder, elected = restored(seed)
    elected.start()
    world.run(world.now + 8_000)
    assert world.stage(elected.id) is MemberStage.UNREAD
    before = version(world)
    holder.start()
    world.run(world.now + 10_000)
    assert world.writers() == [] and world.stage(holder.id) is MemberStage.CLAIMING
    assert version(world) == before, "it writes no record by which it could not proceed"
    assert holder.member is not None
    assert f"broker {elected.id} has seen a newer record of the group" in holder.member.why
    elected.crash()
    assert world.run_until(lambda: world.writers() == [holder.id], 5_000), "nobody has seen more any longer"


@spec("F09")
def test_holder_that_doubts_its_log_names_no_master_that_refuses_the_record() -> None:
    world, holder, elected = restored(1)
    elected.start()
    world.run(world.now + 8_000)
    record, holder.is_whole = world.record, False
    holder.start()
    world.run(world.now + 8_000)
    assert world.record == record and world.stage(holder.id) is MemberStage.CLAIMING


@spec("F09")
def test_member_that_claims_serves_no_client_once_another_one_has_seen_more() -> None:
    world, holder, elected = restored(1)
    elected.start()
    holder.start()
    assert holder.member is not None
    assert world.step_until(lambda: world.stage(holder.id) is MemberStage.PREPARING, 10_000)
    # The other member gets its live node only now: the session that it had in the copy has expired.
    holder.paused_until = world.now + 500
    world.run(world.now + 10_000)
    assert world.writers() == []
    assert "has seen a newer record of the group" in holder.member.why


@spec("F09", "V18")
def test_group_that_serves_by_an_older_record_is_not_switched() -> None:
    world, master, slave, refusing = served_beside_a_refusal()
    assert master.member is not None and slave.member is not None
    before = version(world)
    result = master.member.switch(slave.id, master.clock())
    assert not result.is_accepted and f"broker {refusing.id} has seen a newer record" in result.text
    world.run(world.now + 10_000)
    assert world.writers() == [master.id] and version(world) == before
    refused = slave.member.force_master(slave.clock(), is_preview=True)
    assert not refused.is_accepted and f"broker {master.id} may serve by the older record: stop it" in refused.text


@spec("F09", "V18")
def test_switch_is_given_up_when_a_member_returns_that_has_seen_more() -> None:
    world, master, slave, refusing = served_beside_a_refusal()
    refusing.crash()
    world.run(world.now + 8_000)
    assert master.member is not None
    world.stalled |= {(slave.id, master.id), (master.id, slave.id)}
    offer(world, 1)
    master.input(lambda m, now: m.switch(slave.id, now))
    assert world.stage(master.id) is MemberStage.HANDING
    refusing.start()
    assert world.run_until(lambda: bool(master.done), 2_500)
    assert f"not switched: broker {refusing.id} has seen a newer record" in master.done[-1].text
    assert world.writers() == [master.id]


@spec("F30")
def test_operator_may_choose_a_member_that_follows_the_older_record_while_its_holder_refuses() -> None:
    world, _ = parted()
    world.is_unclean = True
    for number in (1, 2, 3):
        world.nodes[number].start()
    world.run(world.now + 8_000)
    chosen = world.nodes[3]
    assert [world.stage(number) for number in (1, 2, 3)] == [MemberStage.UNREAD, MemberStage.UNREAD, MemberStage.SLAVE]
    text = order(world, chosen)
    assert "broker 1, 2 has seen a newer record" in text and text.count("force that one instead") == 1
    assert world.run_until(lambda: is_healthy(world), 20_000)
    assert world.record.master == 3 and world.nodes[1].log == chosen.log


@spec("F30", "F41")
@pytest.mark.parametrize("checks", [2, 16, 30])
def test_order_lasts_for_all_checks(checks: int) -> None:
    world = World(1, Mode.ELECT, size=2, checks=checks)
    world.is_unclean = True
    assert world.run_until(lambda: is_healthy(world), 20_000)
    master = world.nodes[world.record.master]
    other = world.nodes[3 - master.id]
    other.crash()
    assert world.run_until(lambda: world.record.in_sync == (master.id,), 60_000)
    master.crash()
    world.run(world.now + 5_000)
    other.start()
    world.run(world.now + 5_000)
    other.input(lambda m, now: m.force_master(now))
    assert world.run_until(lambda: world.writers() == [other.id], 2_000 + checks * 1_100)


@spec("F30")
@pytest.mark.parametrize("checks", [1, 2, 30])
@pytest.mark.parametrize("session_ms", [100, 2_000, 60_000])
def test_order_outlasts_lease_and_checks(session_ms: int, checks: int) -> None:
    lease = HeldLease(MemberSettings("c", "g", 1, checks=checks), RegistryView("c", "g", 1))
    lease.session_granted(session_ms)
    timing = lease.timing
    assert lease.order_ms >= max(15_000, timing.silence_ms + 2 * timing.checks * timing.check_ms)
    assert lease.order_ms < FORCE_MS, "the command waits for the outcome"


@spec("F09")
def test_member_that_has_read_that_it_left_is_not_elected_by_an_older_record() -> None:
    world = served(Mode.ELECT, size=3)
    copy = world.copy_registry()
    world.cut_link(1, 3)
    world.cut_link(2, 3)
    assert world.run_until(lambda: world.record.in_sync == (1, 2), 30_000)
    offer(world, 20)
    stop_all(world)
    world.run(world.now + 5_000)
    world.restore_registry(copy)
    world.nodes[3].start()
    world.run(world.now + 15_000)
    assert world.writers() == []
    assert "with broker 1 as master and 1, 2, 3 in sync, which does not continue" in problem(world.nodes[3])
    hint = world.nodes[3].member
    assert hint is not None
    world.cut_links.clear()
    world.nodes[1].start()
    world.run(world.now + 3_000)
    assert "broker 1 has seen the newest record and has a longer log: force that one instead" in (
        hint.force_master(world.nodes[3].clock(), is_preview=True).text
    )


@spec("F09")
def test_running_members_stop_when_their_registry_goes_back_in_the_same_epoch() -> None:
    world = served(Mode.ELECT, size=3)
    copy = world.copy_registry()
    world.nodes[3].crash()
    assert world.run_until(lambda: world.record.in_sync == (1, 2), 10_000)
    offer(world, 20)
    world.restore_registry(copy)
    world.run(world.now + 8_000)
    assert world.readers() == world.writers() == []
    known = dict(world.acked)
    order(world, world.nodes[1])
    world.nodes[3].start()
    assert world.run_until(lambda: is_healthy(world), 20_000)
    assert all(world.nodes[3].log[at] == message for at, message in known.items())


@spec("F09")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_copy_that_lacks_only_claims_is_not_older(mode: Mode) -> None:
    world = served(mode)
    copy, record = world.copy_registry(), world.record
    stop_all(world)
    for node in world.nodes.values():
        node.start()
    assert world.run_until(lambda: is_healthy(world), 10_000)
    assert world.record == record, "claimed again, and not changed"
    world.restore_registry(copy)
    world.run(world.now + 3_000)
    assert world.run_until(lambda: is_healthy(world), 10_000)
    assert world.record.epoch == record.epoch


@spec("F09")
def test_lost_record_is_not_created_again_by_members_whose_histories_have_parted() -> None:
    world, log = parted()
    world.is_unclean = True
    world.nodes[3].start()
    assert world.run_until(lambda: world.writers() == [3], 15_000)
    offer(world, 10)
    world.lose_registry()
    for number in (1, 2):
        world.nodes[number].start()
    world.run(world.now + 10_000)
    assert world.writers() == []
    assert "its members have seen records that do not continue each other" in problem(world.nodes[1])
    order(world, world.nodes[1])
    assert world.run_until(lambda: is_healthy(world), 20_000)
    assert world.nodes[3].log[: len(log)] == log


def changed(state: GroupState, version: int, **fields: Any) -> GroupState:
    return with_change(replace(state, since_ms=1_000 + version, **fields), version)


@spec("F09")
def test_record_continues_what_it_lists_and_nothing_else() -> None:
    first = with_change(GroupState(1, 0, (0, 1), founded=1, since_ms=1), 0)
    second = changed(first, 3)
    other = with_change(replace(first, since_ms=9), 3)
    elected = changed(other, 4, epoch=2)
    assert continues(first, first) and continues(second, first) and not continues(first, second)
    assert not continues(elected, second) and not continues(second, elected)
    assert is_one_history([first, second]) and not is_one_history([second, elected])
    assert newest([first, second]) == [second] and newest([second, elected]) == [second, elected]
    decided = replace(elected, epoch=5, founded=5, changes=())
    assert continues(changed(decided, 1), second), "an operator's decision continues every earlier epoch"
    unlisted = replace(second, changes=(), founded=0)
    assert continues(unlisted, second), "written by an earlier version"
    assert continues(changed(unlisted, 8), second), "and changed by this one"
    long = second
    for version in range(4, 5 + CHANGES_MAX):
        long = changed(long, version)
    assert len(long.changes) == CHANGES_MAX
    assert continues(long, second), "too long ago to compare"


class Restored:
    """A group that changes at random, whose registry goes back to a copy, and whose members return in any order."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"{seed}-restored")
        self.world = world = World(seed, Mode.ELECT, size=3)
        assert world.run_until(lambda: is_healthy(world), 8_000)
        self.copy: list[Change] = []
        steps = random.choices((self._leave, self._return, self._switch, self._offer), k=6)
        backup = random.randrange(3)
        for number, step in enumerate(steps):
            if number == backup:
                self.copy, self.copied = world.copy_registry(), world.record
            step()
            world.run(world.now + random.choice((100, 3_000, 6_000)))
        self._offer()

    def _leave(self) -> None:
        up = [node for node in self.world.nodes.values() if node.member is not None]
        if len(up) > 1:
            self.random.choice(up).crash()

    def _return(self) -> None:
        for node in self.world.nodes.values():
            if node.member is None:
                node.start()

    def _switch(self) -> None:
        target = self.random.choice(list(self.world.nodes))
        for node in self.world.nodes.values():
            node.input(lambda m, now: m.switch(target, now))

    def _offer(self) -> None:
        offer(self.world, 10)

    def restore(self) -> set[int]:
        """Replace the registry's data, mostly with all members stopped; return the members that have seen more."""
        world = self.world
        if self.random.random() < 0.7:
            stop_all(world)
            world.run(world.now + 5_000)
        for node in world.nodes.values():
            node.seen = node.seen if node.member is None else node.member.seen
        world.restore_registry(self.copy)
        world.epochs.clear()  # a member that has seen no more than the copy may use the number of an epoch again
        for number in self.random.sample(list(world.nodes), 3):
            if world.nodes[number].member is None:
                world.run(world.now + self.random.choice((10, 1_000, 8_000)))
                world.nodes[number].start()
        return {n.id for n in world.nodes.values() if n.seen is not None and not continues(self.copied, n.seen)}


@spec("F09", "R11")
@pytest.mark.parametrize("first_seed", first(1, range(0, 120, 20)))
def test_members_that_have_seen_more_than_the_registry_keep_every_message(first_seed: int) -> None:
    outcomes = set()
    for seed in range(first_seed, first_seed + 20):
        group = Restored(seed)
        world = group.world
        known = dict(world.acked)
        holders = {number for number, node in world.nodes.items() if has_all(node, known)}
        world.is_unclean = True  # a member that has seen no more than the copy may be elected
        knowing = group.restore()
        world.run(world.now + 15_000)
        serving = world.writers()
        outcomes.add((bool(knowing), bool(serving)))
        assert not knowing & set(serving), f"seed {seed}: {serving} serve, {knowing} have seen more"
        for number in holders & knowing:
            assert has_all(world.nodes[number], known), f"seed {seed}: broker {number} has truncated its log"
        if knowing:
            assert "an older copy of the registry's data was restored" in problem(world.nodes[min(knowing)])
            continue
        assert serving, f"seed {seed}: nobody has seen more, and nobody serves"
        assert has_all(world.nodes[serving[0]], known), f"seed {seed}: {serving} serve without what was acknowledged"
    assert len(outcomes) > 1, f"the seeds differ: {outcomes}"


def has_all(node: Node, known: dict[int, int]) -> bool:
    return all(at < len(node.log) and node.log[at] == message for at, message in known.items())
