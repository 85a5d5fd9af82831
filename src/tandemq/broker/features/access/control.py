"""Access control: every request of a client has a user, a signature, and what its user may do.

    request ─► user known, enabled, signature right? ─► what does it need? ─► policies ─► its handler
                 └► refused, all with the same text        └► refused, with what is missing

Requests of members of the group prove the secret of replication instead; so do their replication connections. Requests
without a user pass only from the white addresses of ACL 1.0, and while `authenticationEnabled` and `aclEnable` are off;
then for all purposes.

A user is that of the table (users and policies made by requests, copied to slaves), else that of the settings, else the
account of a file (`aclEnable`).

Source: docs/reference/access.md; RocketMQ AuthenticationPipeline, AuthorizationPipeline.
"""

import logging
from collections.abc import Iterator
from heapq import merge

import msgspec

from tandemq.boundary import Now, Turn
from tandemq.broker.features.access.needs import OPEN, needs_of, needs_of_half, needs_of_sent_back
from tandemq.broker.features.access.table import AccessTable, CopiedAccessTable
from tandemq.broker.features.access.waiting import Waiting
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.copied_tables import Table
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.guard import RequestGuard
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import ENGINE_PULLS
from tandemq.broker.kernel.quotas import Quotas
from tandemq.broker.kernel.sends import ENGINE_SENDS
from tandemq.codec.record.record import property_value
from tandemq.codec.remoting.signature import ACCESS_KEY, ON_BEHALF_OF, is_signed, member_user
from tandemq.config.access import configured_users
from tandemq.config.file_accounts import CHECK_MS, FileAccounts
from tandemq.config.settings import BrokerConfig
from tandemq.engine import SigningUser
from tandemq.errors import ProtocolError, StoreError
from tandemq.model.access import NOT_AUTHENTICATED, RESERVED_PREFIX, AclUser, Need, Policy, ResourceKind, Rules
from tandemq.model.accounts import Translated
from tandemq.model.codes import RequestCode as Code
from tandemq.model.command import Command
from tandemq.model.message import REAL_TOPIC
from tandemq.model.peers import host_of
from tandemq.model.white_addresses import white_addresses
from tandemq.refusals import Refusals
from tandemq.telemetry.families import Batch, Source, Values, counter

log = logging.getLogger(__name__)
GRANTS_KEPT_MAX = 1_024
"""Maximum number of rights remembered for the user of a connection."""
OFFSET_DIGITS = 19
"""Digits of the least number that is no log offset."""
WAITING = frozenset((*ENGINE_PULLS, Code.POP_MESSAGE, Code.NOTIFICATION))
"""Requests that wait for messages."""
ENDED_PER_TURN = 64
"""Maximum number of connections whose waiting requests end in a turn, after a change of rights."""
REFUSED = counter("tandemq_access_refused_total", "Requests refused by access control.", "reason")
_NOBODY = AclUser("", "no user has this key")


