"""Users and their policies: kept in `accessControl.json`, and copied to slaves with each change.

Source: docs/reference/access.md; RocketMQ LocalAuthenticationMetadataProvider, LocalAuthorizationMetadataProvider,
whose stores are RocksDB and are not copied.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tandemq.broker.kernel.copied_tables import Polled, StreamedTable
from tandemq.broker.state.persistence import Saver
from tandemq.codec.ha import KIND_FEATURE_TABLES
from tandemq.codec.remoting.bodies import convert
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.config.file_accounts import RULES_KEPT_MAX
from tandemq.errors import ConfigError, ProtocolError
from tandemq.model.access import AclUser, Policy, Rules
from tandemq.model.codes import RequestCode as Code
from tandemq.model.command import Command
from tandemq.model.white_addresses import WhiteAddresses
from tandemq.storage.json_tables import TableFile, require

KIND = KIND_FEATURE_TABLES + 3
USERS_MAX = 100_000
_USERS, _POLICIES, _REMOVED, _WHOLE = "users", "policies", "removed", "whole"
_ACL1 = "acl1"
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


FILE = TableFile(
    "accessControl.json",
    _check,
    loss="users and policies changed last have their previous state",
    hint="restore the file from a backup or a slave; without it nobody but the users of the settings may do anything",
    is_secret=True,
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
            Rules(own)
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

    def __init__(self, saver: Saver) -> None:
        """Load the table.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._saver = saver
        self.users, self.policies, acl1 = _parsed(FILE.load(saver.disk))
        self.acl1 = acl1 or Acl1()
        self._rules: dict[str, Rules] = {}
        self._changes: dict[str, None] | None = None
        """Names of users that changed since the last publication; None: changes are not recorded."""

    def rules(self, name: str) -> Rules:
        """Return what a user may do by its policies."""
        found = self._rules.get(name)
        if found is None:
            if len(self._rules) >= RULES_KEPT_MAX:
                self._rules.clear()
            found = self._rules[name] = Rules(self.policies.get(name, ()))
        return found

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
        if self.users.pop(name, None) is not None or name in self.policies:
            self.policies.pop(name, None)
            self._changed(name)

    def put_policies(self, name: str, policies: tuple[Policy, ...]) -> None:
        """Replace the policies of a user."""
        if policies:
            self.policies[name] = policies
        else:
            self.policies.pop(name, None)
        self._changed(name)

    def put_acl1(self, acl1: Acl1) -> None:
        """Replace what the admin codes of ACL 1.0 keep besides accounts."""
        self.acl1 = acl1
        self._changed(_COMMON)

    def _changed(self, name: str) -> None:
        self._rules.pop(name, None)
        if self._changes is not None:
            self._changes[name] = None
        self._saver.later(FILE, self.as_json)

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of its file."""
        common = {_COMMON} if self.acl1 != Acl1() else set()
        return self._json_of(self.users.keys() | self.policies.keys() | common)

    def _json_of(self, names: Iterable[str]) -> dict[str, Any]:
        listed = sorted(names)
        return {
            _USERS: [self.users[name] for name in listed if name in self.users],
            _POLICIES: {name: self.policies[name] for name in listed if name in self.policies},
            **({_ACL1: self.acl1} if _COMMON in listed else {}),
        }

    # Copies.

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
        return self._json_of(names) | {_REMOVED: [name for name in names if name and name not in self.users]}

    def whole(self) -> dict[str, Any]:
        """Return the table for a slave."""
        return self.as_json() | {_WHOLE: True}

    def take(self, raw: dict[str, Any]) -> None:
        """Apply the changes or the whole table of a master.

        Raises:
            ProtocolError: they are malformed.
        """
        users, policies, acl1 = _parsed(raw)
        if raw.get(_WHOLE):
            acl1 = acl1 or Acl1()
            if (users, policies, acl1) == (self.users, self.policies, self.acl1):
                return
            self.users, self.policies, self.acl1 = users, policies, acl1
        else:
            for name in (*users, *policies, *(raw.get(_REMOVED) or ())):
                self.users.pop(name, None)
                self.policies.pop(name, None)
            self.users |= users
            self.policies |= policies
            self.acl1 = acl1 or self.acl1
        self._rules.clear()
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

    def polled(self, _command: Command) -> bytes:
        """See `Table`."""
        return self.whole()

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self._table.take(loads(polled.body, is_trusted=True))

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
        return dumps(self._table.whole())

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        self._table.take(table)
