"""A console whose cluster is in memory, and browsers of its users."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from tandemq.client.aio.admin import Admin
from tandemq.client.aio.producer import Producer
from tandemq.console.access import passwords
from tandemq.console.access.accounts import ROLES, csrf_token
from tandemq.console.app import build_app
from tandemq.console.services import Console, ConsoleSettings, wall_ms
from tandemq.groupdb.audit import Actor, AuditEntry, entries
from tandemq.groupdb.database import GroupDatabase
from tests.unit.console.fakes import FakeAdmin, FakeProducer
from tests.unit.groupdb.unsynced import use_unsynced_sqlite

PASSWORD = "correct horse"
BASE = "http://localhost"


class Browser:
    """A client that sends what a browser sends from a page of the console."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    @property
    def csrf(self) -> str:
        return csrf_token(self.client.cookies.get("tandemq") or "")

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)

    def post(self, path: str, data: Any = None, **options: Any) -> Any:
        """Send a form with the session's token, as from a page of the same origin."""
        headers = {"sec-fetch-site": "same-origin", **options.pop("headers", {})}
        return self.client.post(path, data={"csrf": self.csrf, **(data or {})}, headers=headers, **options)

    def log_in(self, name: str, password: str = PASSWORD) -> Any:
        return self.post("/login", {"name": name, "password": password})


@pytest.fixture(autouse=True, scope="session")
def _unsynced_sqlite() -> None:
    use_unsynced_sqlite()


@pytest.fixture(autouse=True)
def _cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that take less than a millisecond."""
    monkeypatch.setattr(passwords, "_COST", 2)


@pytest.fixture
def settings() -> ConsoleSettings:
    return ConsoleSettings()


@pytest.fixture
def cluster() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def producer() -> FakeProducer:
    return FakeProducer()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[GroupDatabase]:
    with GroupDatabase(f"sqlite:///{tmp_path / 'groups.db'}") as opened:
        yield opened


@pytest.fixture
def console(database: GroupDatabase, cluster: FakeAdmin, producer: FakeProducer, settings: ConsoleSettings) -> Console:
    console = Console(settings, database, cast(Admin, cluster), "10.0.0.1:9876")
    console._producer = cast(Producer, producer)
    for role in ROLES:
        console.accounts.add(role, ROLES[role], PASSWORD, Actor("test"), wall_ms())
    return console


@pytest.fixture
def new_browser(console: Console) -> Iterator[Callable[[], Browser]]:
    """Make browsers without a session."""
    clients: list[TestClient] = []
    app = build_app(console)

    def make() -> Browser:
        client = TestClient(app, base_url=BASE, follow_redirects=False)
        client.__enter__()
        clients.append(client)
        return Browser(client)

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def browser_of(new_browser: Callable[[], Browser]) -> Callable[[str], Browser]:
    """Make browsers of users by their role."""

    def make(role: str) -> Browser:
        browser = new_browser()
        assert browser.log_in(role).status_code == 303
        return browser

    return make


@pytest.fixture
def audit(database: GroupDatabase) -> Callable[[], list[AuditEntry]]:
    """Return the entries of the audit log, oldest first, without those of users."""

    def read() -> list[AuditEntry]:
        with database.transaction() as connection:
            found = entries(connection, count=1_000)
        return [one for one in reversed(found) if not one.action.startswith("user.")]

    return read