class AccessControl(Feature, RequestGuard):
    """Checks requests; knows the users."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the table, and the files of accounts.

        Raises:
            StoreDamaged: the table cannot be read.
            ConfigError: a file of accounts cannot be read, or is malformed.
        """
        self.table = AccessTable(kernel.saver, kernel.began.wall_ms)
        self.files = FileAccounts(kernel.account_files)
        self._turn = kernel.turn
        if kernel.account_files is not None:
            kernel.every(CHECK_MS, self._look)
        self._store = kernel.store
        self._keyring = kernel.keyring
        self._cluster = kernel.current.config.cluster
        self._quotas = kernel.features.find(Quotas)
        self._links = kernel.links
        self._rights_changed = kernel.features.rights_changed
        self._users_links: dict[str, set[int]] = {}
        """Connections of the users whose number of connections is limited."""
        self._senders: dict[int, SigningUser] = {}
        """Users of connections, with rights that they were found to have. Forgotten with each change."""
        self._generations = (0, 0)
        """Of the table and the files, to which `_senders` belongs."""
        self._links_users: dict[int, list[str]] = {}
        """Users of those connections."""
        self._waiting = Waiting()
        self._judged = (0, 0)
        """Generations of the table and the files, by which requests that wait were judged."""
        self._refusals = Refusals()
        self._refused: dict[str, int] = {"authentication": 0, "authorization": 0, "malformed": 0, "connections": 0}
        self.has_accounts = self._checks_rights = False
        self._own: dict[str, AclUser] = {}
        self.adopt_config(kernel.current.config)

    def adopt_config(self, config: BrokerConfig) -> None:
        """See `Feature`."""
        was_on = self.is_on
        before = self._own, self.is_on, self.has_accounts, self._checks_rights
        self._senders.clear()
        self._own = configured_users(config)
        self.is_on = config.checks_users
        self.has_accounts = config.acl_enable
        self._checks_rights = config.checks_rights
        if (self._own, self.is_on, self.has_accounts, self._checks_rights) != before:
            self._waiting.end_all(self._links)
        if was_on and not self.is_on:
            self._forget_users()
        if self.is_on and not was_on and not any(user.is_super for user in self.users()):
            log.error("access: there is no super user, so that nobody can change users: set initAuthenticationUser")

    def _look(self, _now: Now) -> None:
        job = self.files.look()
        if job is not None:
            self._turn.out.jobs.append(job)

    def _forget_users(self) -> None:
        """Free open connections of the limits of their users."""
        self._users_links.clear()
        self._links_users.clear()
        for link in self._links.values():
            link.budget = None

    def users(self, after: str = "") -> Iterator[AclUser]:
        """Yield all users in the order of their names, those behind a name."""
        return (user for name in self.names(after) if (user := self.user(name)) is not None)

    def names(self, after: str = "") -> Iterator[str]:
        """Yield the names of all users, and of those that have policies, in order, those behind a name."""
        own = sorted(name for name in self._own if name > after)
        last = after
        for name in merge(self.table.names(after), own, self.files.names(after)):
            if name != last:
                last = name
                yield name

    def user(self, name: str) -> AclUser | None:
        """Return a user; that of the group's members too."""
        if name.startswith(RESERVED_PREFIX):
            return None if self._keyring is None else member_user(self._keyring.secrets(), name)
        found = self.table.users.get(name) or self._own.get(name)
        if found is not None:
            return found
        account = self.files.account(name)
        return None if account is None else account.user

    def account(self, name: str) -> Translated | None:
        """Return the account of a file whose name the table and the settings do not have."""
        return None if name in self.table.users or name in self._own else self.files.account(name)

    def policies_of(self, name: str) -> tuple[Policy, ...] | None:
        """Return the policies of a user; None if it has none."""
        account = self.account(name)
        return (account.policies or None) if account is not None else self.table.policies.get(name)

    def take_over(self, name: str) -> None:
        """Move an account of a file to the table, before it is changed there."""
        account = self.account(name)
        if account is not None:
            self.table.put(account.user)
            self.table.put_policies(name, account.policies)
            log.warning("access: the account %s was changed: what %s has counts no more", name, self.files.place(name))

    def _rules(self, name: str) -> Rules:
        return self.table.rules(name) if self.account(name) is None else self.files.rules(name)

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

    def checks(self, code: int, request: Request) -> bool:
        """See `RequestGuard`."""
        return code not in OPEN and not (request.is_of_member and self._keyring is not None)

    def refusal(self, link: Link, command: Command, now: Now) -> str | None:
        """See `RequestGuard`."""
        address = host_of(link.peer)
        if self._is_white(address):
            return None
        user, is_signed_by = self._caller(command)
        if user is None or not is_signed_by:
            if user is not None and self._is_white(address, user):
                return None
            return self._refuse(link, command, "authentication", NOT_AUTHENTICATED, now)
        if command.code in WAITING:
            self._waiting.add(link.number, user.username)
        full = self._limit(link, user.username, command.fields.get(ON_BEHALF_OF, "") if user.is_super else "")
        if full is not None:
            return self._refuse(link, command, "connections", full, now)
        if user.is_super or not self._checks_rights or self._is_white(address, user):
            self._remember(link.number, user, command, None)
            return None
        try:
            needs = self._needs(command)
        except (ProtocolError, StoreError, msgspec.MsgspecError) as error:
            return self._refuse(link, command, "malformed", str(error), now)
        if needs is None:
            return self._refuse(link, command, "authorization", "only super users may do this", now)
        rules = self._rules(user.username)
        for need in needs:
            decision = rules.allows(need, address)
            if not decision:
                why = "no matched policies" if decision is None else "the decision is deny"
                text = f"User:{user.username} has no permission to access {need} from {address}, {why}."
                return self._refuse(link, command, "authorization", text, now)
        self._remember(link.number, user, command, needs)
        return None

    def sender(self, link: Link) -> SigningUser | None:
        """See `RequestGuard`."""
        generations = (self.table.generation, self.files.generation)
        if generations != self._generations:
            self._generations = generations
            self._senders.clear()
        found = self._senders.get(link.number)
        return found if found is not None and self._limit(link, found.access_key) is None else None

    def _remember(self, link: int, user: AclUser, command: Command, needs: list[Need] | None) -> None:
        """Remember what a user may do on a connection, for requests that the engine takes. `needs` None: everything."""
        if command.code not in ENGINE_SENDS and command.code not in (Code.ACK_MESSAGE, *ENGINE_PULLS):
            return
        if user.username.startswith(RESERVED_PREFIX):  # its key may be withdrawn without a change of a table
            return
        sender = self._senders.get(link)
        if sender is None or sender.access_key != user.username:
            every = needs is None
            topics: set[str] | None = None if every else set()
            pops: set[tuple[str, str]] | None = None if every else set()
            pulls: set[tuple[str, str]] | None = None if every else set()
            sender = self._senders[link] = SigningUser(user.username, user.password, topics, pops, pulls)
        if needs is None or sender.topics is None or sender.pops is None or sender.pulls is None:
            return
        if len(sender.topics) + len(sender.pops) + len(sender.pulls) >= GRANTS_KEPT_MAX:
            sender.topics.clear()
            sender.pops.clear()
            sender.pulls.clear()
        if command.code == Code.ACK_MESSAGE:
            sender.pops.add((command.fields["consumerGroup"], command.fields["topic"]))
        elif command.code in ENGINE_PULLS:
            sender.pulls.add((command.fields["consumerGroup"], command.fields["topic"]))
        elif len(needs) == 1 and needs[0].kind is ResourceKind.TOPIC:
            sender.topics.add(needs[0].name)

    def _limit(self, link: Link, user: str, sender: str = "") -> str | None:
        """Have the sends of a connection count for a user; return why it may not have the connection.

        `sender`: the user for which a proxy sends, if it is another one.
        """
        if not self._quotas.limits_users:
            link.budget = None
            return None
        link.budget = self._quotas.user(sender or user)
        most = self._quotas.connections_of(user)
        if most and not self._may_connect(link.number, user, most):
            return f"user {user} has {most} connections, no more are allowed"
        return None

    def _needs(self, command: Command) -> list[Need] | None:
        """Return what a request needs; None: only super users may send it. Errors as for `needs_of`, and StoreError."""
        offset = command.fields.get("commitLogOffset", "")
        if command.code == Code.END_TRANSACTION and offset.isdecimal() and len(offset) < OFFSET_DIGITS:
            half = self._store.queued_record_at(int(offset))
            topic = None if half is None else property_value(half[0].properties, REAL_TOPIC.encode())
            if topic is not None:
                return needs_of_half(topic.decode("utf-8", "replace"))
        needs = needs_of(command, self._cluster)
        offset = command.fields.get("offset", "")
        if command.code == Code.CONSUMER_SEND_MSG_BACK and offset.isdecimal() and len(offset) < OFFSET_DIGITS:
            found = self._store.queued_record_at(int(offset))
            if found is not None and needs is not None:
                needs += needs_of_sent_back(found[0].topic.decode("utf-8", "replace"), command.fields["group"])
        return needs

    def _may_connect(self, link: int, user: str, most: int) -> bool:
        """Whether a connection is one of those that a user may have."""
        links = self._users_links.setdefault(user, set())
        if link not in links and len(links) < most:
            links.add(link)
            self._links_users.setdefault(link, []).append(user)
        return link in links

    def run_due(self, turn: Turn, now: Now) -> None:
        """Have requests that wait judged again after a change of rights: they end, and their clients ask again."""
        judged = (self.table.generation, self.files.generation)
        if judged != self._judged:
            names = self.table.take_unjudged() if judged[1] == self._judged[1] else None
            self._judged = judged
            if names is None:
                self._waiting.end_all(self._links)
            else:
                self._waiting.end(names)
        for link in self._waiting.take_ended(ENDED_PER_TURN):
            for end in self._rights_changed:
                end(link, turn, now)

    def deadline_ms(self) -> int | None:
        """See `Feature`."""
        return 0 if self._waiting.ended else None

    def link_closed(self, link: int, _turn: Turn, _now: Now) -> None:
        """See `Feature`."""
        self._senders.pop(link, None)
        self._waiting.forget(link)
        for user in self._links_users.pop(link, ()):
            links = self._users_links[user]
            links.discard(link)
            if not links:
                del self._users_links[user]

    def is_super(self, link: Link, command: Command) -> bool:
        """Whether a request may concern super users and their keys."""
        address = host_of(link.peer)
        if not self.is_on or self._is_white(address):
            return True
        user, is_signed_by = self._caller(command)
        return user is not None and user.is_super and (is_signed_by or self._is_white(address, user))

    def _caller(self, command: Command) -> tuple[AclUser | None, bool]:
        """Return the enabled user that a request names, and whether it signed; after the same work in each case."""
        user = self.user(command.fields.get(ACCESS_KEY, ""))
        has_signed = is_signed(command.fields, command.body, command.version, (user or _NOBODY).password)
        return (None, False) if user is None or user.user_status != "enable" else (user, has_signed)

    def _is_white(self, address: str, user: AclUser | None = None) -> bool:
        """Whether an address is white, for one user or for all requests."""
        if not self.has_accounts:
            return False
        if user is not None:
            return bool(user.white_addresses) and white_addresses((user.white_addresses,)).have(address)
        return self.files.is_white(address) or white_addresses(self.table.acl1.white_addresses).have(address)

    def _refuse(self, link: Link, command: Command, reason: str, text: str, now: Now) -> str:
        self._refused[reason] += 1
        times = self._refusals.note(host_of(link.peer), now.mono_ms)
        if times:
            log.warning("access: peer=%s code=%d refused times=%d: %s", link.peer, command.code, times, text[:300])
        return text[:1_000]
