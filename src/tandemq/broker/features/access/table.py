"""Users and their policies: kept in `accessControl.json`, and copied to slaves with each change.

The table may have 100,000 users, so that a change writes and copies only the user that changed: the file has a journal,
and slaves say what they have.

    a slave asks with version V ─► the changes since V, if they are known
                                ─► else all in pages: names after N, version W; then the changes since W, as before

Source: docs/reference/access.md; RocketMQ LocalAuthenticationMetadataProvider, LocalAuthorizationMetadataProvider,
whose stores are RocksDB and are not copied.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from tandemq.broker.kernel.copied_tables import Polled, StreamedTable
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.table_journal import REMOVED, removed_names
from tandemq.codec.ha import KIND_FEATURE_TABLES
from tandemq.codec.remoting.bodies import convert
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.config.file_accounts import RULES_KEPT_MAX
from tandemq.errors import ConfigError, ProtocolError
from tandemq.model.access import AclUser, Policy, Rules, check_policies, size_of
from tandemq.model.codes import RequestCode as Code
from tandemq.model.command import Command
from tandemq.model.white_addresses import WhiteAddresses
from tandemq.storage.json_tables import DataVersion, TableFile, require

KIND = KIND_FEATURE_TABLES + 3
USERS_MAX = 100_000
SIZE_MAX = 500_000
"""Maximum number of entries and source addresses of all users."""
PAGE_SIZE = 2_000
"""Number of users, entries and source addresses with which a page of the whole table ends."""
CHANGES_KEPT = 10_000
"""Number of changes that are known to a slave that asks for those since its last request."""
_ENCODED_AT_ONCE = 500
"""Number of users that the file is encoded by."""
_USERS, _POLICIES, _VERSION = "users", "policies", "dataVersion"
_ACL1 = "acl1"
_COPY, _NEXT, _WHOLE = "copy", "next", "whole"
"""In a page: the version of what it has, the field `after` of the request for the next page, that pages are of all."""
_COMMON = ""
"""Among the names of changed users: what all share."""


class Acl1(NamedTuple):
    """What the admin codes of ACL 1.0 keep besides accounts."""

    white_addresses: tuple[str, ...] = ()
    """From where requests need no signature, nor rights."""
    counter: int = 0
    """Number of changes by these codes, and the time of the last one."""
    timestamp_ms: int = 0


def _check(raw: dict[str, Any]) -> None:
    require(raw, _USERS)
    _parsed(raw)


def _encoded(table: dict[str, Any]) -> bytes:
    """Return the content of the file, encoded in steps, so that the broker goes on meanwhile: a line for each user."""
    users, policies = list(table[_USERS]), list(table[_POLICIES].items())
    pieces = [b'{"' + _USERS.encode() + b'":[\n']
    for start in range(0, len(users), _ENCODED_AT_ONCE):
        pieces.append(b",\n" if start else b"")
        pieces.append(b",\n".join(map(dumps, users[start : start + _ENCODED_AT_ONCE])))
    pieces.append(b'],"' + _POLICIES.encode() + b'":{\n')
    for start in range(0, len(policies), _ENCODED_AT_ONCE):
        pieces.append(b",\n" if start else b"")
        some = policies[start : start + _ENCODED_AT_ONCE]
        pieces.append(b",\n".join(dumps(name) + b":" + dumps(own) for name, own in some))
    rest = {name: value for name, value in table.items() if name not in (_USERS, _POLICIES)}
    return b"".join(pieces) + b"}," + dumps(rest)[1:]


FILE = TableFile(
    "accessControl.json",
    _check,
    loss="users and policies changed last have their previous state",
    hint="restore the file from a backup or a slave; without it nobody but the users of the settings may do anything",
    is_secret=True,
    encode=_encoded,
)


class _Parsed(NamedTuple):
    users: dict[str, AclUser]
    policies: dict[str, tuple[Policy, ...]]
    acl1: Acl1 | None
    """None: the table does not have it."""


def _parsed(raw: dict[str, Any]) -> _Parsed:
    """Return the content of a table.

    Raises:
        ProtocolError: it is malformed.
    """
    users = convert(raw.get(_USERS) or [], list[AclUser], "users")
    policies = convert(raw.get(_POLICIES) or {}, dict[str, tuple[Policy, ...]], "policies")
    for name, own in policies.items():
        try:
            check_policies(own)
        except ProtocolError as error:
            raise ProtocolError(f"policies of {name[:100]}: {error}") from error
    acl1 = convert(raw[_ACL1], Acl1, _ACL1) if _ACL1 in raw else None
    try:
        for texts in (
            *((user.white_addresses,) for user in users if user.white_addresses),
            (acl1 or Acl1()).white_addresses,
        ):
            WhiteAddresses(texts)
    except ConfigError as error:
        raise ProtocolError(str(error)) from error
    return _Parsed({user.username: user for user in users}, policies, acl1)


class AccessTable:
    """The users, by name, and their policies."""

    def __init__(self, saver: Saver, wall_ms: int) -> None:
        """Load the table. `wall_ms`: time of the start.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._saver = saver
        self._started_ms = wall_ms
        self.users: dict[str, AclUser] = {}
        self.policies: dict[str, tuple[Policy, ...]] = {}
        self.acl1 = Acl1()
        self._names: list[str] = []
        """Of all that have an entry in one of the two, sorted."""
        self._size = 0
        """Number of entries and source addresses."""
        self._loaded: frozenset[str] = frozenset()
        """At the start: the names that the file has."""
        self._rules: dict[str, Rules] = {}
        self.generation = 0
        """Number of changes."""
        self._unjudged: dict[str, None] | None = {}
        """Users that changed since `take_unjudged`; None: all."""
        self._changes: dict[str, None] | None = None
        """Names of users that changed since the last publication; None: changes are not recorded."""
        self._recent: deque[str] = deque(maxlen=CHANGES_KEPT)
        """Names of users that changed last, one for each number up to that of the version."""
        raw = FILE.load(saver.disk)
        self._replace(_parsed(raw))
        self._loaded = frozenset(self._names)
        version = DataVersion.from_json(raw.get(_VERSION)) if raw else DataVersion(wall_ms)
        journal = saver.keep_journal(FILE, self.as_json, self._line)
        self._version = journal.replay(version, wall_ms, self._replay, has_table=bool(raw))
        self._loaded = frozenset()

    def _replay(self, change: dict[str, Any], adds_only: bool) -> None:
        """Apply a line of the journal; `adds_only`: only to users that the file, which was put there, does not have."""
        users, policies, acl1 = _parsed(change)
        removed = set(removed_names(change))
        if adds_only:
            users = {name: user for name, user in users.items() if name not in self._loaded}
            policies = {name: own for name, own in policies.items() if name not in self._loaded}
            removed, acl1 = removed - self._loaded, None
        self._merge(_Parsed(users, policies, acl1), removed)

    def rules(self, name: str) -> Rules:
        """Return what a user may do by its policies."""
        found = self._rules.get(name)
        if found is None:
            if len(self._rules) >= RULES_KEPT_MAX:
                self._rules.clear()
            found = self._rules[name] = Rules(self.policies.get(name, ()))
        return found

    def take_unjudged(self) -> Collection[str] | None:
        """Return the users that changed since the last call; None: perhaps all did."""
        names, self._unjudged = self._unjudged, {}
        return names

    def _unjudge(self, names: Iterable[str]) -> None:
        if self._unjudged is not None:
            self._unjudged.update(dict.fromkeys(names))
        if self._unjudged is not None and _COMMON in self._unjudged:
            self._unjudged = None

    def names(self, after: str = "") -> Iterator[str]:
        """Yield the names of users in order, those behind a name."""
        for index in range(bisect_right(self._names, after), len(self._names)):
            yield self._names[index]

    # Changes.

    def put(self, user: AclUser) -> None:
        """Create or change a user.

        Raises:
            ProtocolError: there are `USERS_MAX` already.
        """
        if user.username not in self.users and len(self.users) >= USERS_MAX:
            raise ProtocolError(f"there are {USERS_MAX} users, no more are allowed")
        self.users[user.username] = user
        self._changed(user.username)

    def remove(self, name: str) -> None:
        """Delete a user, if there is one, and its policies."""
        if name in self.users or name in self.policies:
            self.users.pop(name, None)
            self._set_policies(name, ())
            self._changed(name)

    def put_policies(self, name: str, policies: tuple[Policy, ...]) -> None:
        """Replace the policies of a user.

        Raises:
            ProtocolError: all users together have `SIZE_MAX` entries already.
        """
        size = self._size - size_of(self.policies.get(name, ())) + size_of(policies)
        if size > max(SIZE_MAX, self._size):
            raise ProtocolError(f"all users have at most {SIZE_MAX} entries and source addresses")
        self._set_policies(name, policies)
        self._changed(name)

    def put_acl1(self, acl1: Acl1) -> None:
        """Replace what the admin codes of ACL 1.0 keep besides accounts."""
        self.acl1 = acl1
        self._changed(_COMMON)

    def _set_policies(self, name: str, policies: tuple[Policy, ...]) -> None:
        self._size += size_of(policies) - size_of(self.policies.pop(name, ()))
        if policies:
            self.policies[name] = policies

    def _changed(self, name: str) -> None:
        self._rules.pop(name, None)
        self.generation += 1
        self._unjudge((name,))
        self._list(name)
        self._version.next(self._started_ms)
        self._recent.append(name)
        if self._changes is not None:
            self._changes[name] = None
        self._saver.change(FILE, (name,))

    def _list(self, name: str) -> None:
        """Enter a name into the list of names, or remove it."""
        at = bisect_left(self._names, name)
        is_listed = at < len(self._names) and self._names[at] == name
        is_known = name in self.users or name in self.policies
        if is_known and not is_listed:
            self._names.insert(at, name)
        elif is_listed and not is_known:
            del self._names[at]

    def _merge(self, parsed: _Parsed, removed: Iterable[str]) -> list[str]:
        """Apply changes: of the users in them nothing else stays. Return their names."""
        self.generation += 1
        names = [*removed, *parsed.users, *parsed.policies]
        self._unjudge(names if parsed.acl1 is None else (_COMMON,))
        for name in names:
            self.users.pop(name, None)
            self._set_policies(name, ())
            self._rules.pop(name, None)
        self.users |= parsed.users
        for name, policies in parsed.policies.items():
            self._set_policies(name, policies)
        for name in names:
            self._list(name)
        self.acl1 = parsed.acl1 or self.acl1
        return names

    def _replace(self, parsed: _Parsed) -> None:
        self.generation += 1
        self._unjudged = None
        self.users, self.policies, self.acl1 = parsed.users, parsed.policies, parsed.acl1 or Acl1()
        self._names = sorted(self.users.keys() | self.policies.keys())
        self._size = sum(map(size_of, self.policies.values()))
        self._rules.clear()

    # The file.

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of its file: a snapshot."""
        return {
            _VERSION: self._version.as_json(),
            _USERS: tuple(self.users.values()),
            _POLICIES: self.policies.copy(),
            **({_ACL1: self.acl1} if self.acl1 != Acl1() else {}),
        }

    def _line(self, names: Iterable[str]) -> dict[str, Any]:
        """Return a line of the journal."""
        return self._changes_of(dict.fromkeys(names)) | {_VERSION: self._version.as_json()}

    def _changes_of(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the present state of some users, and the names of those that are gone."""
        listed = sorted(names)
        return {
            _USERS: [self.users[name] for name in listed if name in self.users],
            _POLICIES: {name: self.policies[name] for name in listed if name in self.policies},
            REMOVED: [name for name in listed if name and name not in self.users],
            **({_ACL1: self.acl1} if _COMMON in listed else {}),
        }

    # Copies: the master.

    @property
    def copy_version(self) -> str:
        """The version as slaves compare it: of this start of this broker."""
        return f"{self._started_ms}:{self._version.counter}"

    def changes_since(self, version: str) -> dict[str, Any] | None:
        """Return what has changed since a version; None if that is not known."""
        start, _, digits = version.partition(":")
        if start != str(self._started_ms) or not digits.isdecimal() or len(digits) > 18:
            return None
        behind = self._version.counter - int(digits)
        if not 0 <= behind <= len(self._recent):
            return None
        names = dict.fromkeys(self._recent[-number] for number in range(1, behind + 1))
        return self._changes_of(names) | {_COPY: self.copy_version}

    def page(self, after: str) -> dict[str, Any]:
        """Return a page of the whole table: the users behind a name."""
        names: list[str] = []
        size = 0
        for name in self.names(after):
            if size >= PAGE_SIZE:
                break
            names.append(name)
            size += 1 + size_of(self.policies.get(name, ()))
        is_last = not names or names[-1] == self._names[-1]
        more = {} if is_last else {_NEXT: names[-1]}
        return self._changes_of([_COMMON, *names]) | {_COPY: self.copy_version, _WHOLE: True} | more

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` has any."""
        return bool(self._changes)

    def collect_changes(self, *, is_wanted: bool) -> None:
        """Start or stop collecting changes for `take_changes`."""
        self._changes = {} if is_wanted else None

    def take_changes(self) -> dict[str, Any] | None:
        """Return what has changed since the last call; None if nothing has."""
        if not self._changes:
            return None
        names, self._changes = list(self._changes), {}
        return self._changes_of(names)

    # Copies: a slave.

    def take(self, raw: dict[str, Any]) -> None:
        """Apply the changes of a master.

        Raises:
            ProtocolError: they are malformed.
        """
        names = self._merge(_parsed(raw), removed_names(raw))
        if names or _ACL1 in raw:
            self._version.next(self._started_ms)
            self._saver.change(FILE, names)

    def take_whole(self, pages: Iterable[_Parsed]) -> None:
        """Apply all pages of a master's table."""
        after = _Parsed({}, {}, Acl1())
        for users, policies, acl1 in pages:
            after.users.update(users)
            after.policies.update(policies)
            after = after._replace(acl1=acl1 or Acl1())
        if after != (self.users, self.policies, self.acl1):
            self._replace(after)
            self._version.next(self._started_ms)
            self._saver.later(FILE, self.as_json)


class CopiedAccessTable(StreamedTable):
    """The users and policies, as slaves copy them."""

    code = Code.TANDEM_ACCESS
    is_optional = True
    kind = KIND
    is_needed = False

    def __init__(self, table: AccessTable) -> None:
        """Begin."""
        self._table = table
        self._copied = ""
        """A slave: the version of the master's table that it has."""
        self._pages: list[_Parsed] = []
        """A slave: pages of the whole table, until the last one."""
        self._first = self._after = ""
        """Version of the first page, and the last name of the pages."""

    def request_fields(self) -> dict[str, str]:
        """See `Table`."""
        return {"version": self._copied, "after": self._after if self._pages else ""}

    @property
    def has_more(self) -> bool:
        """See `Table`."""
        return bool(self._pages)

    def polled(self, command: Command) -> bytes:
        """See `Table`."""
        after = command.fields.get("after", "")
        changes = None if after else self._table.changes_since(command.fields.get("version", ""))
        return dumps(self._table.page(after) if changes is None else changes)

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self._take(loads(polled.body, is_trusted=True))

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._table.has_changes

    def collect_changes(self, *, is_wanted: bool) -> None:
        """See `Table`."""
        self._table.collect_changes(is_wanted=is_wanted)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        changes = self._table.take_changes()
        return None if changes is None else dumps(changes)

    def whole(self) -> bytes:
        """See `Table`."""
        raise AssertionError("it is sent in pieces")

    def pieces(self) -> Iterator[bytes]:
        """See `Table`."""
        after: str | None = ""
        while after is not None:
            page = self._table.page(after)
            yield dumps(page)
            after = page.get(_NEXT)

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        self._take(table)

    def _take(self, raw: dict[str, Any]) -> None:
        """Apply changes, or a page: the table changes with the last one."""
        pages, self._pages = self._pages, []
        if not raw.get(_WHOLE):
            self._table.take(raw)
            self._copied = str(raw.get(_COPY, ""))
            return
        version = str(raw.get(_COPY, ""))
        if not pages:
            self._first = version
        elif version.partition(":")[0] != self._first.partition(":")[0]:
            raise ProtocolError("its pages are of two masters")
        pages.append(_parsed(raw))
        if _NEXT in raw:
            self._pages, self._after = pages, str(raw[_NEXT])
            return
        self._table.take_whole(pages)
        self._copied = self._first
