"""Access control: every request of a client has a user, a signature, and what its user may do.

    request ─► user known, enabled, signature right? ─► what does it need? ─► policies ─► its handler
                 └► refused, all with the same text        └► refused, with what is missing

Requests of members of the group prove the secret of replication instead; so do their replication connections. Requests
without a user pass only while `authenticationEnabled` is off, and then for all purposes.

Source: docs/reference/access.md; RocketMQ AuthenticationPipeline, AuthorizationPipeline.
"""

import logging
from collections.abc import Iterator
from functools import partial

import msgspec

from tandemq.boundary import Now, Turn
from tandemq.broker.features.access.needs import OPEN, needs_of
from tandemq.broker.features.access.table import AccessTable, CopiedAccessTable
from tandemq.broker.kernel.connection import Handler, Link
from tandemq.broker.kernel.copied_tables import Table
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.guard import RequestGuard
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.quotas import Quotas
from tandemq.broker.kernel.refused_peers import host_of
from tandemq.codec.remoting.signature import ACCESS_KEY, is_signed, member_credentials
from tandemq.config.access import configured_users
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ProtocolError
from tandemq.model.access import RESERVED_PREFIX, AclUser
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.refusals import Refusals
from tandemq.telemetry.families import Batch, Source, Values, counter

log = logging.getLogger(__name__)
NOT_AUTHENTICATED = "authentication failed: the user, or the signature, is missing or wrong"
REFUSED = counter("tandemq_access_refused_total", "Requests refused by access control.", "reason")
_NOBODY = AclUser("", "no user has this key")


class AccessControl(Feature, RequestGuard):
    """Checks requests; knows the users."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the table.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self.table = AccessTable(kernel.saver)
        self._keyring = kernel.keyring
        self._cluster = kernel.current.config.cluster
        self._quotas = kernel.features.find(Quotas)
        self._links: dict[str, set[int]] = {}
        """Connections of the users whose number of connections is limited."""
        self._refusals = Refusals()
        self._refused: dict[str, int] = {"authentication": 0, "authorization": 0, "malformed": 0, "connections": 0}
        self._checks_rights = False
        self._own: dict[str, AclUser] = {}
        self.adopt_config(kernel.current.config)

    def adopt_config(self, config: BrokerConfig) -> None:
        """See `Feature`."""
        was_on = self.is_on
        self._own = configured_users(config)
        self.is_on = config.authentication_enable
        self._checks_rights = config.authorization_enable
        if self.is_on and not was_on and not any(user.is_super for user in self.users()):
            log.error("access: there is no super user, so that nobody can change users: set initAuthenticationUser")

    def users(self) -> Iterator[AclUser]:
        """Yield all users; those of the settings unless the table has one of the same name."""
        yield from self.table.users.values()
        yield from (user for name, user in self._own.items() if name not in self.table.users)

    def user(self, name: str) -> AclUser | None:
        """Return a user; that of the group's members too."""
        if name.startswith(RESERVED_PREFIX):
            return self._member(name)
        return self.table.users.get(name) or self._own.get(name)

    def _member(self, name: str) -> AclUser | None:
        for secret in () if self._keyring is None else self._keyring.secrets():
            credentials = member_credentials(secret)
            if credentials.access_key == name:
                return AclUser(name, credentials.secret_key, "Super")
        return None

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return (CopiedAccessTable(self.table),)

    def sources(self) -> tuple[Source, ...]:
        """See `Feature`."""
        return (self._collect,)

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        values: Values = {(reason,): count for reason, count in self._refused.items()}
        yield Batch(REFUSED, values)

    # Requests.

    def wrap(self, code: Code, request: Request) -> Request:
        """Return a request with a check before its handler."""
        if code in OPEN or (request.is_of_member and self._keyring is not None):
            return request
        return request._replace(handle=partial(self._checked, request.handle))

    def _checked(self, handler: Handler, link: Link, command: Command, now: Now) -> Command | None:
        if self.is_on:
            refusal = self.refusal(link, command, now)
            if refusal is not None:
                return command.answer(ResponseCode.NO_PERMISSION, remark=refusal)
        return handler(link, command, now)

    def refusal(self, link: Link, command: Command, now: Now) -> str | None:
        """See `RequestGuard`."""
        user = self.caller(command)
        if user is None:
            return self._refuse(link, command, "authentication", NOT_AUTHENTICATED, now)
        if self._quotas.limits_users:
            link.budget = self._quotas.user(user.username)
            most = self._quotas.connections_of(user.username)
            if most and not self._may_connect(link.number, user.username, most):
                text = f"user {user.username} has {most} connections, no more are allowed"
                return self._refuse(link, command, "connections", text, now)
        else:
            link.budget = None
        if user.is_super or not self._checks_rights:
            return None
        try:
            needs = needs_of(command, self._cluster)
        except (ProtocolError, msgspec.MsgspecError) as error:
            return self._refuse(link, command, "malformed", str(error), now)
        if needs is None:
            return self._refuse(link, command, "authorization", "only super users may do this", now)
        address = host_of(link.peer)
        rules = self.table.rules(user.username)
        for need in needs:
            decision = rules.allows(need, address)
            if not decision:
                why = "no matched policies" if decision is None else "the decision is deny"
                text = f"User:{user.username} has no permission to access {need} from {address}, {why}."
                return self._refuse(link, command, "authorization", text, now)
        return None

    def _may_connect(self, link: int, user: str, most: int) -> bool:
        """Whether a connection is one of those that a user may have."""
        links = self._links.setdefault(user, set())
        if link not in links and len(links) < most:
            links.add(link)
        return link in links

    def link_closed(self, link: int, _turn: Turn, _now: Now) -> None:
        """See `Feature`."""
        for user, links in list(self._links.items()):
            links.discard(link)
            if not links:
                del self._links[user]

    def caller(self, command: Command) -> AclUser | None:
        """Return the user of a request; None if its user or signature is wrong, after the same work in each case."""
        user = self.user(command.fields.get(ACCESS_KEY, ""))
        has_signed = is_signed(command.fields, command.body, command.version, (user or _NOBODY).password)
        return user if user is not None and has_signed and user.user_status == "enable" else None

    def _refuse(self, link: Link, command: Command, reason: str, text: str, now: Now) -> str:
        self._refused[reason] += 1
        times = self._refusals.note(host_of(link.peer), now.mono_ms)
        if times:
            log.warning("access: peer=%s code=%d refused times=%d: %s", link.peer, command.code, times, text[:300])
        return text[:1_000]
