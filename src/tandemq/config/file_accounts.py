"""Accounts of the files of ACL 1.0, read again when these change, and the list of white addresses of all files.

A file that cannot be read, or is malformed, keeps what it had before; each of its faults is logged once. At the start
it ends the process.

Source: docs/reference/access.md; RocketMQ PlainPermissionManager, AclFileWatchService.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.config.account_files import AccountFile, AccountFiles, parse_account_file
from tandemq.errors import ConfigError
from tandemq.model.access import AclUser, Rules
from tandemq.model.accounts import Translated
from tandemq.model.white_addresses import WhiteAddresses

log = logging.getLogger(__name__)
CHECK_MS = 5_000
"""How often the files are looked at."""
RULES_KEPT_MAX = 10_000
"""Maximum number of users whose policies are kept prepared."""
_Read = Mapping[str, AccountFile | ConfigError] | ConfigError | None


class AccountPlace(NamedTuple):
    """Where an account, or the list of white addresses, is written."""

    path: str
    line: int

    def __str__(self) -> str:
        """Return it as logs and responses show it."""
        return f"{self.path}:{self.line}"


class FileAccounts:
    """The accounts of all files, by name."""

    def __init__(self, files: AccountFiles | None) -> None:
        """Read the files; None: there are none.

        Raises:
            ConfigError: one of them cannot be read, or is malformed.
        """
        self.files: dict[str, AccountFile] = {}
        """By path, in the order in which their accounts count."""
        self.white_addresses: tuple[str, ...] = ()
        """Of all files, as they are written."""
        self._white: list[WhiteAddresses] = []
        self._accounts: dict[str, tuple[AccountPlace, Translated]] = {}
        self._rules: dict[str, Rules] = {}
        self._faults: dict[str, str] = {}
        self._is_reading = False
        self._files = files
        if files is not None:
            self._take(_read(files), is_start=True)

    def __iter__(self) -> Iterator[AclUser]:
        """Yield their users."""
        return (account.user for _, account in self._accounts.values())

    def account(self, name: str) -> Translated | None:
        """Return the user and policies of an account."""
        found = self._accounts.get(name)
        return None if found is None else found[1]

    def place(self, name: str) -> AccountPlace | None:
        """Return where an account is written."""
        found = self._accounts.get(name)
        return None if found is None else found[0]

    def is_white(self, address: str) -> bool:
        """Whether requests from an address need no account."""
        return any(addresses.have(address) for addresses in self._white)

    def rules(self, name: str) -> Rules:
        """Return what an account may do."""
        found = self._rules.get(name)
        if found is None:
            if len(self._rules) >= RULES_KEPT_MAX:
                self._rules.clear()
            found = self._rules[name] = Rules(self._accounts[name][1].policies)
        return found

    def look(self) -> Job | None:
        """Return the job that reads the files if they have changed; None while one is in progress, or without files."""
        files = self._files
        if files is None or self._is_reading:
            return None
        self._is_reading = True
        return Job("read accounts", lambda: _read(files), self._done)

    def _done(self, done: JobDone, _turn: Turn, _now: Now) -> None:
        self._is_reading = False
        if done.error is not None:
            log.error("access: the files of accounts were not read: %s", done.error)
        else:
            self._take(done.result)  # type: ignore[arg-type]  # what `_read` returns

    def _take(self, found: _Read, *, is_start: bool = False) -> None:
        if found is None:
            return
        if isinstance(found, ConfigError):
            self._fault("", found, is_start=is_start)
            return
        self._faults.pop("", None)
        before, self.files = self.files, {}
        for path, file in found.items():
            if isinstance(file, ConfigError):
                self._fault(path, file, is_start=is_start)
                if path in before:
                    self.files[path] = before[path]
                continue
            self._faults.pop(path, None)
            self.files[path] = file
            if file != before.get(path):
                counts = len(file.accounts), len(file.white_addresses)
                log.info("access: %s: %d accounts, %d global white addresses", path, *counts)
                for warning in file.warnings:
                    log.warning("access: %s: %s", path, warning)
        self._merge()

    def _fault(self, path: str, error: ConfigError, *, is_start: bool) -> None:
        what = f"{path}: {error.args[0]}" if path else str(error.args[0])
        if is_start:
            raise ConfigError(what, hint=error.hint)
        if self._faults.get(path) != what:
            self._faults[path] = what
            hint = f" ({error.hint})" if error.hint else ""
            log.error("access: %s%s; the accounts are as before until it is corrected", what, hint)

    def _merge(self) -> None:
        self._accounts = {}
        self._rules = {}
        for path, file in self.files.items():
            for name, (line, account) in file.accounts.items():
                known = self.place(name)
                if known is not None:
                    log.warning("access: %s:%d: the account %s counts as in %s", path, line, name, known)
                    continue
                self._accounts[name] = AccountPlace(path, line), account
        self.white_addresses = tuple(text for file in self.files.values() for text in file.white_addresses)
        self._white = [WhiteAddresses(file.white_addresses) for file in self.files.values() if file.white_addresses]


def _read(files: AccountFiles) -> _Read:
    """Read and parse the files; on a worker thread, apart from the start."""
    try:
        contents = files.read()
    except ConfigError as error:
        return error
    return None if contents is None else {path: _parsed(content) for path, content in contents.items()}


def _parsed(content: bytes | ConfigError) -> AccountFile | ConfigError:
    if isinstance(content, ConfigError):
        return content
    try:
        return parse_account_file(content)
    except ConfigError as error:
        return error
