"""A member's reports of registry problems (unreachable, empty, without this broker, slow) and what to do."""

import pytest

from tandemq.boundary import Now
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import MemberSettings, MemberStage
from tandemq.coordination.registry.interface import (
    Confirmed,
    Create,
    RegistryRequest,
    RegistryResponse,
    SessionSuspended,
    SessionUp,
)
from tandemq.coordination.registry.records import (
    GroupConfig,
    GroupMember,
    GroupState,
    Mode,
    Role,
    config_path,
    config_to_json,
    live_broker_path,
    state_path,
    state_to_json,
)
from tandemq.coordination.registry.tree import Tree

SESSION_MS = 2_000


class Box:
    """Broker 1 of group g, and a registry that answers at once."""

    def __init__(self, *members: int, has_record: bool = False) -> None:
        self.tree, self.now_ms = Tree(), 0
        self.session = self.tree.open_session(60_000, "b1", 0)
        if members:
            configured = tuple(GroupMember(one, Role.SLAVE if one else Role.MASTER) for one in members)
            self.create(config_path("c", "g"), config_to_json(GroupConfig(Mode.ELECT, configured)))
        if has_record:
            self.create(state_path("c", "g"), state_to_json(GroupState(3, 0, (0,))))
        settings = MemberSettings("c", "g", 1, address="h:1", ha_address="h:2")
        self.member = MemberMachine(settings, Now(0, 0), log_end=0, log_epoch=0, is_log_whole=True)

    def create(self, path: str, data: bytes) -> None:
        self.tree.execute(self.session, Create(path, data))

    def connect(self) -> None:
        self.member.receive(SessionUp(self.session, SESSION_MS), Now(self.now_ms, 0))
        while asks := [effect for effect in self.member.next_effects() if isinstance(effect, RegistryRequest)]:
            for ask in asks:
                self.member.receive(
                    RegistryResponse(ask.token, self.tree.execute(self.session, ask.operation), self.now_ms),
                    Now(self.now_ms, 0),
                )

    def pass_time(self, ms: int, *, answers: bool = True) -> None:
        for _ in range(0, ms, 100):
            self.now_ms += 100
            if answers:
                self.member.receive(Confirmed(self.now_ms - 10), Now(self.now_ms, 0))
            self.member.tick(Now(self.now_ms, 0))

    @property
    def problem(self) -> str:
        trouble = self.member.problem(self.now_ms)
        assert self.member.status(Now(self.now_ms, 0)).trouble == trouble, "ha status tells it"
        return trouble


def test_empty_registry_is_reported_with_what_to_do() -> None:
    box = Box()
    box.connect()
    assert "the group's configuration is not in the registry" in box.problem
    assert "tandemq ha config apply" in box.problem
    assert box.member.why == box.problem


@pytest.mark.parametrize("has_record", [True, False])
def test_broker_that_is_not_configured_is_reported(has_record: bool) -> None:
    box = Box(0, 2, has_record=has_record)
    box.connect()
    assert box.member.stage is MemberStage.UNREAD
    assert "broker 1 is not a member of group g" in box.problem
    assert "tandemq ha config set g --member 1,role=slave" in box.problem
    assert box.member.why == box.problem


def test_member_that_runs_twice_is_reported_with_what_to_do() -> None:
    box = Box(0, 1)
    other = box.tree.open_session(60_000, "other", 0)
    box.tree.execute(other, Create(live_broker_path("c", "g", 1), b"{}", ephemeral=True))
    box.connect()
    assert "broker 1 is still listed as live by an earlier session, or runs twice" in box.problem
    assert "stop the other process" in box.problem


def test_member_of_a_healthy_group_has_no_problem() -> None:
    box = Box(0, 1, has_record=True)
    box.connect()
    box.pass_time(5_000)
    assert (box.member.stage, box.problem) == (MemberStage.SLAVE, "")


def test_registry_without_answers_for_a_session_timeout_is_reported_as_slow() -> None:
    box = Box(0, 1, has_record=True)
    box.connect()
    box.pass_time(SESSION_MS, answers=False)
    assert box.problem == ""
    box.pass_time(100, answers=False)
    assert "the registry is slow: it has not answered any request of the last 2 s" in box.problem
    box.pass_time(100)
    assert box.problem == ""
    box.member.receive(SessionSuspended(), Now(box.now_ms, 0))
    box.pass_time(5_000, answers=False)
    assert box.problem == "", "it is away, and not slow"
