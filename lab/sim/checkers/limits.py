"""Limits of users, topics and groups: what was accepted, delivered and held beyond them.

I27  a broker accepts no more of a topic or a user, and delivers no more to a group, than its rate allows: what one
     second allows at once, more with time, and the last request may exceed that. Popped messages in flight are no more
     than allowed. A send that is refused is not stored, and none is refused after a pause. A confirmed limit holds at
     every later master, and in the end all members have the same limits

What a broker has used of a rate begins again when it starts and when limits change. A limit is possible from its
request on; the one before is so until it is confirmed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from lab.sim.checkers.logs import LoggedMessage
from lab.sim.checkers.model import Attempt
from lab.sim.world.access import BUSY
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.groups import mode_of
from lab.sim.world.world import SECOND, Violation, World
from tandemq.broker.kernel.serving import Right
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.quota import GROUP, TOPIC, USER, Kind, Quota

LIMITED_TOPIC, FREE_TOPIC = "Limited", "Free"
"""The topic with a limit, and one without."""
PULLING_GROUP, POPPING_GROUP = "GLP", "GLI"
"""The group whose deliveries have a limit, and the one whose messages in flight have one."""
REQUEST_MESSAGES_MAX, REQUEST_BYTES_MAX = 3, 3 * 800
"""Maximum size of one send."""
PULL_MESSAGES_MAX = 8
CALM_US = 8 * SECOND
"""Pause after which any send is within its rate."""
LATE_US = 20 * SECOND
"""How much later a request without a response may arrive."""
POLL_US = SECOND
DRIFT = 1.02
"""How much faster a broker's clock may run, and more."""
_TORN = ("failing-pwrite", "disk-full", "killed-at", "power-lost-at")
"""Faults after which brokers count messages in flight from the start."""
Key = tuple[Kind, str]
"""Kind and name of a limit."""


class Span(NamedTuple):
    """A limit that was possible for a time; None: without end, as yet."""

    quota: Quota
    since_us: int
    until_us: int | None = None


class _Serving(NamedTuple):
    """A broker that counts by itself, from one start to the next, or from one time of service to the next."""

    address: str
    starts: int
    lapses: int
    """Number of times at which it had to stop answering pops: it counts from the start then."""


class _Use(NamedTuple):
    """Messages that a request has used, between its sending and its response."""

    sent_us: int
    ended_us: int
    messages: int
    size: int


@dataclass(slots=True, eq=False)
class HeldMessage:
    """A popped message. `until_us`: earliest time at which it may come back; `is_open`: no acknowledgement was sent."""

    key: str
    at: _Serving
    popped_us: int
    until_us: int
    is_open: bool = True


