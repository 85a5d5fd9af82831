"""Applying the group database to the registry: interruption at every step, concurrent writers, refusals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandemq.coordination.registry.interface import (
    Create,
    Delete,
    NodeFound,
    NodeMissing,
    Operation,
    Outcome,
    Read,
    RegistryRefused,
    Unknown,
    Write,
)
from tandemq.coordination.registry.records import (
    GroupConfig,
    GroupMember,
    GroupMode,
    GroupState,
    Mode,
    Role,
    config_path,
    config_to_json,
    live_broker_path,
    state_from_json,
    state_path,
    state_to_json,
)
from tandemq.coordination.registry.tree import Tree
from tandemq.errors import OutcomeUnknown, RemoteError
from tandemq.groupdb.database import GroupDatabase
from tandemq.groupdb.publisher import ApplyOutcome, apply_groups
from tests.spec import spec

PAIR = GroupConfig(Mode.SLAVE_CONSUME, (GroupMember(0, Role.MASTER), GroupMember(1, Role.SLAVE)))
ELECT = replace(PAIR, mode=Mode.ELECT)
STATIC = replace(PAIR, mode=Mode.STATIC)


class Killed(BaseException):
    """Stands for the kill of the process that applies the groups."""


class Registry:
    """A registry, with a hook that is called before each operation."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.session = self.tree.open_session(60_000, "task", 0)
        self.operations: list[Operation] = []
        self.before: Callable[[Operation], Outcome | None] = lambda _: None

    def do(self, operation: Operation) -> Outcome:
        self.operations.append(operation)
        return self.before(operation) or self.tree.execute(self.session, operation)

    def config(self, name: str) -> bytes | None:
        match self.tree.execute(self.session, Read(config_path("main", name))):
            case NodeFound(data=data):
                return data
            case _:
                return None


WALL_MS = 1_700_000_000_000


def put(database: GroupDatabase, name: str, config: GroupConfig | None) -> None:
    database.change("main", name, lambda _: config, wall_ms=0)


def outcomes(applied: list[Any]) -> list[ApplyOutcome]:
    return [group.what for group in applied]


@spec("F02")
def test_groups_are_created_written_removed_and_left_unchanged(database: GroupDatabase) -> None:
    registry = Registry()
    for name in ("broker-a", "broker-b"):
        put(database, name, PAIR)
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [ApplyOutcome.CREATED] * 2
    assert registry.config("broker-a") == config_to_json(PAIR)
    assert all(group.is_applied for group in database.groups())
    put(database, "broker-a", ELECT)
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [
        ApplyOutcome.WRITTEN,
        ApplyOutcome.UNCHANGED,
    ]
    put(database, "broker-a", None)
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [
        ApplyOutcome.REMOVED,
        ApplyOutcome.UNCHANGED,
    ]
    assert registry.config("broker-a") is None
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [ApplyOutcome.UNCHANGED]


def test_groups_that_are_not_in_the_database_are_left_alone(database: GroupDatabase) -> None:
    registry = Registry()
    registry.tree.execute(registry.session, Create(config_path("main", "others"), b"theirs"))
    put(database, "broker-a", PAIR)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert registry.config("others") == b"theirs"


