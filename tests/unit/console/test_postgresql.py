"""Accounts, sessions and audit log on a PostgreSQL server, which several consoles use at once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from tandemq.console.access.accounts import IDLE_MS, SESSIONS_MAX, Accounts, ConsoleRole
from tandemq.console.access.tokens import TOKENS_MAX, ApiTokens
from tandemq.errors import ConfigError, LocalError
from tandemq.groupdb.audit import Actor, entries
from tandemq.groupdb.database import GroupDatabase
from tests.spec import spec
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
        start.wait(120)
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


@spec("C03")
def test_tokens_of_one_console_are_those_of_the_other(consoles: list[Accounts]) -> None:
    one, other = (ApiTokens(each._database) for each in consoles)
    secret, made = one.create("ada", "nightly", ConsoleRole.OPERATOR, 1, BY, 2_000)
    holder = other.holder_of(secret, "10.0.0.9", 3_000)
    assert holder is not None and (holder.user.name, holder.role) == ("ada", ConsoleRole.OPERATOR)
    assert [(token.used_ms, token.address) for token in one.tokens(3_000)] == [(3_000, "10.0.0.9")]
    assert other.holder_of("tq_" + "\0" * 43, "10.0.0.9", 3_000) is None
    other.revoke(made.number, BY, 4_000)
    assert one.holder_of(secret, "10.0.0.9", 4_000) is None


@spec("C03")
def test_token_made_while_its_user_is_removed_does_not_outlive_it(consoles: list[Accounts]) -> None:
    one, other = consoles
    tokens = ApiTokens(other._database)
    for number in range(10):
        name = f"user{number}"
        one.add(name, ConsoleRole.VIEWER, PASSWORD, BY, 2_000)
        outcomes = _at_once(
            [
                lambda: one.remove(name, BY, 3_000),  # noqa: B023  # called before the next round
                lambda: tokens.create(name, "late", ConsoleRole.VIEWER, 1, BY, 3_000),  # noqa: B023
            ]
        )
        assert outcomes[0] == "done" and outcomes[1] in ("done", f"user {name} does not exist")
        assert tokens.tokens(4_000, name) == []


def test_user_makes_no_more_tokens_than_allowed_at_once(consoles: list[Accounts]) -> None:
    tokens = [ApiTokens(each._database) for each in consoles]
    for number in range(TOKENS_MAX - 2):
        tokens[0].create("ada", f"t{number}", ConsoleRole.VIEWER, 1, BY, 2_000)
    makers = [partial(one.create, "ada", "late", ConsoleRole.VIEWER, 1, BY, 2_000) for one in tokens * 3]
    outcomes = _at_once(list(makers))
    assert outcomes.count("done") == 2
    assert len(tokens[0].tokens(3_000, "ada")) == TOKENS_MAX
