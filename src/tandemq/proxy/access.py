"""Access control of the proxy: users and policies are those of the brokers, which it asks for them.

    call ─► user, signature over its date ─► user of the brokers, kept for `KEPT_MS` ─► its policies ─► allowed?

The proxy signs its own requests to brokers, as a super user: so what a client may do is decided here. What a limited
user sends is forwarded with its name, and brokers count it; its connections are counted here.

Source: docs/reference/access.md; RocketMQ ProxyAuthenticationMetadataProvider, ProxyAuthorizationMetadataProvider.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import Message

from tandemq.boundary import Now
from tandemq.client.admin.cluster import cluster_info
from tandemq.client.core.operations import Steps, ask, ask_any_code, current_time, request
from tandemq.client.core.routes import Routes
from tandemq.codec.remoting.bodies import convert
from tandemq.codec.remoting.fastjson import loads
from tandemq.codec.remoting.signature import is_grpc_signed, parse_authorization
from tandemq.config.settings import ProxyConfig
from tandemq.errors import LocalError, NetworkError, ProtocolError, TandemError
from tandemq.model.access import NOT_AUTHENTICATED, SUBJECT_PREFIX, AclUser, Need, Policy, ResourceKind, Rules, actions
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.quota import USER, Quota
from tandemq.proxy.names import Caller, group_of, topic_of
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.status import CallRefused
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
KEPT_MS = 20_000
"""Age at which a user is fetched again."""
USERS_KEPT_MAX, UNKNOWN_KEPT_MAX = 10_000, 1_000
PUB, SUB, PUB_OR_SUB = actions("Pub"), actions("Sub"), actions("Pub", "Sub", "Get")
_NOBODY_KEY = "no user has this key"


class _KnownUser(NamedTuple):
    """A user as the brokers have it."""

    fetched_ms: int
    user: AclUser | None
    """None: there is no such user."""
    rules: Rules
    quota: Quota | None
    """Its limits; None: it has none."""


class ProxyAccess:
    """Checks the calls of clients."""

    def __init__(self, config: ProxyConfig, routes: Routes) -> None:
        """Know no user."""
        self.is_on = config.authentication_enable
        self._checks_rights = config.authorization_enable
        self._routes = routes
        self._known: dict[str, _KnownUser] = {}
        self._unknown: dict[str, _KnownUser] = {}
        """Names that no user has: a flood of them takes no place from users."""
        self._refusals = Refusals()
        self._links: dict[str, set[int]] = {}
        """Connections of the users whose number of connections is limited."""
        self.is_open: Callable[[int], bool] = lambda _link: True
        """Returns whether a connection is open."""
        self.refused = 0
        """Number of calls refused."""

    def check(self, caller: Caller, needs: Iterable[Need]) -> Steps[Caller]:
        """Check the user of a call, and that it may do all that the call needs; return it with its user.

        Raises:
            CallRefused: it may not, or no broker says who its user is, or the user has too many connections.
        """
        if not self.is_on:
            return caller
        given = parse_authorization(caller.authorization)
        known = None if given is None else (yield from self._user(given.access_key))
        now = yield from current_time()
        user = known.user if known is not None else None
        has_signed = given is not None and is_grpc_signed(given, caller.date, user.password if user else _NOBODY_KEY)
        if user is None or known is None or not has_signed or user.user_status != "enable":
            raise self._refusal(caller, NOT_AUTHENTICATED, now)
        caller = caller._replace(user=user.username)
        if known.quota is not None:
            caller = self._limited(caller, user.username, known.quota)
        if user.is_super or not self._checks_rights:
            return caller
        address = caller.peer.rpartition(":")[0].strip("[]")
        for need in needs:
            decision = known.rules.allows(need, address)
            if not decision:
                why = "no matched policies" if decision is None else "the decision is deny"
                text = f"User:{user.username} has no permission to access {need} from {address}, {why}."
                raise self._refusal(caller, text, now)
        return caller

    def _limited(self, caller: Caller, name: str, quota: Quota) -> Caller:
        """Return a call whose sends use the limits of its user, if that may have its connection."""
        if quota.connections:
            links = self._links.get(name, set())
            if caller.link not in links and len(links) >= quota.connections:
                text = f"user {name} has {len(links)} connections here, no more are allowed"
                raise CallRefused(pb.Code.TOO_MANY_REQUESTS, text)
            if self.is_open(caller.link):
                self._links.setdefault(name, links).add(caller.link)
        has_rate = quota.messages_per_second or quota.bytes_per_second
        return caller._replace(limited_user=name) if has_rate else caller

    def link_closed(self, link: int) -> None:
        """Note that a connection has ended."""
        for name in [name for name, links in self._links.items() if link in links]:
            self._links[name].discard(link)
            if not self._links[name]:
                del self._links[name]

    def _refusal(self, caller: Caller, text: str, now: Now) -> CallRefused:
        self.refused += 1
        times = self._refusals.note(caller.peer.rpartition(":")[0], now.mono_ms)
        if times:
            log.warning("access: peer=%s refused times=%d: %s", caller.peer, times, text[:300])
        return CallRefused(pb.Code.UNAUTHORIZED, text)

    def _user(self, name: str) -> Steps[_KnownUser]:
        now = yield from current_time()
        known = self._known.get(name) or self._unknown.get(name)
        if known is not None and now.mono_ms - known.fetched_ms < KEPT_MS:
            return known
        try:
            known = yield from self._fetch(name)
        except (NetworkError, LocalError) as error:
            if known is None:
                text = f"no broker says who the user is: {error}"
                raise CallRefused(pb.Code.PROXY_TIMEOUT, text) from error
            return known  # better an old one than nobody, while brokers fail over
        self._known.pop(name, None)
        self._unknown.pop(name, None)
        table, most = (self._known, USERS_KEPT_MAX) if known.user is not None else (self._unknown, UNKNOWN_KEPT_MAX)
        if len(table) >= most:
            del table[next(iter(table))]
        table[name] = known
        return known

    def _fetch(self, name: str) -> Steps[_KnownUser]:
        """Ask the first broker group that responds."""
        info = yield from cluster_info(self._routes)
        failure: TandemError = ProtocolError("there is no broker")
        for address in info.masters(None):
            try:
                found = yield from ask(address, request(RequestCode.AUTH_GET_USER, username=name))
                user = convert(loads(found.body), AclUser, "user") if found.body else None
                policies = [] if user is None else (yield from self._policies(address, name))
            except NetworkError as error:
                failure = error
                continue
            quota = yield from self._quota(address, name)
            now = yield from current_time()
            return _KnownUser(now.mono_ms, user, Rules(policies), quota)
        raise failure

    def _policies(self, address: str, name: str) -> Steps[list[Policy]]:
        acl = yield from ask(address, request(RequestCode.AUTH_GET_ACL, subject=SUBJECT_PREFIX + name))
        return convert(loads(acl.body).get("policies") or [], list[Policy], "policies") if acl.body else []

    def _quota(self, address: str, name: str) -> Steps[Quota | None]:
        """Ask for the limits of a user; brokers of RocketMQ have none."""
        answer = yield from ask_any_code(address, request(RequestCode.TANDEM_QUOTAS, kind=USER, name=name))
        if answer.code != ResponseCode.SUCCESS:
            return None
        quotas = convert(loads(answer.body).get("quotas") or [], list[Quota], "limits")
        return quotas[0] if quotas else None


def needs_of(query: Message) -> list[Need]:
    """Return what a request needs.

    Raises:
        CallRefused: it names no valid topic or group.
    """
    return list(dict.fromkeys(NEEDS[type(query)](query)))


def _topic(what: frozenset[str]) -> Callable[[Any], Iterator[Need]]:
    return lambda query: iter((Need(ResourceKind.TOPIC, topic_of(query.topic), what),))


def _group(group: pb.Resource) -> Need:
    return Need(ResourceKind.GROUP, group_of(group), SUB)


def _consumer(query: Any) -> Iterator[Need]:
    yield _group(query.group)
    yield Need(ResourceKind.TOPIC, topic_of(query.topic), SUB)


def _own_group(query: Any) -> Iterator[Need]:
    if query.HasField("group") and query.group.name:
        yield _group(query.group)


def _send(query: pb.SendMessageRequest) -> Iterator[Need]:
    return (Need(ResourceKind.TOPIC, topic_of(message.topic), PUB) for message in query.messages)


def _receive(query: pb.ReceiveMessageRequest) -> Iterator[Need]:
    yield _group(query.group)
    yield Need(ResourceKind.TOPIC, topic_of(query.message_queue.topic), SUB)


def _settings(query: pb.Settings) -> Iterator[Need]:
    for topic in query.publishing.topics:
        yield Need(ResourceKind.TOPIC, topic_of(topic), PUB)
    if query.HasField("subscription"):
        yield _group(query.subscription.group)
        for entry in query.subscription.subscriptions:
            yield Need(ResourceKind.TOPIC, topic_of(entry.topic), SUB)


NEEDS: dict[type[Message], Callable[[Any], Iterator[Need]]] = {
    pb.QueryRouteRequest: _topic(PUB_OR_SUB),
    pb.QueryAssignmentRequest: _consumer,
    pb.HeartbeatRequest: _own_group,
    pb.NotifyClientTerminationRequest: _own_group,
    pb.Settings: _settings,
    pb.SendMessageRequest: _send,
    pb.RecallMessageRequest: _topic(PUB),
    pb.EndTransactionRequest: _topic(PUB),
    pb.ReceiveMessageRequest: _receive,
    pb.AckMessageRequest: _consumer,
    pb.ChangeInvisibleDurationRequest: _consumer,
    pb.ForwardMessageToDeadLetterQueueRequest: _consumer,
    pb.SyncLiteSubscriptionRequest: lambda _query: iter(()),
}
"""By the class of a request."""