class KilledRun:
    """Registry and database for a run that is killed at one of its operations on them.

    `step`: number of that operation, from 1; 0: none. `is_done`: whether the kill comes after it, not before.
    """

    def __init__(self, registry: Registry, database: GroupDatabase, step: int, *, is_done: bool) -> None:
        self._registry, self._database = registry, database
        self._left, self._is_done = step, is_done

    def _step(self, act: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0 and not self._is_done:
            raise Killed
        result = act()
        if self._left == 0:
            raise Killed
        return result

    def do(self, operation: Operation) -> Outcome:
        outcome: Outcome = self._step(lambda: self._registry.do(operation))
        return outcome

    def groups(self, cluster: str | None = None) -> Any:
        return self._step(lambda: self._database.groups(cluster))

    def group(self, cluster: str, broker_name: str) -> Any:
        return self._step(lambda: self._database.group(cluster, broker_name))

    def mark_applied(self, group: Any) -> Any:
        return self._step(lambda: self._database.mark_applied(group))


@spec("F02")
@pytest.mark.parametrize("is_done", [False, True])
def test_a_task_killed_at_any_step_is_completed_by_the_next(database: GroupDatabase, is_done: bool) -> None:
    step = 0
    while True:
        step += 1
        for name, before in (("new", None), ("changed", PAIR), ("gone", PAIR), ("same", PAIR)):
            stored = database.group("main", name)
            if stored is not None and stored.config is not None:
                put(database, name, None)
            if before is not None:
                put(database, name, before)
        registry = Registry()
        apply_groups(database, registry.do, wall_ms=WALL_MS)
        put(database, "new", ELECT)
        put(database, "changed", ELECT)
        put(database, "gone", None)
        run = KilledRun(registry, database, step, is_done=is_done)
        try:
            apply_groups(run, run.do, wall_ms=WALL_MS)  # type: ignore[arg-type]  # stands for the database
        except Killed:
            pass
        else:
            break
        for name in ("new", "changed", "gone", "same"):
            assert registry.config(name) in (None, config_to_json(PAIR), config_to_json(ELECT)), (
                "no partial configuration"
            )
        apply_groups(database, registry.do, wall_ms=WALL_MS)
        _check_all_applied(registry, database)
        registry.operations.clear()
        assert set(outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS))) == {ApplyOutcome.UNCHANGED}
        assert not [operation for operation in registry.operations if not isinstance(operation, Read)]
    assert step > 15


def _check_all_applied(registry: Registry, database: GroupDatabase) -> None:
    assert registry.config("new") == registry.config("changed") == config_to_json(ELECT)
    assert registry.config("same") == config_to_json(PAIR)
    assert registry.config("gone") is None
    assert [group.broker_name for group in database.groups()] == ["changed", "new", "same"]
    assert all(group.is_applied for group in database.groups())


def test_an_older_configuration_never_follows_a_newer_one(database: GroupDatabase) -> None:
    """A second task applies a newer configuration between any two steps of the first one."""
    step = 0
    while True:
        step += 1
        registry = Registry()
        put(database, "broker-a", PAIR)
        apply_groups(database, registry.do, wall_ms=WALL_MS)
        put(database, "broker-a", replace(PAIR, members=PAIR.members[:1]))
        left = step

        def apply_newer(registry: Registry = registry) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                put(database, "broker-a", None)
                apply_groups(database, registry.do, wall_ms=WALL_MS)
                put(database, "broker-a", ELECT)
                apply_groups(database, registry.do, wall_ms=WALL_MS)

        class ConcurrentRun(KilledRun):
            def _step(self, act: Callable[[], Any], apply_newer: Callable[[], None] = apply_newer) -> Any:
                apply_newer()
                return act()

        run = ConcurrentRun(registry, database, 0, is_done=False)
        apply_groups(run, run.do, wall_ms=WALL_MS)  # type: ignore[arg-type]  # stands for the database
        if left > 0:
            break
        assert registry.config("broker-a") == config_to_json(ELECT)
        assert database.groups()[0].is_applied
    assert step > 5


@pytest.mark.parametrize("happened", [False, True])
def test_an_unknown_outcome_ends_the_run_and_the_next_completes_it(database: GroupDatabase, happened: bool) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)

    def lose(operation: Operation) -> Outcome | None:
        if not isinstance(operation, Create):
            return None
        if happened:
            registry.tree.execute(registry.session, operation)
        return Unknown()

    registry.before = lose
    with pytest.raises(OutcomeUnknown, match="run it again"):
        apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert not database.groups()[0].is_applied
    registry.before = lambda _: None
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [
        ApplyOutcome.UNCHANGED if happened else ApplyOutcome.CREATED
    ]
    assert database.groups()[0].is_applied


def test_refusal_of_the_registry_is_an_error(database: GroupDatabase) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)
    registry.before = lambda _: RegistryRefused("no room")
    with pytest.raises(RemoteError, match="no room"):
        apply_groups(database, registry.do, wall_ms=WALL_MS)


