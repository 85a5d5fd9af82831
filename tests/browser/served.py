"""The process `tandemq console` beside a cluster, and what watches the browser's pages while a test uses them."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from tandemq.console.access.accounts import Accounts, ConsoleRole
from tandemq.console.access.tokens import ApiTokens
from tandemq.console.services import wall_ms
from tandemq.groupdb.audit import Actor
from tandemq.groupdb.database import GroupDatabase
from tandemq.run.children import Child

PASSWORD = "correct horse"
ROLES = {"vera": ConsoleRole.VIEWER, "otto": ConsoleRole.OPERATOR, "ada": ConsoleRole.ADMIN}
"""Users of every console: name and role."""
ROOT = Path(__file__).parents[2]
DOCUMENTED = "docs/assets/console"
PICTURES = ROOT / os.environ.get("TANDEMQ_SCREENSHOTS", "build/screenshots")
"""Directory of the screenshots; `make screenshots` sets that of the documentation, which has only those of its page."""
_SHOWN = frozenset(
    re.findall(
        rf"{DOCUMENTED.removeprefix('docs/')}/([\w-]+)\.png", (ROOT / "docs/guides/console.md").read_text("utf-8")
    )
)
_SCRIPT = """
document.addEventListener("securitypolicyviolation",
    event => reportViolation(event.violatedDirective + " " + event.blockedURI));
"""


class ServedConsole:
    """A console in a process of its own, with one user per role."""

    def __init__(self, directory: Path, name_servers: str, *words: str) -> None:
        self.url = f"sqlite:///{directory / 'console.db'}"
        with GroupDatabase(self.url) as database:
            accounts = Accounts(database)
            for name, role in ROLES.items():
                accounts.add(name, role, PASSWORD, Actor("test"), 1)
        command = ["console", "--port", "0", "--namesrv", name_servers, "--database", self.url, *words]
        self._child = Child("console", directory, lambda: command)

    def __enter__(self) -> Self:
        self._child.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stop(), f"the console did not stop cleanly: {self._child.last_lines()}"
        assert not self.log, f"the console reported: {self.log}"

    @property
    def base(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://{self._child.address}"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log(self) -> str:
        """What it has logged."""
        with contextlib.suppress(FileNotFoundError):
            return self._child.log_path.read_text(encoding="utf-8")
        return ""

    def make_token(self, user: str) -> str:
        """Make a token of the API, with the user's role."""
        with GroupDatabase(self.url) as database:
            return ApiTokens(database).create(user, "test", ROLES[user], 1, Actor("test"), wall_ms())[0]

    @contextmanager
    def audit(self) -> Iterator[Any]:
        """A connection to its database."""
        with GroupDatabase(self.url) as database, database.transaction() as connection:
            yield connection


class Visitor:
    """A user's browser: all its pages are watched. At the end of the test nothing may have been reported.

    Watched: violations of the content security policy, requests to other hosts, errors on the browser's console.
    """

    def __init__(self, browser: Browser, console: ServedConsole, **options: Any) -> None:
        self.console = console
        self.faults: list[str] = []
        defaults: Mapping[str, Any] = {
            "base_url": console.base,
            "locale": "en-GB",
            "viewport": {"width": 1280, "height": 800},
        }
        self.context: BrowserContext = browser.new_context(**{**defaults, **options})
        self.context.set_default_timeout(60_000)
        self.context.expose_function("reportViolation", lambda text: self.faults.append(f"policy: {text}"))
        self.context.add_init_script(_SCRIPT)
        self.context.on("request", self._on_request)
        self.context.on("console", self._on_console)
        self.context.on("weberror", lambda error: self.faults.append(f"script: {error.error}"))
        self.page: Page = self.context.new_page()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(("data:", f"{self.console.base}/")):
            self.faults.append(f"request to {request.url}")

    def _on_console(self, message: ConsoleMessage) -> None:
        # A refused page is what some tests want; the browser calls it an error.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(f"console: {message.text}")

    def log_in(self, name: str) -> Page:
        """Log in by the form, and return the page that follows."""
        self.page.goto("/login")
        self.page.locator("[name=name]").fill(name)
        self.page.locator("[name=password]").fill(PASSWORD)
        self.page.locator("main button").click()
        self.page.wait_for_url(lambda url: urlsplit(url).path != "/login")
        return self.page

    def picture(self, name: str, *, is_whole: bool = False) -> None:
        """Take a screenshot for the documentation. `is_whole`: of the whole page."""
        if PICTURES == ROOT / DOCUMENTED and name not in _SHOWN:
            return
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=is_whole, animations="disabled")

    def close(self) -> None:
        self.context.close()
        assert self.faults == []


def chromium() -> str:
    """Return the program of an installed Chromium; Playwright's own browsers are not used."""
    found = os.environ.get("TANDEMQ_CHROMIUM") or next(
        (path for name in ("chromium", "chromium-headless-shell", "google-chrome") if (path := shutil.which(name))),
        None,
    )
    assert found, "install Debian's chromium, or set TANDEMQ_CHROMIUM to the path of one"
    return found
