"""Accounts, passwords, sessions, and the limit of attempts."""

import pytest
import sqlalchemy as sql

from tandemq.console.access import accounts as module
from tandemq.console.access.accounts import IDLE_MS, SESSION_MS, SESSIONS_MAX, Accounts, ConsoleRole
from tandemq.console.access.passwords import is_password, password_fault, password_hash
from tandemq.console.access.throttle import KEYS_MAX, LoginThrottle
from tandemq.errors import ConfigError, LocalError
from tandemq.groupdb import schema
from tandemq.groupdb.audit import Actor, entries
from tandemq.groupdb.database import GroupDatabase
from tests.unit.console.conftest import PASSWORD

BY = Actor("root@host")


@pytest.fixture
def accounts(database: GroupDatabase) -> Accounts:
    found = Accounts(database)
    found.add("ada", ConsoleRole.ADMIN, PASSWORD, BY, 1_000)
    return found


def test_hash_has_salt_and_accepts_only_its_password() -> None:
    first, second = password_hash(PASSWORD), password_hash(PASSWORD)
    assert first != second
    assert is_password(PASSWORD, first)
    assert not is_password(PASSWORD + " ", first)
    assert not is_password(PASSWORD, "no hash")
    assert password_fault("short") and password_fault("x" * 257) and not password_fault("x" * 10)


def test_login_needs_name_and_password(accounts: Accounts) -> None:
    user = accounts.login("ada", PASSWORD)
    assert user is not None and user.role is ConsoleRole.ADMIN
    assert accounts.login("ada", "wrong horse") is None
    assert accounts.login("eve", PASSWORD) is None


def test_session_ends_when_idle_and_at_its_limit(accounts: Accounts) -> None:
    user = accounts.users()[0]
    session = accounts.open_session(user, "10.0.0.9", 1_000)
    assert accounts.user_of(session, 1_000 + IDLE_MS - 1) == user
    assert accounts.user_of(session, 1_000 + 2 * IDLE_MS - 2) == user, "the request before has prolonged it"
    assert accounts.user_of(session, 1_000 + 4 * IDLE_MS) is None
    other = accounts.open_session(user, "10.0.0.9", 1_000)
    for at in range(1_000, 1_000 + SESSION_MS, IDLE_MS // 2):
        assert accounts.user_of(other, at) == user
    assert accounts.user_of(other, 1_001 + SESSION_MS) is None


def test_database_has_no_session_id_and_no_password(accounts: Accounts, database: GroupDatabase) -> None:
    session = accounts.open_session(accounts.users()[0], "10.0.0.9", 1_000)
    with database.transaction() as connection:
        tables = [connection.execute(sql.select(table)).all() for table in schema.metadata.sorted_tables]
    dump = str(tables)
    assert "ada" in dump
    assert session not in dump and PASSWORD not in dump


def test_new_password_and_removal_end_sessions(accounts: Accounts) -> None:
    user = accounts.users()[0]
    kept, ended = (accounts.open_session(user, "10.0.0.9", 1_000) for _ in range(2))
    accounts.set_password("ada", "another horse", BY, 2_000, keep=kept)
    assert accounts.user_of(kept, 2_000) == user and accounts.user_of(ended, 2_000) is None
    accounts.add("bob", ConsoleRole.ADMIN, PASSWORD, BY, 2_000)
    accounts.remove("ada", BY, 3_000)
    assert accounts.user_of(kept, 3_000) is None and accounts.login("ada", "another horse") is None


def test_user_has_a_limited_number_of_sessions(accounts: Accounts) -> None:
    user = accounts.users()[0]
    for at in range(SESSIONS_MAX + 5):
        accounts.open_session(user, "10.0.0.9", 1_000 + at)
    assert len(accounts.sessions_of("ada", 2_000)) == SESSIONS_MAX


def test_last_admin_stays(accounts: Accounts) -> None:
    with pytest.raises(LocalError, match="no admin would be left"):
        accounts.remove("ada", BY, 1)
    with pytest.raises(LocalError, match="no admin would be left"):
        accounts.set_role("ada", ConsoleRole.VIEWER, BY, 1)
    assert accounts.users()[0].role is ConsoleRole.ADMIN


def test_names_and_passwords_are_checked(accounts: Accounts) -> None:
    for name in ("", "a b", "<b>", "x" * 65, "-a"):
        with pytest.raises(ConfigError, match="not a user name"):
            accounts.add(name, ConsoleRole.VIEWER, PASSWORD, BY, 1)
    with pytest.raises(ConfigError, match="exists already"):
        accounts.add("ada", ConsoleRole.VIEWER, PASSWORD, BY, 1)
    with pytest.raises(ConfigError, match="10 to 256"):
        accounts.set_password("ada", "short", BY, 1)


def test_changes_of_users_are_in_the_audit_log(accounts: Accounts, database: GroupDatabase) -> None:
    accounts.add("bob", ConsoleRole.VIEWER, PASSWORD, BY, 2_000)
    accounts.set_role("bob", ConsoleRole.OPERATOR, BY, 3_000)
    accounts.remove("bob", BY, 4_000)
    with database.transaction() as connection:
        found = [(one.action, one.by.name, one.target, one.before, one.after) for one in entries(connection, count=9)]
    assert found[:3] == [
        ("user.remove", BY.name, "bob", "operator", ""),
        ("user.role", BY.name, "bob", "viewer", "operator"),
        ("user.add", BY.name, "bob", "", "viewer"),
    ]


def test_wait_after_failures_grows_and_ends() -> None:
    throttle = LoginThrottle()
    waits = []
    for _ in range(8):
        throttle.failed("ada", "10.0.0.9", 0)
        waits.append(throttle.wait_ms("ada", "10.0.0.9", 0))
    assert waits == [0, 0, 0, 0, 2_000, 4_000, 8_000, 16_000]
    assert throttle.wait_ms("ada", "10.0.0.8", 0) == 0, "another address may still log in"
    assert throttle.wait_ms("ada", "10.0.0.9", 16_000) == 0
    throttle.succeeded("ada", "10.0.0.9")
    assert throttle.wait_ms("ada", "10.0.0.9", 0) == 0


def test_one_address_cannot_try_many_accounts_nor_many_addresses_one_account() -> None:
    throttle = LoginThrottle()
    for number in range(20):
        throttle.failed(f"user{number}", "10.0.0.9", 0)
    assert throttle.wait_ms("another", "10.0.0.9", 0) > 0
    for number in range(50):
        throttle.failed("ada", f"10.1.0.{number}", 0)
    assert throttle.wait_ms("ada", "10.2.0.1", 0) > 0
    for number in range(2 * KEYS_MAX):
        throttle.failed(f"n{number}", f"a{number}", 0)
    assert len(throttle._failures) == KEYS_MAX


def test_tokens_of_forms_differ_by_session() -> None:
    assert module.csrf_token("a") != module.csrf_token("b")