class LimitChecks:
    """The limits of all groups, and the checks of responses, logs and tables."""

    def __init__(self, world: World, cluster: Cluster, *, has_one_master: bool) -> None:
        """`has_one_master`: whether the master of a group is the same all the time."""
        self._world = world
        self._cluster = cluster
        self._has_one_master = has_one_master
        self._hosts = {host.address: host for host in cluster.hosts}
        self._spans: dict[tuple[str, Key], list[Span]] = {}
        """By group, kind and name."""
        self._sets: dict[str, list[tuple[int, int]]] = {}
        """By group: when each request to change limits was sent, and until when it may arrive."""
        self._uses: dict[tuple[_Serving, Key], list[_Use]] = {}
        self._refusing: set[str] = set()
        self._lapses = dict.fromkeys(self._hosts, 0)
        """Addresses of brokers that answer no pops, and how often each has begun to refuse them."""
        self._last_us: dict[str, int] = {}
        """By group: when it was last sent a message, or answered one."""
        self._refused: dict[str, Attempt] = {}
        """By unique key."""
        self._held: list[HeldMessage] = []
        self.excuses: Callable[[str], bool] = lambda _group: False
        """Whether an operator has accepted that a group lost changes."""
        self.accepted = self.refused = self.changes = self.popped = self.delivered = 0
        self._on_turn = cluster.on_turn
        cluster.on_turn = self._turned
        world.after(POLL_US, self._poll)

    def _turned(self, host: Host) -> None:
        """Note when a broker has to stop answering pops."""
        if self._on_turn is not None:
            self._on_turn(host)
        broker, address = host.broker, host.address
        if broker is None or broker.kernel.turn.serving.refusal(Right.POP) is None:
            self._refusing.discard(address)
        elif address not in self._refusing:
            self._refusing.add(address)
            self._lapses[address] += 1

    # Changes.

    def changing(self, group: str, quota: Quota) -> None:
        """Note a limit before its first request is sent."""
        spans = self._spans.setdefault((group, quota.key), [Span(Quota(quota.kind, quota.name), 0)])
        spans.append(Span(quota, self._world.now_us))

    def setting(self, group: str) -> int:
        """Note a request to change limits; return its number."""
        found = self._sets.setdefault(group, [])
        found.append((self._world.now_us, self._world.now_us + LATE_US))
        return len(found) - 1

    def was_set(self, group: str, number: int) -> None:
        """Note the response to a request to change limits."""
        self._sets[group][number] = (self._sets[group][number][0], self._world.now_us)

    def confirmed(self, group: str, quotas: Sequence[Quota], *, lingers: bool) -> None:
        """Note that limits were confirmed. `lingers`: another request for them may still arrive."""
        self.changes += 1
        until_us = self._world.now_us + LATE_US * lingers
        for quota in quotas:
            spans = self._spans[group, quota.key]
            spans[:-1] = [
                span if span.until_us is not None else span._replace(until_us=until_us) for span in spans[:-1]
            ]

    def _possible(self, group: str, key: Key, since_us: int) -> list[Quota]:
        """Return the limits that were possible from a time on."""
        spans = self._spans.get((group, key), [Span(Quota(*key), 0)])
        return [span.quota for span in spans if span.until_us is None or span.until_us >= since_us]

    def _resets(self, group: str, since_us: int) -> int:
        """Return how often the use of rates may have begun again since a time."""
        return sum(until_us >= since_us for _, until_us in self._sets.get(group, ()))

    # Sends and deliveries.

    def serving(self, address: str) -> _Serving:
        """Return what counts at an address now."""
        host = self._hosts[address]
        return _Serving(address, host.starts, self._lapses[address])

    def sending(self, attempt: Attempt) -> int:
        """Note a send; return how long no other one was in flight to its group, in µs."""
        before, self._last_us[attempt.group] = self._last_us.get(attempt.group, -1), self._world.now_us
        return attempt.sent_us - before if before >= 0 else 0

    def answered(self, attempt: Attempt, at: _Serving, keys: Sequence[Key], calm_us: int, remark: str) -> None:
        """Check the response to a send.

        Args:
            attempt: with the response.
            at: the broker when it was sent.
            keys: the limits that hold for it.
            calm_us: what `sending` returned.
            remark: of the response.

        Raises:
            Violation: I27.
        """
        self._last_us[attempt.group] = self._world.now_us
        if attempt.code == ResponseCode.SYSTEM_BUSY and "exceeds its limit" in remark:
            self.refused += 1
            self._refused |= {message.key: attempt for message in attempt.messages}
            if calm_us >= CALM_US:
                raise Violation("I27", f"{attempt.address} refused a send after {calm_us // SECOND} s: {remark}")
        elif attempt.is_stored:
            self.accepted += len(attempt.messages)
            size = sum(len(message.body) for message in attempt.messages)
            for key in keys:
                self._used(
                    at, attempt.group, key, _Use(attempt.sent_us, attempt.answered_us, len(attempt.messages), size)
                )

    def given(self, at: _Serving, group: str, sent_us: int, messages: int) -> None:
        """Check a delivery to the group that pulls.

        Raises:
            Violation: I27.
        """
        self.delivered += messages
        self._used(at, group, (GROUP, PULLING_GROUP), _Use(sent_us, self._world.now_us, messages, 0))

    def _used(self, at: _Serving, group: str, key: Key, use: _Use) -> None:
        host = self._hosts[at.address]
        if self.serving(at.address) != at or not self._is_judged(host):
            return
        uses = self._uses.setdefault((at, key), [])
        uses.append(use)
        most = PULL_MESSAGES_MAX if key[0] == GROUP else REQUEST_MESSAGES_MAX
        messages = size = 0
        for first in sorted(uses, key=lambda used: -used.sent_us):
            messages, size = messages + first.messages, size + first.size
            possible = self._possible(group, key, first.sent_us)
            passed_s = (self._world.now_us - first.sent_us) / SECOND * DRIFT
            begun = 1 + self._resets(group, first.sent_us)
            for what, number, rates, more in (
                ("messages", messages, [quota.messages_per_second for quota in possible], most),
                ("bytes", size, [quota.bytes_per_second for quota in possible], REQUEST_BYTES_MAX),
            ):
                # At each change, sends that wait for the rate before it may use as much as one second allows.
                allowed = max(rates) * (passed_s + 2 * begun - 1) + begun * more
                if all(rates) and number > allowed:
                    raise Violation(
                        "I27",
                        f"{at.address} took {number} {what} of {key} in {passed_s:.3f} s, allowed are {allowed:.0f}: "
                        f"{possible}, {begun - 1} changes",
                    )
            if any(not (quota.messages_per_second or quota.bytes_per_second) for quota in possible):
                return

    # Messages in flight.

    def holding(self, group: str, messages: Sequence[HeldMessage]) -> None:
        """Check the messages that a pop has taken.

        Raises:
            Violation: I27.
        """
        now_us = self._world.now_us
        self.popped += len(messages)
        self._held = [held for held in self._held if held.is_open and held.until_us > now_us]
        self._held += messages
        at = messages[0].at
        mine = [held for held in self._held if held.at == at and held.is_open and held.until_us > now_us]
        since_us = min((held.popped_us for held in mine), default=now_us)
        allowed = [quota.in_flight for quota in self._possible(group, (GROUP, POPPING_GROUP), since_us)]
        host = self._hosts[at.address]
        is_torn = any(kind.startswith(_TORN) for kind in self._world.faults) or bool(host.machine.jumps)
        is_same = self.serving(at.address) == at and self._is_judged(host)
        if is_same and not is_torn and all(allowed) and len(mine) > max(allowed):
            raise Violation("I27", f"{at.address} has {len(mine)} messages in flight, allowed are {max(allowed)}")

    # Tables and logs.

    def _is_judged(self, host: Host) -> bool:
        """Return whether a host promises to have confirmed limits."""
        if self.excuses(host.group.name):
            return False
        mode = mode_of(host.group)
        return mode is Mode.ELECT or (mode is Mode.STATIC and host.broker_id == 0 and not host.wipes_us)

    def _poll(self) -> None:
        for group in self._cluster.plan.groups:
            host = self._cluster.master(group) if self._has_one_master else self._cluster.members(group)[0]
            process = host.process
            if host.broker is None or process is None or process.paused_until_us >= self._world.now_us:
                continue  # a paused one does not know yet that another member serves
            is_serving = self._has_one_master or host.broker.puts.refusal is None
            if is_serving and self._is_judged(host):
                self._judge_table(host)
        self._world.after(POLL_US, self._poll)

    def _judge_table(self, host: Host) -> None:
        found = self._limits_of(host)
        for (group, key), spans in self._spans.items() if found is not None else ():
            if group != host.group.name or self._possible(group, key, self._world.now_us) != [spans[-1].quota]:
                continue
            has, wanted = found.get(key, Quota(*key)), spans[-1].quota
            if has != wanted and not (has.is_unlimited and wanted.is_unlimited):
                raise Violation("I27", f"{wanted} was confirmed, and {host.name} has {has}")

    def _limits_of(self, host: Host) -> dict[Key, Quota]:
        assert host.broker is not None, "it runs"
        table = next(table for table in host.broker.features.tables if table.code == Code.TANDEM_QUOTAS)
        body = table.polled(Command(Code.TANDEM_QUOTAS))
        return {quota.key: quota for quota in msgspec.convert(loads(body)["quotas"], list[Quota])}

    def unsettled(self) -> Violation | None:
        """Return the violation that the present state would be at the end; None if there is none."""
        for group in self._cluster.plan.groups:
            master, *slaves = self._cluster.members(group)
            for host in slaves if not self.excuses(group.name) else ():
                if host.broker is not None and self._limits_of(host) != self._limits_of(master):
                    return Violation("I27", f"{host.name} has not the limits of its master")
        return None

    def judge(self, records: Callable[[Host], Sequence[LoggedMessage]]) -> None:
        """Check that no log has a message that was refused.

        Raises:
            Violation: I27.
        """
        for group in self._cluster.plan.groups:
            master = self._cluster.members(group)[0]
            for found in records(master):
                if found.key in self._refused and self._refused[found.key].group == group.name:
                    raise Violation("I27", f"{master.name} holds {found.key}, which was refused: a limit was exceeded")


def keys_of(topic: str, *, has_user: bool) -> list[Key]:
    """Return the limits that hold for a send. `has_user`: whether its user is `BUSY`."""
    return [(TOPIC, topic), *([(USER, BUSY.access_key)] if has_user else [])]
