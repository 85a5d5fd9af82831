"""Accounts, sessions and audit log on a PostgreSQL server, which several consoles use at once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tandemq.console.access.accounts import IDLE_MS, SESSIONS_MAX, Accounts, ConsoleRole
from tandemq.errors import ConfigError, LocalError
from tandemq.groupdb.audit import Actor, entries
from tandemq.groupdb.database import GroupDatabase
from tests.unit.console.conftest import PASSWORD
from tests.unit.groupdb.conftest import PostgreSQL

BY = Actor("root@host")
pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    started = PostgreSQL()
    yield started
    started.close()


@pytest.fixture
def consoles(server: PostgreSQL) -> Iterator[list[Accounts]]:
    """Accounts of two consoles with one database, and two admins."""
    url = server.new_url()
    with GroupDatabase(url) as one, GroupDatabase(url) as other:
        found = [Accounts(one), Accounts(other)]
        for name in ("ada", "bob"):
            found[0].add(name, ConsoleRole.ADMIN, PASSWORD, BY, 1_000)
        yield found


def _at_once(calls: list[Callable[[], object]]) -> list[str]:
    """Make calls at the same time, and return how each ended."""
    start = Barrier(len(calls))

    def run(call: Callable[[], object]) -> str:
        start.wait(30)
        try:
            call()
        except LocalError as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_users_and_sessions_of_one_console_are_those_of_the_other(consoles: list[Accounts]) -> None:
    one, other = consoles
    user = other.login("ada", PASSWORD)
    assert user is not None and user.role is ConsoleRole.ADMIN
    assert one.login("ada", "wrong horse") is None and one.login("nobody", PASSWORD) is None
    session = one.open_session(user, "10.0.0.9", 2_000)
    assert other.user_of(session, 2_000) == user
    assert other.user_of(session, 2_000 + IDLE_MS + 1) is None
    one.set_preferences("ada", "zh", "dark")
    seen = other.user_of(session, 2_000)
    assert seen is not None and (seen.language, seen.theme) == ("zh", "dark")
    other.set_password("ada", "another horse", BY, 3_000)
    assert one.user_of(session, 3_000) is None
    ids = [one.open_session(user, "10.0.0.9", 4_000 + n) for n in range(SESSIONS_MAX + 2)]
    assert len(other.sessions_of("ada", 5_000)) == SESSIONS_MAX
    assert other.user_of(ids[0], 5_000) is None


def test_name_is_given_once_and_changes_are_in_the_audit_log(consoles: list[Accounts]) -> None:
    one, other = consoles
    one.add("vera", ConsoleRole.VIEWER, PASSWORD, BY, 2_000)
    with pytest.raises(ConfigError, match="exists already"):
        other.add("vera", ConsoleRole.ADMIN, PASSWORD, BY, 2_001)
    other.set_role("vera", ConsoleRole.OPERATOR, BY, 2_002)
    one.remove("vera", BY, 2_003)
    with one._database.transaction() as connection:
        found = [(entry.action, entry.target, entry.before, entry.after) for entry in entries(connection, count=3)]
    assert found == [
        ("user.remove", "vera", "operator", ""),
        ("user.role", "vera", "viewer", "operator"),
        ("user.add", "vera", "", "viewer"),
    ]


def test_two_consoles_cannot_take_each_others_last_admin(consoles: list[Accounts]) -> None:
    one, other = consoles
    removals: list[Callable[[], object]] = [
        lambda: other.remove("bob", BY, 2_000),
        lambda: other.set_role("bob", ConsoleRole.VIEWER, BY, 2_000),
    ]
    for removal in removals * 5:
        outcomes = _at_once([lambda: one.set_role("ada", ConsoleRole.VIEWER, BY, 2_000), removal])
        assert sorted(text.partition(" (")[0] for text in outcomes) == ["done", "no admin would be left"]
        assert [user.role for user in one.users()].count(ConsoleRole.ADMIN) == 1
        if "bob" not in {user.name for user in one.users()}:
            one.add("bob", ConsoleRole.ADMIN, PASSWORD, BY, 2_000)
        for name in ("ada", "bob"):
            one.set_role(name, ConsoleRole.ADMIN, BY, 2_000)