def test_a_node_that_others_write_again_and_again_is_an_error(database: GroupDatabase) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)
    path = config_path("main", "broker-a")
    registry.tree.execute(registry.session, Create(path, b""))
    version = 0

    def write_first(operation: Operation) -> Outcome | None:
        nonlocal version
        if isinstance(operation, Write):
            registry.tree.execute(registry.session, Write(path, b"", version))
            version += 1
        return None

    registry.before = write_first
    with pytest.raises(RemoteError, match="all the time"):
        apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert version == 20


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (GroupState(3, 1, (0, 1), reader=0), "broker 1 is the master at present"),
        (GroupState(3, 0, (0, 1), reader=1), "broker 1 serves reads at present"),
    ],
)
def test_active_broker_cannot_be_removed(database: GroupDatabase, state: GroupState, reason: str) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)
    put(database, "broker-b", PAIR)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    registry.tree.execute(registry.session, Create(state_path("main", "broker-a"), state_to_json(state)))
    put(database, "broker-a", replace(PAIR, members=PAIR.members[:1]))
    put(database, "broker-b", ELECT)
    refused, other = apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert (refused.what, other.what) == (ApplyOutcome.REFUSED, ApplyOutcome.WRITTEN)
    assert reason in refused.reason
    assert registry.config("broker-a") == config_to_json(PAIR)
    assert [group.is_applied for group in database.groups()] == [False, True]


@pytest.mark.parametrize(
    "changed", [GroupState(4, 1, (0, 1), reader=1), GroupState(3, 0, (0, 1), GroupMode.SLAVE_CONSUME, 1)]
)
def test_a_broker_that_becomes_active_just_before_the_write_is_not_removed(
    database: GroupDatabase, changed: GroupState
) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    put_state(registry, GroupState(3, 0, (0, 1), reader=0))
    put(database, "broker-a", replace(PAIR, members=PAIR.members[:1]))

    def activate_broker(operation: Operation) -> Outcome | None:
        if isinstance(operation, Write) and operation.path == config_path("main", "broker-a"):
            registry.before = lambda _: None
            write = Write(state_path("main", "broker-a"), state_to_json(changed), 0)
            registry.tree.execute(registry.session, write)
        return None

    registry.before = activate_broker
    (refused,) = apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert refused.what is ApplyOutcome.REFUSED
    assert "broker 1" in refused.reason
    assert registry.config("broker-a") == config_to_json(PAIR)


def put_state(registry: Registry, state: GroupState) -> None:
    registry.tree.execute(registry.session, Create(state_path("main", "broker-a"), state_to_json(state)))


def state_of(registry: Registry) -> GroupState:
    found = registry.tree.execute(registry.session, Read(state_path("main", "broker-a")))
    assert isinstance(found, NodeFound)
    return state_from_json("broker-a", found.data)


@spec("F02", "F33")
@pytest.mark.parametrize(
    ("before", "after", "state", "reason"),
    [
        (ELECT, STATIC, GroupState(3, 1, (0, 1), reader=1), "broker 1 is its master: switch to broker 0"),
        (PAIR, ELECT, GroupState(1, 0, (0, 1), GroupMode.SLAVE_CONSUME, 1), "broker 1 still has consumers' offsets"),
        (PAIR, STATIC, GroupState(1, 0, (0, 1), GroupMode.SLAVE_CONSUME, 1), "broker 1 still has consumers' offsets"),
    ],
)
def test_a_change_of_mode_that_could_lose_messages_is_refused(
    database: GroupDatabase, before: GroupConfig, after: GroupConfig, state: GroupState, reason: str
) -> None:
    registry = Registry()
    put(database, "broker-a", before)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    put_state(registry, state)
    put(database, "broker-a", after)
    (refused,) = apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert refused.what is ApplyOutcome.REFUSED
    assert reason in refused.reason
    assert registry.config("broker-a") == config_to_json(before)
    assert state_of(registry) == state


