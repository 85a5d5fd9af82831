"""Accounts of the files of ACL 1.0, read again when these change, and the list of white addresses of all files.

A file that cannot be read, or is malformed, keeps what it had before; each of its faults is logged once. At the start
it ends the process.

Source: docs/reference/access.md; RocketMQ PlainPermissionManager, AclFileWatchService.
"""

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.config.account_files import AccountFile, AccountFiles, parse_account_file
from tandemq.errors import ConfigError
from tandemq.model.access import Rules
from tandemq.model.accounts import Translated
from tandemq.model.white_addresses import WhiteAddresses

log = logging.getLogger(__name__)
CHECK_MS = 5_000
"""How often the files are looked at."""
REPEATED_MAX = 100
"""Maximum number of log lines about accounts that are in several files."""
RULES_KEPT_MAX = 10_000
"""Maximum number of users whose policies are kept prepared."""


class AccountPlace(NamedTuple):
    """Where an account, or the list of white addresses, is written."""

    path: str
    line: int

    def __str__(self) -> str:
        """Return it as logs and responses show it."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class _Accounts:
    """The accounts of all files, as a job has read them: large, so that a turn only takes them over."""

    contents: Mapping[str, bytes] = field(default_factory=dict)
    """Of the files below, by path: what is the same is not parsed again."""
    files: Mapping[str, AccountFile] = field(default_factory=dict)
    """By path, in the order in which their accounts count."""
    accounts: Mapping[str, tuple[AccountPlace, Translated]] = field(default_factory=dict)
    names: Sequence[str] = ()
    """Of the accounts, sorted."""
    white: Sequence[WhiteAddresses] = ()
    repeated: Sequence[str] = ()
    """Log lines about accounts that are in several files."""


class _Read(NamedTuple):
    """What a look at the files has found."""

    found: _Accounts
    faults: Mapping[str, ConfigError]
    """By path; "": of all files."""


class FileAccounts:
    """The accounts of all files, by name."""

    def __init__(self, files: AccountFiles | None) -> None:
        """Read the files; None: there are none.

        Raises:
            ConfigError: one of them cannot be read, or is malformed.
        """
        self._all = _Accounts()
        self._rules: dict[str, Rules] = {}
        self.generation = 0
        """Number of times that they were read and had changed."""
        self._faults: dict[str, str] = {}
        self._is_reading = False
        self._files = files
        if files is not None:
            self._take(_read(files, self._all), is_start=True)

    @property
    def files(self) -> Mapping[str, AccountFile]:
        """The files by path, in the order in which their accounts count."""
        return self._all.files

    @property
    def white_addresses(self) -> tuple[str, ...]:
        """The white addresses of all files, as they are written."""
        return tuple(text for file in self._all.files.values() for text in file.white_addresses)

    def names(self, after: str = "") -> Sequence[str]:
        """Return the names of accounts in order, those behind a name."""
        return self._all.names[bisect_right(self._all.names, after) :]

    def account(self, name: str) -> Translated | None:
        """Return the user and policies of an account."""
        found = self._all.accounts.get(name)
        return None if found is None else found[1]

    def place(self, name: str) -> AccountPlace | None:
        """Return where an account is written."""
        found = self._all.accounts.get(name)
        return None if found is None else found[0]

    def is_white(self, address: str) -> bool:
        """Whether requests from an address need no account."""
        return any(addresses.have(address) for addresses in self._all.white)

    def rules(self, name: str) -> Rules:
        """Return what an account may do."""
        found = self._rules.get(name)
        if found is None:
            if len(self._rules) >= RULES_KEPT_MAX:
                self._rules.clear()
            found = self._rules[name] = Rules(self._all.accounts[name][1].policies)
        return found

    def look(self) -> Job | None:
        """Return the job that reads the files if they have changed; None while one is in progress, or without files."""
        files, before = self._files, self._all
        if files is None or self._is_reading:
            return None
        self._is_reading = True
        return Job("read accounts", lambda: _read(files, before), self._done)

    def _done(self, done: JobDone, _turn: Turn, _now: Now) -> None:
        self._is_reading = False
        if done.error is not None:
            log.error("access: the files of accounts were not read: %s", done.error)
        else:
            self._take(done.result)  # type: ignore[arg-type]  # what `_read` returns

    def _take(self, read: _Read | None, *, is_start: bool = False) -> None:
        """Take over what was read; None: nothing has changed."""
        if read is None:
            return
        for path, error in read.faults.items():
            self._fault(path, error, is_start=is_start)
        self._faults = {path: what for path, what in self._faults.items() if path in read.faults}
        before, self._all = self._all, read.found
        if self._all is before:
            return
        self._rules = {}
        self.generation += 1
        for path, file in self._all.files.items():
            if file is not before.files.get(path):
                counts = len(file.accounts), len(file.white_addresses)
                log.info("access: %s: %d accounts, %d global white addresses", path, *counts)
                for warning in file.warnings:
                    log.warning("access: %s: %s", path, warning)
        for line in self._all.repeated:
            log.warning("access: %s", line)

    def _fault(self, path: str, error: ConfigError, *, is_start: bool) -> None:
        what = f"{path}: {error.args[0]}" if path else str(error.args[0])
        if is_start:
            raise ConfigError(what, hint=error.hint)
        if self._faults.get(path) != what:
            self._faults[path] = what
            hint = f" ({error.hint})" if error.hint else ""
            log.error("access: %s%s; the accounts are as before until it is corrected", what, hint)


def _read(files: AccountFiles, before: _Accounts) -> _Read | None:
    """Read and parse the files that have changed; on a worker thread, apart from the start. None: none has."""
    try:
        given = files.read()
    except ConfigError as error:
        return _Read(before, {"": error})
    if given is None:
        return None
    contents: dict[str, bytes] = {}
    found: dict[str, AccountFile] = {}
    faults: dict[str, ConfigError] = {}
    for path, content in given.items():
        try:
            if isinstance(content, ConfigError):
                raise content
            is_same = before.contents.get(path) == content
            found[path] = before.files[path] if is_same else parse_account_file(content)
            contents[path] = content
        except ConfigError as error:
            faults[path] = error
            if path in before.files:
                found[path], contents[path] = before.files[path], before.contents[path]
    return _Read(_merged(contents, found), faults)


def _merged(contents: Mapping[str, bytes], files: Mapping[str, AccountFile]) -> _Accounts:
    accounts: dict[str, tuple[AccountPlace, Translated]] = {}
    repeated: list[str] = []
    for path, file in files.items():
        for name, (line, account) in file.accounts.items():
            if name not in accounts:
                accounts[name] = AccountPlace(path, line), account
            elif len(repeated) < REPEATED_MAX:
                repeated.append(f"{path}:{line}: the account {name} counts as in {accounts[name][0]}")
    white = [WhiteAddresses(file.white_addresses) for file in files.values() if file.white_addresses]
    return _Accounts(contents, files, accounts, sorted(accounts), white, repeated)
