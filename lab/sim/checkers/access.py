"""Access control: what each user may do at each group, by the changes that the administrator has confirmed.

I26  a request that is refused by each state of its user that was possible while it was in flight is not handled: it
     gets no answer but the refusal, stores no message, moves no offset. One that each of them allows is not refused.
     A confirmed change counts at every later master, and in the end all members have the same users

A change is possible from its request on; the state before it is so until the change is confirmed. The decision is
worked out here from the entries that the administrator has made, not by the code of brokers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lab.sim.checkers.logs import LoggedMessage
from lab.sim.checkers.model import STORED, Attempt
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.groups import mode_of
from lab.sim.world.plan import GroupPlan
from lab.sim.world.world import SECOND, Violation, World
from tandemq.broker.features.access.control import AccessControl
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

GUARDED_TOPIC, GUARDED_GROUP = "Guarded", "GS"
"""The topic of users whose rights change, and the consumer group that they commit offsets of."""
LATE_US = 20 * SECOND
"""How much later than its repetition a request may arrive, on a connection that was abandoned."""
POLL_US = SECOND
_EFFECTS = STORED | {int(ResponseCode.SUCCESS)}
_REFUSALS = ("authentication failed", "User:", "only super users")
"""Beginnings of the remarks of access control; others are refused because of the role of a member."""


class ExpectedEntry(NamedTuple):
    """An entry of a policy. `is_elsewhere`: it holds for another source address than that of clients."""

    resource: str
    actions: tuple[str, ...]
    is_allowed: bool
    is_elsewhere: bool = False


class UserState(NamedTuple):
    """A user at a group; without a key there is none."""

    key: str = ""
    is_enabled: bool = True
    entries: tuple[ExpectedEntry, ...] = ()

    def with_entries(self, changed: Iterable[ExpectedEntry]) -> "UserState":
        """Return the user with entries that replace those of the same resource."""
        table = {entry.resource: entry for entry in (*self.entries, *changed)}
        return self._replace(entries=tuple(table.values()))

    def without(self, resource: str) -> "UserState":
        """Return the user without the entry of a resource."""
        return self._replace(entries=tuple(entry for entry in self.entries if entry.resource != resource))

    def may(self, resource: str, actions: frozenset[str]) -> bool:
        """Return whether the entry decides so that matches and has the most specific resource."""
        found = [
            entry
            for entry in self.entries
            if _covers(entry.resource, resource)
            and not entry.is_elsewhere
            and (actions & {*entry.actions} or "All" in entry.actions)
        ]
        if not found:
            return False
        return max(found, key=lambda entry: (not entry.resource.endswith("*"), len(entry.resource))).is_allowed


def _covers(pattern: str, resource: str) -> bool:
    return resource.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == resource


NOBODY = UserState()


@dataclass(slots=True)
class _Span:
    """A state of a user, and the time in which it may count."""

    state: UserState
    since_us: int
    until_us: int | None = None
    lingers: bool = False
    """Whether a repetition of the request for it may still arrive."""


@dataclass(slots=True, eq=False)
class GuardedRequest:
    """A request signed by a user, or by another client in its name.

    `needs`: resources, and for each the actions of which one suffices.
    """

    what: str
    group: str
    address: str
    user: str
    key: str
    """With which it is signed; empty: with none, or for other fields."""
    needs: tuple[tuple[str, frozenset[str]], ...]
    sent_us: int
    attempt: Attempt | None = None
    offset: int = -1
    """The offset that it commits, if it does."""
    ended_us: int | None = None
    """When its response came. Without one it may arrive at any time."""
    link: int = 0
    """Its connection."""
    is_at_master: bool = False
    """Whether the broker served when it was sent."""

    def __str__(self) -> str:
        """Return what matters."""
        needs = ", ".join(f"{resource} {'|'.join(sorted(actions))}" for resource, actions in self.needs)
        return (
            f"{self.what} of {self.user} with {self.key!r}, sent at {self.sent_us / SECOND:.3f} s, which needs {needs}"
        )


class AccessChecks:
    """The users of all groups, and the checks of responses, logs and tables."""

    def __init__(self, world: World, cluster: Cluster, *, has_one_master: bool) -> None:
        """`has_one_master`: whether the master of a group is the same all the time."""
        self._world = world
        self._cluster = cluster
        self._has_one_master = has_one_master
        self._hosts = {host.address: host for host in cluster.hosts}
        self._spans: dict[tuple[str, str], list[_Span]] = {}
        """By group and user, the last one last."""
        self._requests: list[GuardedRequest] = []
        self.keys: dict[tuple[str, str], list[str]] = {}
        """Keys that each user has ever had at a group."""
        self.excuses: Callable[[str], bool] = lambda _group: False
        """Whether an operator has accepted that a group lost changes."""
        self.allowed = self.refused = self.changes = 0
        world.after(POLL_US, self._poll)

    # Changes.

    def known(self, group: str, user: str, state: UserState) -> None:
        """Note a user of the table with which brokers start."""
        self._spans[group, user] = [_Span(state, 0)]
        self.keys.setdefault((group, user), []).append(state.key)

    def state(self, group: str, user: str) -> UserState:
        """Return the state that was ordered last."""
        spans = self._spans.get((group, user))
        return spans[-1].state if spans else NOBODY

    def changing(self, group: str, user: str, state: UserState) -> None:
        """Note a change before its request is sent."""
        spans = self._spans.setdefault((group, user), [_Span(NOBODY, 0)])
        spans.append(_Span(state, self._world.now_us))
        keys = self.keys.setdefault((group, user), [])
        if state.key and state.key not in keys:
            keys.append(state.key)

    def confirmed(self, group: str, user: str, *, lingers: bool) -> None:
        """Note that a change was confirmed. `lingers`: an earlier request for it may still arrive."""
        spans, now_us = self._spans[group, user], self._world.now_us
        self.changes += 1
        for span in spans[:-1]:
            if span.until_us is None:
                span.until_us = now_us + LATE_US * span.lingers
        spans[-1].lingers = lingers

    def _is_settled(self, group: str, user: str) -> bool:
        """Return whether a user has one state that is confirmed."""
        now_us = self._world.now_us
        return all(span.until_us is not None and span.until_us < now_us for span in self._spans[group, user][:-1])

    # Requests.

    def sent(self, request: GuardedRequest) -> GuardedRequest:
        """Note a request."""
        request.is_at_master = self._serves(self._hosts[request.address])
        self._requests.append(request)
        return request

    def _decisions(self, request: GuardedRequest) -> frozenset[bool]:
        """Return the decisions about a request by all states that were possible while it was in flight."""
        until_us = self._world.now_us if request.ended_us is None else request.ended_us
        spans = self._spans.get((request.group, request.user)) or [_Span(NOBODY, 0)]
        return frozenset(
            span.state.key == request.key != ""
            and span.state.is_enabled
            and all(span.state.may(*need) for need in request.needs)
            for span in spans
            if span.since_us <= until_us and (span.until_us is None or span.until_us >= request.sent_us)
        )

    def answered(self, request: GuardedRequest, answer: Command) -> None:
        """Check a response.

        Raises:
            Violation: I26.
        """
        request.ended_us = self._world.now_us
        remark = answer.remark or ""
        is_denied = answer.code == ResponseCode.NO_PERMISSION
        is_refused = is_denied and remark.startswith(_REFUSALS)
        if not self._is_judged(self._hosts[request.address]) or (is_denied and not is_refused):
            return
        # A member that is not in sync may have older users. It stores and delivers nothing.
        has_effect = answer.code in _EFFECTS and request.what in ("send", "pull", "commit")
        if not has_effect and not (request.is_at_master and self._serves(self._hosts[request.address])):
            return
        decisions = self._decisions(request)
        if is_refused not in {not decision for decision in decisions}:
            did = "refused" if is_refused else "handled"
            raise Violation(
                "I26", f"{request.address} {did} {request}: {answer.code} {remark}; {self._described(request)}"
            )
        self.refused += is_refused
        self.allowed += not is_refused

    def _serves(self, host: Host) -> bool:
        """Return whether a broker accepts messages."""
        return host.broker is not None and host.broker.puts.refusal is None

    def _described(self, request: GuardedRequest) -> str:
        spans = self._spans.get((request.group, request.user)) or []
        return "; ".join(map(str, spans[-4:]))

    def _is_judged(self, host: Host) -> bool:
        """Return whether a host promises to have confirmed changes: others ask their master from time to time."""
        if self.excuses(host.group.name):
            return False
        mode = mode_of(host.group)
        return mode is Mode.ELECT or (mode is Mode.STATIC and host.broker_id == 0 and not host.wipes_us)

    # Tables and logs.

    def _serving(self, group: GroupPlan) -> Host | None:
        """Return the member that serves, if it promises to have all confirmed changes."""
        host = self._cluster.master(group) if self._has_one_master else self._cluster.members(group)[0]
        process = host.process
        if host.broker is None or process is None or process.paused_until_us >= self._world.now_us:
            return None  # a paused one does not know yet that another member serves
        is_serving = self._has_one_master or host.broker.puts.refusal is None
        return host if is_serving and self._is_judged(host) else None

    def _poll(self) -> None:
        for group in self._cluster.plan.groups:
            host = self._serving(group)
            if host is not None:
                self._judge_table(host)
                self._judge_offsets(host)
        self._world.after(POLL_US, self._poll)

    def _judge_table(self, host: Host) -> None:
        for group, user in self._spans:
            wanted = self.state(group, user)
            if group == host.group.name and self._is_settled(group, user) and self._state_at(host, user) != wanted:
                raise Violation(
                    "I26", f"{user} was changed to {wanted}, and {host.name} has {self._state_at(host, user)}"
                )

    def _state_at(self, host: Host, user: str) -> UserState:
        """Return the state of a user in the table of a broker."""
        assert host.broker is not None, "it runs"
        table = host.broker.features.find(AccessControl).table
        found = table.users.get(user)
        entries = tuple(
            ExpectedEntry(entry.resource, entry.actions, entry.decision == "Allow", bool(entry.source_ips))
            for policy in table.policies.get(user, ())
            for entry in policy.entries
        )
        if found is None:
            return NOBODY._replace(entries=entries)
        return UserState(found.password, found.user_status == "enable", entries)

    def _judge_offsets(self, host: Host) -> None:
        """Check that no committed offset is one that only refused requests named."""
        assert host.broker is not None, "it runs"
        held = host.broker.offsets.table.get(f"{GUARDED_TOPIC}@{GUARDED_GROUP}", {}).get(0)
        asked = [request for request in self._requests if request.offset == held and request.group == host.group.name]
        if asked and not any(True in self._decisions(request) for request in asked) and not self._has_lost(host):
            raise Violation("I26", f"{host.name} has {held}, of a request that must be refused: {asked[0]}")

    def _has_lost(self, host: Host) -> bool:
        """Return whether an offset may have been set to the end of its queue."""
        return any(member.losses_us or member.flips for member in self._cluster.members(host.group))

    def unsettled(self) -> Violation | None:
        """Return the violation that the present state would be at the end; None if there is none."""
        for group in self._cluster.plan.groups:
            if self.excuses(group.name):
                continue
            master, *slaves = self._cluster.members(group)
            for host in (master, *slaves):
                for user in sorted({user for name, user in self._spans if name == group.name}):
                    if host.broker is not None and self._state_at(host, user) != self._state_at(master, user):
                        return Violation("I26", f"{host.name} has not the state of {user} that its master has")
        return None

    def judge(self, records: Callable[[Host], Sequence[LoggedMessage]]) -> None:
        """Check that no log has a message whose send must be refused.

        Raises:
            Violation: I26.
        """
        refused = {
            message.key: request
            for request in self._requests
            if request.attempt is not None and True not in self._decisions(request)
            for message in request.attempt.messages
        }
        for group in self._cluster.plan.groups:
            master = self._cluster.members(group)[0]
            for found in records(master) if self._is_judged(master) else ():
                if found.key in refused:
                    raise Violation("I26", f"{master.name} holds a message that it must refuse: {refused[found.key]}")