def test_change_of_mode_is_refused_while_brokers_of_the_group_run(database: GroupDatabase) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    put_state(registry, GroupState(1, 0, (0, 1), reader=0))
    broker = registry.tree.open_session(2_000, "broker", 0)
    registry.tree.execute(broker, Create(live_broker_path("main", "broker-a", 1), b"{}", ephemeral=True))
    put(database, "broker-a", ELECT)
    (refused,) = apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert refused.what is ApplyOutcome.REFUSED
    assert "brokers 1 run in mode slave-consume" in refused.reason
    assert "stop all brokers of the group" in refused.reason
    put(database, "broker-a", replace(PAIR, members=(PAIR.members[0], replace(PAIR.members[1], weight=7))))
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [ApplyOutcome.WRITTEN], (
        "other settings than the mode may change while brokers run"
    )
    registry.tree.close_session(broker)
    put(database, "broker-a", ELECT)
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [ApplyOutcome.WRITTEN]


@spec("F02", "F33")
@pytest.mark.parametrize(("before", "is_kept"), [(STATIC, False), (PAIR, False), (None, False), (ELECT, True)])
def test_in_sync_members_of_the_previous_mode_are_forgotten_before_an_election(
    database: GroupDatabase, before: GroupConfig | None, is_kept: bool
) -> None:
    registry = Registry()
    if before is not None:
        put(database, "broker-a", before)
        apply_groups(database, registry.do, wall_ms=WALL_MS)
    put_state(registry, GroupState(2, 0, (0, 1), reader=0))
    put(database, "broker-a", replace(ELECT, members=(ELECT.members[0], replace(ELECT.members[1], weight=7))))
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert state_of(registry).in_sync == ((0, 1) if is_kept else (0,))
    assert registry.config("broker-a") is not None


def test_a_record_that_changes_before_it_is_written_is_read_again(database: GroupDatabase) -> None:
    registry = Registry()
    put(database, "broker-a", STATIC)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    put_state(registry, GroupState(2, 0, (0, 1), reader=0))
    put(database, "broker-a", PAIR)
    path = state_path("main", "broker-a")

    def write_first(operation: Operation) -> Outcome | None:
        if isinstance(operation, Write) and operation.path == path and operation.version == 0:
            other = GroupState(3, 2, (0, 2), reader=2)
            registry.tree.execute(registry.session, Write(path, state_to_json(other), 0))
        return None

    registry.before = write_first
    (refused,) = apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert "broker 2 is the master at present, but is not in this configuration" in refused.reason
    assert registry.config("broker-a") == config_to_json(STATIC)


def test_group_with_running_brokers_is_not_removed(database: GroupDatabase) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    live = live_broker_path("main", "broker-a", 1)
    registry.tree.execute(registry.session, Create(live, b"{}"))
    put(database, "broker-a", None)
    (refused,) = apply_groups(database, registry.do, wall_ms=WALL_MS)
    assert refused.what is ApplyOutcome.REFUSED
    assert "brokers 1 of the group are running" in refused.reason
    assert "stop them first" in refused.reason
    assert registry.config("broker-a") == config_to_json(PAIR)
    registry.tree.execute(registry.session, Delete(live, 0))
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [ApplyOutcome.REMOVED]


def test_removing_a_group_keeps_its_state(database: GroupDatabase) -> None:
    registry = Registry()
    put(database, "broker-a", PAIR)
    apply_groups(database, registry.do, wall_ms=WALL_MS)
    state = state_to_json(GroupState(9, 0, (0, 1), reader=0))
    registry.tree.execute(registry.session, Create(state_path("main", "broker-a"), state))
    put(database, "broker-a", None)
    assert outcomes(apply_groups(database, registry.do, wall_ms=WALL_MS)) == [ApplyOutcome.REMOVED]
    found = registry.tree.execute(registry.session, Read(state_path("main", "broker-a")))
    assert isinstance(found, NodeFound)
    assert found.data == state
    assert registry.tree.execute(registry.session, Read(config_path("main", "broker-a"))) == NodeMissing()
