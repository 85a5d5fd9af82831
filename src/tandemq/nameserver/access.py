"""Access control of a name server: which user may send which request, if `authenticationEnabled`.

    request ─► right of its code ─► signature of a user ─► changes: super users, accounts that may update the cluster

Users are the brokers that know `haSecretFile`, those of the settings, and the accounts of the files in `aclPath`, which
are read again when they change. Requests to the registry prove `haSecretFile` instead, see `registry_service`.

Source: docs/reference/access.md, "Name servers". RocketMQ's name servers check nobody; its brokers and clients sign.
"""

import logging
from enum import Enum

from tandemq.boundary import Job, Now
from tandemq.codec.proofs import Keyring
from tandemq.codec.remoting.signature import ACCESS_KEY, is_signed, member_user
from tandemq.config.access import configured_users
from tandemq.config.account_files import AccountFiles
from tandemq.config.file_accounts import CHECK_MS, FileAccounts
from tandemq.model.access import NOT_AUTHENTICATED, RESERVED_PREFIX, AclUser, Need, ResourceKind, actions
from tandemq.model.command import Command
from tandemq.model.white_addresses import white_addresses
from tandemq.nameserver.running_config import RunningConfig

log = logging.getLogger(__name__)
_NOBODY_KEY = "no user has this key"
_UPDATE = Need(ResourceKind.CLUSTER, "", actions("Update"))


class NameServerRight(Enum):
    """What a request needs."""

    ROUTE = "a user, unless routes are open"
    READ = "a user"
    CHANGE = "a user that may update the cluster"
    PROOF = "a session that has proven the secret of the registry"


class NameServerAccess:
    """Checks requests; knows the users."""

    def __init__(self, config: RunningConfig, keyring: Keyring | None, files: AccountFiles | None) -> None:
        """Read the files of accounts.

        Raises:
            ConfigError: one of them cannot be read, or is malformed.
        """
        self._config = config
        self._keyring = keyring
        self._own = configured_users(config.present)
        self._accounts = FileAccounts(files)
        self._look_ms: int | None = 0 if files is not None else None
        """When the files are looked at next; 0: they have just been read, at the start."""
        self.refused = 0
        """Number of requests refused."""

    def deadline_ms(self) -> int | None:
        """When the files are looked at next; None: there are none."""
        return self._look_ms

    def look(self, now: Now) -> Job | None:
        """Return the job that reads changed files, if it is time."""
        if self._look_ms is None or now.mono_ms < self._look_ms:
            return None
        is_start = self._look_ms == 0
        self._look_ms = now.mono_ms + CHECK_MS
        return None if is_start else self._accounts.look()

    def refusal(self, request: Command, right: NameServerRight, address: str) -> str | None:
        """Return why a request is refused, with `authenticationEnabled`; None if it may be carried out.

        `address`: of the client, without port.
        """
        config = self._config.present
        is_open = right is NameServerRight.PROOF or (right is NameServerRight.ROUTE and not config.route_authentication)
        if is_open or self._accounts.is_white(address):
            return None
        user = self._user(request.fields.get(ACCESS_KEY, ""))
        has_signed = is_signed(
            request.fields, request.body, request.version, _NOBODY_KEY if user is None else user.password
        )
        if user is None or not (has_signed or _is_white(user, address)):
            self.refused += 1
            return NOT_AUTHENTICATED
        if right is NameServerRight.CHANGE and not (user.is_super or self._may_update(user, address)):
            self.refused += 1
            return f"User:{user.username} has no permission to change what name servers have."
        return None

    def _user(self, name: str) -> AclUser | None:
        if name.startswith(RESERVED_PREFIX):
            return None if self._keyring is None else member_user(self._keyring.secrets(), name)
        own = self._own.get(name)
        if own is not None:
            return own
        account = self._accounts.account(name)
        return None if account is None else account.user

    def _may_update(self, user: AclUser, address: str) -> bool:
        return bool(self._accounts.rules(user.username).allows(_UPDATE, address))


def _is_white(user: AclUser, address: str) -> bool:
    return bool(user.white_addresses) and white_addresses((user.white_addresses,)).have(address)
