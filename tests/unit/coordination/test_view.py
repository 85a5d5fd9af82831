"""A group's view through the registry: reads, and when a write of the state is decided."""

from dataclasses import replace

import pytest

from tandemq.coordination.registry.interface import (
    Changed,
    Conflict,
    Create,
    Delete,
    Done,
    NodeFound,
    NodeMissing,
    Operation,
    Outcome,
    Read,
    ReadChildren,
    RegistryRefused,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tandemq.coordination.registry.lineage import with_change
from tandemq.coordination.registry.records import (
    GroupConfig,
    GroupMember,
    GroupMode,
    GroupState,
    LiveBroker,
    Mode,
    Role,
    config_path,
    config_to_json,
    live_broker_path,
    live_to_json,
    state_path,
    state_to_json,
)
from tandemq.coordination.registry.tree import Tree
from tandemq.coordination.registry.view import RETRY_MS, RegistryView

STATE = GroupState(1, 1, (1, 2), GroupMode.NORMAL, 1)
NEXT = replace(STATE, epoch=2, master=2, reader=2, by=2)
PATH = state_path("c", "g")


class Desk:
    """A view of broker 2, and a registry that answers on demand."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.other = self.tree.open_session(60_000, "other", 0)
        self.session = self.tree.open_session(2_000, "own", 0)
        config = GroupConfig(Mode.ELECT, (GroupMember(1, Role.MASTER), GroupMember(2, Role.SLAVE)))
        self.do(Create(config_path("c", "g"), config_to_json(config)))
        self.do(Create(PATH, state_to_json(STATE)))
        self.view = RegistryView("c", "g", 2)
        self.view.publish(LiveBroker(2, "h:1", "h:2"))
        self.view.receive(SessionUp(self.session, 2_000), 0)

    def do(self, operation: Operation) -> Outcome:
        """What another broker does."""
        return self.tree.execute(self.other, operation)

    def answer(self, ask: RegistryRequest, outcome: Outcome | None = None, now_ms: int = 0) -> None:
        """The registry carries an operation out, or its answer is lost."""
        self.view.receive(
            RegistryResponse(ask.token, outcome or self.tree.execute(self.session, ask.operation), now_ms), now_ms
        )

    def hear(self) -> None:
        """What watches of our session fired, and all that follows from it."""
        for session, path in self.tree.take_fired():
            if session == self.session:
                self.view.receive(Changed(path), 0)
        self.settle()

    def settle(self) -> None:
        while asks := self.view.next_requests():
            for ask in asks:
                self.answer(ask)

    def ask(self) -> RegistryRequest:
        (ask,) = self.view.next_requests()
        return ask


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.settle()
    return desk


def test_session_up_creates_the_live_node_and_reads_the_group(desk: Desk) -> None:
    view = desk.view
    assert view.is_live and view.is_state_read and view.state == STATE and view.config is not None
    assert view.live == {2: LiveBroker(2, "h:1", "h:2")}
    assert isinstance(desk.do(Read(live_broker_path("c", "g", 2))), NodeFound)


def test_live_node_is_updated_when_the_session_resumes(desk: Desk) -> None:
    """Found by schedule 20060: two members waited for each other forever, because one was not listed as waiting."""
    told = LiveBroker(2, "h:1", "h:2", is_waiting=True)
    desk.view.publish(told)
    desk.answer(desk.ask(), Unknown())
    desk.view.receive(SessionSuspended(), 0)
    desk.view.receive(SessionUp(desk.session, 2_000), 0)
    desk.settle()
    found = desk.do(Read(live_broker_path("c", "g", 2)))
    assert isinstance(found, NodeFound)
    assert found.data == live_to_json(told)


def test_live_node_of_an_earlier_session_must_expire_first() -> None:
    desk = Desk()
    old = Create(live_broker_path("c", "g", 2), live_to_json(LiveBroker(2, "", "")), ephemeral=True)
    assert isinstance(desk.do(old), Done)
    desk.settle()
    assert not desk.view.is_live and not desk.view.may_propose
    assert "earlier session, or runs twice" in desk.view.problem


def test_answered_write_is_decided(desk: Desk) -> None:
    desk.view.propose(NEXT)
    assert desk.view.pending is not None and not desk.view.may_propose
    desk.settle()
    assert desk.view.pending is None and desk.view.state == NEXT
    assert desk.view.written_session == desk.session and desk.view.written_version == desk.view.version == 1


def test_conflict_is_decided_by_the_next_read(desk: Desk) -> None:
    theirs = replace(STATE, in_sync=(1,))
    desk.do(Write(PATH, state_to_json(theirs), 0))
    desk.view.propose(NEXT)
    desk.settle()
    assert desk.view.pending is None and desk.view.state == theirs
    assert desk.view.written_session == 0, "not ours"


def test_successful_unknown_write_is_found_by_reading(desk: Desk) -> None:
    desk.view.propose(NEXT)
    ask = desk.ask()
    desk.tree.execute(desk.session, ask.operation)
    desk.answer(ask, Unknown())
    assert desk.view.pending is not None, "undecided"
    desk.view.tick(RETRY_MS)
    desk.settle()
    assert desk.view.pending is None and desk.view.state == NEXT


def test_failed_unknown_write_is_fenced_before_it_is_dropped(desk: Desk) -> None:
    desk.view.propose(NEXT)
    late = desk.ask()
    desk.answer(late, Unknown())
    desk.view.tick(RETRY_MS)
    desk.answer(desk.ask())
    assert desk.view.pending is not None, "the old version was read, but the write may still come"
    fence = desk.ask()
    assert fence.operation == Write(PATH, state_to_json(STATE), 0)
    desk.answer(fence)
    assert desk.view.pending is None and desk.view.state == STATE
    assert isinstance(desk.tree.execute(desk.session, late.operation), Conflict), "now it cannot"


def test_refused_fence_decides_nothing(desk: Desk) -> None:
    desk.view.propose(NEXT)
    late = desk.ask()
    desk.answer(late, Unknown())
    desk.view.tick(RETRY_MS)
    desk.answer(desk.ask())
    desk.answer(desk.ask(), RegistryRefused("no room"))
    assert desk.view.pending is not None, "the first write may still come"
    assert "no room" in desk.view.problem
    desk.view.tick(2 * RETRY_MS)
    desk.settle()
    assert desk.view.pending is None
    assert isinstance(desk.tree.execute(desk.session, late.operation), Conflict), "now it cannot"


def test_late_write_before_the_fence_wins(desk: Desk) -> None:
    desk.view.propose(NEXT)
    late = desk.ask()
    desk.answer(late, Unknown())
    desk.view.tick(RETRY_MS)
    desk.answer(desk.ask())
    fence = desk.ask()
    desk.tree.execute(desk.session, late.operation)
    desk.answer(fence)
    assert desk.view.pending is not None
    desk.settle()
    assert desk.view.pending is None and desk.view.state == NEXT


def test_poll_counts_only_if_the_state_was_read_before_the_live_brokers(desk: Desk) -> None:
    desk.view.poll([1])
    asks = desk.view.next_requests()
    assert [type(ask.operation) for ask in asks] == [Read, ReadChildren], "state first"
    for ask in asks:
        desk.answer(ask)
    assert desk.view.polls == [True]


def test_poll_is_void_if_the_state_changed_meanwhile(desk: Desk) -> None:
    desk.view.poll([])
    state, names = desk.view.next_requests()
    desk.answer(state)
    desk.do(Write(PATH, state_to_json(NEXT), 0))
    desk.view.read_state()
    desk.answer(desk.ask())
    desk.answer(names)
    assert desk.view.polls == [False]


def test_lost_session_and_unanswered_poll(desk: Desk) -> None:
    desk.view.poll([])
    _, names = desk.view.next_requests()
    desk.answer(names, Unknown())
    assert desk.view.polls == [False]
    desk.view.receive(SessionSuspended(), 0)
    assert not desk.view.is_up and desk.view.live is not None, "suspended is not lost"
    desk.view.receive(SessionLost(), 0)
    assert desk.view.live is None and not desk.view.is_live


def test_outdated_answer_is_ignored(desk: Desk) -> None:
    desk.view.read_state()
    slow = desk.ask()
    stale = desk.tree.execute(desk.session, slow.operation)
    desk.view.propose(NEXT)
    desk.settle()
    desk.answer(slow, stale)
    assert desk.view.state == NEXT and desk.view.version == 1


def test_malformed_records_are_reported_and_ignored(desk: Desk) -> None:
    desk.do(Write(config_path("c", "g"), b"{", 0))
    desk.hear()
    assert desk.view.config is not None, "the last usable one holds"
    assert "not JSON" in desk.view.problem


def test_problem_is_reported_until_it_is_over() -> None:
    restarted = Desk()
    old = Create(live_broker_path("c", "g", 2), live_to_json(LiveBroker(2, "", "")), ephemeral=True)
    restarted.do(old)
    restarted.do(Write(config_path("c", "g"), b"{", 0))
    restarted.settle()
    assert "not JSON" in restarted.view.problem and "earlier session, or runs twice" in restarted.view.problem
    restarted.tree.close_session(restarted.other)
    restarted.hear()
    assert restarted.view.is_live
    assert "not JSON" in restarted.view.problem and "earlier session" not in restarted.view.problem


def test_malformed_record_of_a_live_broker_is_reported_until_it_is_deleted(desk: Desk) -> None:
    third = desk.tree.open_session(60_000, "third", 0)
    for broker_id, data in ((3, b"{"), (4, live_to_json(LiveBroker(4, "", "")))):
        desk.tree.execute(third, Create(live_broker_path("c", "g", broker_id), data, ephemeral=True))
    desk.hear()
    assert "broker 3: " in desk.view.problem, "although the record of 4 is fine"
    desk.tree.close_session(third)
    desk.hear()
    assert desk.view.problem == ""


def test_record_of_a_live_broker_is_read_again_when_it_changes(desk: Desk) -> None:
    path, third = live_broker_path("c", "g", 3), desk.tree.open_session(60_000, "third", 0)
    record = LiveBroker(3, "", "")
    desk.tree.execute(third, Create(path, live_to_json(record), ephemeral=True))
    desk.hear()
    for version, epoch in enumerate((7, 8)):
        record = replace(record, epoch=epoch)
        desk.tree.execute(third, Write(path, live_to_json(record), version))
        desk.hear()
        assert desk.view.live is not None and desk.view.live[3] == record
    # Its broker starts again, and the list of live brokers is read when the new node is there already.
    desk.tree.close_session(third)
    fired = [path for session, path in desk.tree.take_fired() if session == desk.session]
    for each in fired:
        desk.view.receive(Changed(each), 0)
    reads = sorted(desk.view.next_requests(), key=lambda ask: isinstance(ask.operation, ReadChildren))
    desk.answer(reads[0])
    assert desk.view.unread([2, 3, 4]) == [3], "the node was deleted"
    fourth = desk.tree.open_session(60_000, "fourth", 0)
    desk.tree.execute(fourth, Create(path, live_to_json(replace(record, epoch=9)), ephemeral=True))
    desk.answer(reads[1])
    assert desk.view.unread([2, 3, 4]) == [3]
    desk.settle()
    assert desk.view.unread([2, 3, 4]) == []
    assert desk.view.live is not None and desk.view.live[3] == replace(record, epoch=9)


def test_late_read_of_the_missing_record_does_not_drop_the_write_that_creates_it() -> None:
    desk = Desk()
    desk.do(Delete(PATH, 0))
    desk.settle()
    assert desk.view.is_record_missing
    desk.view.read_state()
    read = desk.ask()
    desk.view.propose(STATE)
    create = desk.ask()
    desk.answer(read, NodeMissing())
    assert desk.view.pending is not None and not desk.view.may_propose, "else it would be created twice"
    desk.answer(create)
    assert desk.view.state == STATE and desk.view.pending is None


def test_record_that_does_not_continue_the_newest_one_seen_is_refused_until_one_does(desk: Desk) -> None:
    first = with_change(STATE, 1)
    desk.do(Write(PATH, state_to_json(first), 0))
    desk.hear()
    newest = with_change(replace(first, in_sync=(1,), since_ms=7), 2)
    view = RegistryView("c", "g", 2, newest)
    view.publish(LiveBroker(2, "h:1", "h:2"))
    desk.view = view
    view.receive(SessionUp(desk.session, 2_000), 0)
    desk.settle()
    assert view.state is None and view.refused == first and not view.is_state_read
    assert "epoch 1 with broker 1 as master and 1, 2 in sync, which does not continue" in view.problem
    desk.do(Write(PATH, state_to_json(newest), 1))
    desk.hear()
    assert view.state == newest and view.refused is None and view.problem == ""
