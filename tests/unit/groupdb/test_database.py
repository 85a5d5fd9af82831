"""Group database: checked, atomic changes, on SQLite and on PostgreSQL."""

import threading
from dataclasses import replace

import pytest

from tandemq.coordination.registry.records import BrokerPermission, GroupConfig, GroupMember, Mode, Role
from tandemq.errors import ConfigError, LocalError, NetworkError
from tandemq.groupdb import database as module
from tandemq.groupdb.database import GroupDatabase

PAIR = GroupConfig(
    Mode.SLAVE_CONSUME,
    (GroupMember(0, Role.MASTER, weight=30), GroupMember(1, Role.SLAVE, BrokerPermission.READ, priority=-3)),
)


def put(database: GroupDatabase, config: GroupConfig | None, name: str = "broker-a", cluster: str = "main") -> None:
    database.change(cluster, name, lambda _: config, wall_ms=1_000)


def test_a_group_is_stored_changed_and_read_back(database: GroupDatabase) -> None:
    assert database.groups() == []
    assert database.group("main", "broker-a") is None
    stored = database.change("main", "broker-a", lambda before: PAIR if before is None else None, wall_ms=77)
    assert stored == database.group("main", "broker-a")
    assert (stored.config, stored.revision, stored.is_applied, stored.changed_ms) == (PAIR, 1, False, 77)
    alone = replace(PAIR, members=PAIR.members[:1])
    stored = database.change("main", "broker-a", lambda before: alone if before == PAIR else None, wall_ms=78)
    assert (stored.config, stored.revision) == (alone, 2)
    put(database, PAIR, "broker-b")
    put(database, PAIR, "broker-a", "other")
    assert [(group.cluster, group.broker_name) for group in database.groups()] == [
        ("main", "broker-a"),
        ("main", "broker-b"),
        ("other", "broker-a"),
    ]
    assert [group.broker_name for group in database.groups("main")] == ["broker-a", "broker-b"]


def test_a_removed_group_stays_until_its_removal_is_applied(database: GroupDatabase) -> None:
    put(database, PAIR)
    put(database, None)
    (removed,) = database.groups()
    assert (removed.config, removed.revision) == (None, 2)
    with pytest.raises(ConfigError, match="group broker-a does not exist in cluster main"):
        put(database, None)
    assert database.mark_applied(removed)
    assert database.groups() == []
    assert not database.mark_applied(removed)
    with pytest.raises(ConfigError, match="does not exist"):
        put(database, None)


def test_a_removed_group_may_be_created_again_before_its_removal_is_applied(database: GroupDatabase) -> None:
    put(database, PAIR)
    put(database, None)
    (removed,) = database.groups()
    put(database, PAIR)
    assert not database.mark_applied(removed), "it has an older revision"
    (back,) = database.groups()
    assert (back.config, back.revision) == (PAIR, 3)


def test_mark_applied_changes_nothing_for_another_revision(database: GroupDatabase) -> None:
    put(database, PAIR)
    (first,) = database.groups()
    assert database.mark_applied(first)
    assert database.groups()[0].is_applied
    put(database, replace(PAIR, mode=Mode.ELECT))
    assert not database.groups()[0].is_applied
    assert not database.mark_applied(first)
    assert database.groups()[0].carried_revision == 1


def test_an_inconsistent_configuration_is_refused_and_changes_nothing(database: GroupDatabase) -> None:
    put(database, PAIR)
    two = replace(PAIR, members=(PAIR.members[0], GroupMember(1, Role.MASTER)))
    with pytest.raises(ConfigError, match="all master"):
        put(database, two)
    with pytest.raises(ConfigError, match="is not a valid broker name"):
        put(database, PAIR, "a/b")
    with pytest.raises(ConfigError, match="is not a valid cluster name"):
        put(database, PAIR, cluster="")
    (kept,) = database.groups()
    assert (kept.config, kept.revision) == (PAIR, 1)


def test_no_concurrent_change_is_lost(url: str) -> None:
    """Ten threads, each with its own connection, add one member each."""
    start = threading.Barrier(10)
    errors: list[Exception] = []

    def add(broker_id: int) -> None:
        def with_me(before: GroupConfig | None) -> GroupConfig:
            members = before.members if before is not None else ()
            return GroupConfig(Mode.ELECT, (*members, GroupMember(broker_id, Role.SLAVE)))

        try:
            start.wait(60)
            with GroupDatabase(url) as database:
                database.change("main", "broker-a", with_me, wall_ms=broker_id)
        except (LocalError, NetworkError) as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    with GroupDatabase(url) as database:
        (group,) = database.groups()
        assert group.config is not None
        assert [member.broker_id for member in group.config.members] == list(range(10))
        assert group.revision == 10


def test_change_of_a_group_that_others_change_all_the_time_fails(
    database: GroupDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 3)
    put(database, PAIR)
    calls = []

    def meddle(before: GroupConfig | None) -> GroupConfig | None:
        calls.append(before)
        put(database, replace(PAIR, mode=Mode.ELECT if len(calls) % 2 else Mode.STATIC))
        return PAIR

    with pytest.raises(LocalError, match="changed by others all the time"):
        database.change("main", "broker-a", meddle, wall_ms=0)
    assert len(calls) == 3
    assert database.groups()[0].revision == 4


@pytest.mark.parametrize("url", ["nonsense", "nosuchdriver:///x", "postgresql+nodriver://h/x"])
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="the database URL cannot be used"):
        GroupDatabase(url)


@pytest.mark.parametrize("url", ["sqlite:////nonexistent/x.db", "postgresql+psycopg://u" + ":s3cret@127.0.0.1:1/x"])
def test_error_about_a_missing_database_has_no_password(url: str) -> None:
    with pytest.raises(NetworkError, match="cannot be used") as caught:
        GroupDatabase(url)
    assert "s3cret" not in str(caught.value)
