"""Tokens of the API: made once, stored as hashes, limited in role and time, revoked; and their pages."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sql

from tandemq.console.access.accounts import Accounts, ConsoleRole
from tandemq.console.access.rate_limit import KEYS_MAX, RateLimit
from tandemq.console.access.tokens import DAY_MS, TOKENS_MAX, TOUCH_MS, ApiTokens
from tandemq.console.services import Console, wall_ms
from tandemq.errors import ConfigError, LocalError
from tandemq.groupdb import schema
from tandemq.groupdb.audit import Actor, AuditEntry
from tandemq.groupdb.database import GroupDatabase
from tests.spec import spec
from tests.unit.console.conftest import PASSWORD, Browser

BY = Actor("root@host")
VIEWER, OPERATOR, ADMIN = ConsoleRole.VIEWER, ConsoleRole.OPERATOR, ConsoleRole.ADMIN
Audit = Callable[[], list[AuditEntry]]


@pytest.fixture
def tokens(database: GroupDatabase) -> ApiTokens:
    Accounts(database).add("ada", ADMIN, PASSWORD, BY, 1)
    Accounts(database).add("otto", OPERATOR, PASSWORD, BY, 1)
    return ApiTokens(database)


@spec("C03")
def test_token_is_stored_as_hash_and_recorded_without_it(
    tokens: ApiTokens, database: GroupDatabase, audit: Audit
) -> None:
    secret, made = tokens.create("otto", "ci", VIEWER, 30, BY, 1_000)
    assert re.fullmatch(r"tq_[\w-]{43}", secret)
    with database.transaction() as connection:
        rows = str([connection.execute(sql.select(table)).all() for table in schema.metadata.sorted_tables])
    assert "otto" in rows and secret not in rows and secret[3:] not in rows
    (entry,) = audit()
    assert (entry.action, entry.target, entry.after) == ("token.create", "otto, token 1 (ci)", "viewer, 30 days")
    assert made.expires_ms == 1_000 + 30 * DAY_MS


@spec("C03")
def test_token_ends_at_its_time_with_revocation_and_with_its_user(tokens: ApiTokens, database: GroupDatabase) -> None:
    found = [tokens.create("otto", "ci", VIEWER, 1, BY, 1_000) for _ in range(3)]
    assert tokens.holder_of(found[0][0], "10.0.0.9", 999 + DAY_MS) is not None
    assert tokens.holder_of(found[0][0], "10.0.0.9", 1_000 + DAY_MS) is None
    tokens.revoke(found[1][1].number, BY, 2_000)
    assert tokens.holder_of(found[1][0], "10.0.0.9", 2_000) is None
    assert tokens.holder_of(found[2][0], "10.0.0.9", 2_000) is not None
    Accounts(database).remove("otto", BY, 3_000)
    assert tokens.holder_of(found[2][0], "10.0.0.9", 3_000) is None
    Accounts(database).add("otto", OPERATOR, PASSWORD, BY, 4_000)
    assert tokens.holder_of(found[2][0], "10.0.0.9", 4_000) is None, "another user of this name does not get it"


@spec("C03")
def test_role_is_the_lower_one_of_token_and_user(tokens: ApiTokens, database: GroupDatabase) -> None:
    secret, _ = tokens.create("ada", "all", ADMIN, 1, BY, 1)
    lower, _ = tokens.create("ada", "look", VIEWER, 1, BY, 1)
    Accounts(database).add("bob", ADMIN, PASSWORD, BY, 1)
    for role in (ADMIN, OPERATOR, VIEWER):
        Accounts(database).set_role("ada", role, BY, 2)
        holder, other = tokens.holder_of(secret, "", 3), tokens.holder_of(lower, "", 3)
        assert holder is not None and holder.role is role
        assert other is not None and other.role is VIEWER
    with pytest.raises(ConfigError, match="at most that of its user: viewer"):
        tokens.create("ada", "more", OPERATOR, 1, BY, 4)


def test_wrong_tokens_are_refused_whatever_their_form(tokens: ApiTokens) -> None:
    secret, _ = tokens.create("ada", "x", VIEWER, 1, BY, 1)
    for text in (
        "",
        "tq_",
        secret[:-1],
        secret + "A",
        secret.upper(),
        "xx_" + secret[3:],
        "\ud800" * 46,
        "' or 1=1 --",
    ):
        assert tokens.holder_of(text, "", 2) is None, text


def test_names_days_and_numbers_of_tokens_are_limited(tokens: ApiTokens) -> None:
    for name, days in (("", 1), (" ", 1), ("x" * 65, 1), ("a\nb", 1), ("x", 0), ("x", 367)):
        with pytest.raises(ConfigError):
            tokens.create("ada", name, VIEWER, days, BY, 1)
    with pytest.raises(LocalError, match="does not exist"):
        tokens.create("eve", "x", VIEWER, 1, BY, 1)
    for _ in range(TOKENS_MAX):
        tokens.create("ada", "x", VIEWER, 1, BY, 1)
    with pytest.raises(ConfigError, match="revoke one"):
        tokens.create("ada", "x", VIEWER, 1, BY, 2)
    tokens.create("ada", "x", VIEWER, 1, BY, 1 + DAY_MS)


def test_database_of_an_earlier_version_keeps_its_users_and_gets_tokens(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    with GroupDatabase(url) as database:
        Accounts(database).add("ada", ADMIN, PASSWORD, BY, 1)
        with database.transaction() as connection:
            schema.tokens.drop(connection)
            connection.execute(sql.delete(schema.schema))
            connection.execute(sql.insert(schema.schema), {"version": 2})
    for _ in range(2):
        with GroupDatabase(url) as database:
            assert Accounts(database).login("ada", PASSWORD) is not None
            secret, _made = ApiTokens(database).create("ada", "x", VIEWER, 1, BY, 1)
            assert ApiTokens(database).holder_of(secret, "", 2) is not None


def test_numbers_of_revoked_tokens_are_not_used_again(tokens: ApiTokens) -> None:
    _, first = tokens.create("ada", "x", VIEWER, 1, BY, 1)
    tokens.revoke(first.number, BY, 2)
    assert tokens.create("ada", "x", VIEWER, 1, BY, 3)[1].number > first.number
    with pytest.raises(LocalError, match="there is no token"):
        tokens.revoke(first.number, BY, 4)


def test_last_use_is_written_once_a_minute(tokens: ApiTokens) -> None:
    secret, _ = tokens.create("ada", "x", VIEWER, 1, BY, 1)
    for at in (100_000, 100_001 + TOUCH_MS // 2, 100_001 + TOUCH_MS):
        assert tokens.holder_of(secret, "10.0.0.9", at) is not None
        (one,) = tokens.tokens(at)
        assert (one.used_ms, one.address) == (100_000 if at <= 100_000 + TOUCH_MS else at, "10.0.0.9")


def test_rate_allows_a_burst_and_fills_with_time() -> None:
    limit = RateLimit(2.0, 3)
    assert [limit.take("a", 0) for _ in range(4)] == [0, 0, 0, 500]
    assert limit.take("b", 0) == 0
    assert limit.wait_ms("a", 499) == 1 and limit.take("a", 500) == 0 and limit.take("a", 500) == 500
    assert [limit.take("a", 100_000) for _ in range(4)] == [0, 0, 0, 500], "no more than the burst after a long time"
    for number in range(2 * KEYS_MAX):
        limit.take(f"k{number}", 0)
    assert len(limit._buckets) == KEYS_MAX


# Pages.


FORM = {"name": "nightly", "role": "viewer", "days": "30", "password": PASSWORD}


@spec("C03")
def test_page_shows_a_new_token_once(browser_of: Callable[[str], Browser], console: Console) -> None:
    browser = browser_of("operator")
    page = browser.post("/me/tokens", FORM)
    (secret,) = re.findall(r"tq_[\w-]{43}", page.text)
    holder = console.tokens.holder_of(secret, "", wall_ms())
    assert holder is not None and (holder.user.name, holder.role) == ("operator", VIEWER)
    again = browser.get("/me").text
    assert secret not in again and "nightly" in again
    assert browser.post(f"/me/tokens/{holder.token.number}/revoke").status_code == 303
    assert console.tokens.holder_of(secret, "", wall_ms()) is None


def test_page_makes_no_token_without_the_password_nor_above_the_role(
    browser_of: Callable[[str], Browser], console: Console
) -> None:
    browser = browser_of("viewer")
    for change, why in (
        ({"password": "wrong horse"}, "the present password is wrong"),
        ({"role": "admin"}, "at most that of its user"),
        ({"role": "root"}, "role: choose"),
        ({"days": "1000"}, "1 to 366 days"),
        ({"name": ""}, "printable characters"),
    ):
        response = browser.post("/me/tokens", {**FORM, **change})
        assert response.status_code == 400 and why in response.text
    assert console.tokens.tokens(wall_ms()) == []
    codes = [browser.post("/me/tokens", {**FORM, "password": "guess number 1"}).status_code for _ in range(8)]
    assert codes == [400] * 8
    assert browser.post("/me/tokens", FORM).status_code == 400, "after many guesses the right password has to wait"


def test_users_revoke_their_own_tokens_and_admins_any(browser_of: Callable[[str], Browser], console: Console) -> None:
    secret, made = console.tokens.create("operator", "x", VIEWER, 1, BY, wall_ms())
    assert browser_of("viewer").post(f"/me/tokens/{made.number}/revoke").status_code == 400
    assert browser_of("operator").post(f"/tokens/{made.number}/revoke").status_code == 403
    assert console.tokens.holder_of(secret, "", wall_ms()) is not None
    admin = browser_of("admin")
    assert "operator" in admin.get("/users").text
    assert admin.post(f"/tokens/{made.number}/revoke").status_code == 303
    assert console.tokens.holder_of(secret, "", wall_ms()) is None
    assert admin.post(f"/tokens/{made.number}/revoke").status_code == 400
