"""One poller of the cluster for all viewers.

While a page is open somewhere, each broker gets one request per tick: its failover status, or, every `FIGURES_EVERY`th
tick, its runtime figures; brokers of groups without a registry get the replication status in every second other tick.
The number of viewers does not matter. While no page is open, a broker is asked for both once a minute, for the charts.

A broker that no longer answers stays in the picture, as long as it is registered or configured, and for `REMEMBER_MS`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tandemq.client.admin.cluster import ClusterInfo
from tandemq.client.aio.admin import Admin
from tandemq.console.cluster.failovers import Failover, last_failover
from tandemq.console.cluster.picture import BAD, OK, BrokerAnswers, GroupView, MemberView, groups_of
from tandemq.console.web.translation import Phrase
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode

TICK_S = 1.0
FIGURES_EVERY = 5
TIMEOUT_MS = 1_500
"""A broker that has not answered after this time counts as one that does not answer."""
REMEMBER_MS = 600_000
LOST_MAX = 1_000
"""Maximum number of members whose last answer before an outage is remembered."""
FRESH_MS = 1_000


@dataclass(frozen=True, slots=True)
class ClusterRates:
    """Messages per second: of the last ten seconds, and of the last minute."""

    received: float
    delivered: float
    received_minute: float
    delivered_minute: float


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at a moment."""

    at_ms: int
    groups: tuple[GroupView, ...] = ()
    error: str = ""
    """Why nothing is known: no name server answers."""
    failover: Failover | None = None
    """The last change of a master in any group."""

    @property
    def level(self) -> str:
        """The worst level of its groups."""
        levels = {group.level for group in self.groups}
        return BAD if self.error or BAD in levels else next(iter(sorted(levels - {OK}, reverse=True)), OK)

    @property
    def sentences(self) -> list[Phrase]:
        """One sentence that all is well, or one sentence per group with a problem."""
        if self.error:
            return [Phrase("The cluster does not answer: {why}", {"why": self.error})]
        found = [
            Phrase(
                "{group}: {problems}, since {time} UTC ({age})",
                {
                    "group": group.name,
                    "problems": group.problems,
                    "time": time.strftime("%H:%M:%S", time.gmtime(group.since_ms / 1000)),
                    "age": _age_text(self.at_ms - group.since_ms),
                },
            )
            for group in self.groups
            if group.level != OK
        ]
        if found:
            return found
        if len(self.groups) == 1:
            return [Phrase("1 group, all in sync")]
        return [Phrase("{count} groups, all in sync", {"count": len(self.groups)})]

    @property
    def members(self) -> list[MemberView]:
        """All members of all groups."""
        return [member for group in self.groups for member in group.members]

    @property
    def rates(self) -> ClusterRates | None:
        """What masters receive from producers and all members deliver to consumers; None: no broker has reported it."""
        known = [member for member in self.members if member.answers and member.rates is not None]
        if not known:
            return None
        received = [member.rates for member in known if member.is_master and member.rates is not None]
        delivered = [member.rates for member in known if member.rates is not None]
        return ClusterRates(
            sum(rates.puts for rates in received),
            sum(rates.gets for rates in delivered),
            sum(rates.puts_minute for rates in received),
            sum(rates.gets_minute for rates in delivered),
        )

    @property
    def fullest(self) -> tuple[GroupView, MemberView] | None:
        """The member whose disk is used most; None: no broker has reported it."""
        known = [(group, member) for group in self.groups for member in group.members if member.disk is not None]
        return max(known, key=lambda pair: pair[1].disk or 0.0, default=None)

    @property
    def versions(self) -> dict[str, int]:
        """Number of members by version, sorted by version."""
        found = sorted(member.version for member in self.members if member.answers and member.version)
        return {version: found.count(version) for version in found}

    def group(self, name: str) -> GroupView | None:
        """Return a group by its name, None if there is none."""
        return next((group for group in self.groups if group.name == name), None)

    def addresses(self) -> dict[str, str]:
        """Return the names of groups by the addresses of their members: the only ones that the console connects to."""
        return {member.address: group.name for group in self.groups for member in group.members if member.address}


def _age_text(ms: int) -> str:
    seconds = max(0, ms // 1000)
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7_200 else f"{seconds // 3600} h"


@dataclass(slots=True)
class _Broker:
    """Last state of a broker, by its address."""

    broker: str
    broker_id: int
    seen_ms: int
    answers: bool = False
    failover: Mapping[str, Any] | None = None
    replication: Mapping[str, Any] | None = None
    figures: Mapping[str, str] = field(default_factory=dict)
    is_listed: bool = True
    """Registered at a name server, or a live member of a group."""

    @property
    def has_fixed_role(self) -> bool:
        return self.failover is None or "stage" not in self.failover


class ClusterWatch:
    """Poller of the cluster. `requests`: number of requests sent to brokers."""

    def __init__(self, admin: Admin) -> None:
        """Take an admin client that is started; nothing is asked yet."""
        self._admin = admin
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, str] = {}
        self._view: ClusterView | None = None
        self._since: dict[str, tuple[str, int]] = {}
        self._lost_ms: dict[tuple[str, int], int] = {}
        """When a member last answered before it stopped to answer, by group and broker id."""
        self._ticks = 0
        self._poll: asyncio.Task[ClusterView] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self.viewers = 0
        self.requests = 0

    async def view(self) -> ClusterView:
        """Return the present picture: at most `FRESH_MS` old."""
        view = self._view
        if view is not None and _wall_ms() - view.at_ms < FRESH_MS:
            return view
        view = await self._polled()
        if not any(broker.figures for broker in self._brokers.values()) and not view.error:
            view = await self._polled(figures=True)
        return view

    async def fresh(self, *, figures: bool = False) -> ClusterView:
        """Return a picture that was made after this call began. `figures`: with new runtime figures."""
        if self._poll is not None:
            await self._poll
        return await self._polled(figures=figures)

    async def _polled(self, *, figures: bool = False) -> ClusterView:
        """Run a poll, or wait for the running poll."""
        if self._poll is None:
            self._poll = asyncio.create_task(self._run_poll(figures=figures))
        return await asyncio.shield(self._poll)

    async def follow(self) -> AsyncGenerator[ClusterView, None]:
        """Yield each new picture; the poller runs while any viewer follows."""
        self.viewers += 1
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())
        try:
            shown = await self.view()
            yield shown
            while True:
                async with self._changed:
                    while self._view is shown:
                        await self._changed.wait()
                    shown = self._view or shown
                yield shown
        finally:
            self.viewers -= 1

    async def _run(self) -> None:
        try:
            while self.viewers:
                started = time.monotonic()
                await self._polled()
                await asyncio.sleep(max(0.0, TICK_S - (time.monotonic() - started)))
        finally:
            self._loop = None

    async def close(self) -> None:
        """Stop the poller."""
        for task in (self._loop, self._poll):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TandemError):
                    await task

    async def _run_poll(self, *, figures: bool) -> ClusterView:
        try:
            view = await self._ask(figures=figures)
        finally:
            self._poll = None
        async with self._changed:
            self._view = view
            self._changed.notify_all()
        return view

    async def _ask(self, *, figures: bool) -> ClusterView:
        try:
            self._list(await self._admin.cluster_info())
        except TandemError as error:
            if not self._brokers:
                return ClusterView(_wall_ms(), error=str(error))
        self._ticks += 1
        wants_figures = figures or self._ticks % FIGURES_EVERY == 0
        codes = {address: self._code(broker, wants_figures) for address, broker in self._brokers.items()}
        self.requests += len(codes)
        answers = await self._admin.ask_brokers(codes, timeout_ms=TIMEOUT_MS)
        now_ms = _wall_ms()
        for address, code in codes.items():
            self._take(address, code, answers[address], now_ms)
        self._forget(now_ms)
        groups = tuple(self._dated(group, now_ms) for group in self._groups())
        failovers = [found for group in groups if (found := self.last_failover(group.name)) is not None]
        return ClusterView(now_ms, groups, failover=max(failovers, key=lambda failover: failover.at_ms, default=None))

    def _code(self, broker: _Broker, wants_figures: bool) -> RequestCode:
        if wants_figures and broker.answers:
            return RequestCode.GET_BROKER_RUNTIME_INFO
        if broker.answers and broker.has_fixed_role and self._ticks % 2:
            return RequestCode.GET_BROKER_HA_STATUS
        return RequestCode.TANDEM_FAILOVER_STATUS

    def _list(self, info: ClusterInfo) -> None:
        """Take the registered brokers."""
        now_ms = _wall_ms()
        self._clusters |= {name: group.cluster for name, group in info.brokers.items()}
        for broker in self._brokers.values():
            broker.is_listed = False
        for name, group in info.brokers.items():
            for broker_id, address in group.members.items():
                self._learn(name, broker_id, address, now_ms)

    def _learn(self, name: str, broker_id: int, address: str, now_ms: int) -> None:
        known = self._brokers.get(address)
        if known is None or known.broker != name:
            known = self._brokers[address] = _Broker(name, broker_id, now_ms)
        known.is_listed = True
        if known.failover is None:  # else it has said its own id
            known.broker_id = broker_id

    def _take(self, address: str, code: RequestCode, answer: Mapping[str, Any] | TandemError, now_ms: int) -> None:
        broker = self._brokers[address]
        if isinstance(answer, TandemError):
            answers = answer.code is not None  # an answer with an error code is one
            if broker.answers and not answers:
                self._lost_ms[broker.broker, broker.broker_id] = broker.seen_ms
                for oldest in list(self._lost_ms)[:-LOST_MAX]:
                    del self._lost_ms[oldest]
            broker.answers = answers
            return
        broker.answers, broker.seen_ms = True, now_ms
        if code is RequestCode.GET_BROKER_RUNTIME_INFO:
            table = answer.get("table") or {}
            broker.figures = {str(key): str(value) for key, value in table.items()}
        elif code is RequestCode.GET_BROKER_HA_STATUS:
            broker.replication = answer
        elif answer.get("brokerName") == broker.broker:
            broker.failover, broker.broker_id = answer, int(answer["brokerId"])
            for member in answer.get("members") or ():
                if member["address"]:
                    self._learn(broker.broker, int(member["brokerId"]), str(member["address"]), now_ms)
        elif "brokerName" in answer:  # the address belongs to another broker by now
            broker.broker, broker.failover = str(answer["brokerName"]), answer
            broker.broker_id = int(answer["brokerId"])

    def _forget(self, now_ms: int) -> None:
        """Remove brokers that are gone: not listed and silent for long, or at another address by now."""
        taken = {(broker.broker, broker.broker_id) for broker in self._brokers.values() if broker.answers}
        for address, broker in list(self._brokers.items()):
            is_old = not broker.is_listed and now_ms - broker.seen_ms > REMEMBER_MS
            if is_old or (not broker.answers and (broker.broker, broker.broker_id) in taken):
                del self._brokers[address]

    def _groups(self) -> tuple[GroupView, ...]:
        answers = [
            BrokerAnswers(
                broker.broker,
                broker.broker_id,
                address,
                broker.answers,
                broker.failover if broker.answers else None,
                broker.replication if broker.answers else None,
                broker.figures,
            )
            for address, broker in self._brokers.items()
        ]
        return groups_of(answers, self._clusters)

    def _dated(self, group: GroupView, now_ms: int) -> GroupView:
        """Note since when the group has its level."""
        before = self._since.get(group.name)
        if before is None or before[0] != group.level:
            before = self._since[group.name] = (group.level, now_ms)
        return replace(group, since_ms=before[1])

    def timeline(self, name: str) -> list[dict[str, Any]]:
        """Return the role changes of a group that its members have recorded, newest first."""
        entries: dict[tuple[int, int, str], dict[str, Any]] = {}
        for broker in self._brokers.values():
            if broker.broker == name and broker.failover is not None:
                for entry in broker.failover.get("timeline") or ():
                    key = (int(entry["ms"]), int(entry["epoch"]), str(entry["text"]))
                    entries.setdefault(key, {**entry, "brokers": []})["brokers"].append(broker.broker_id)
        return sorted(entries.values(), key=lambda entry: (entry["ms"], entry["epoch"]), reverse=True)

    def last_failover(self, name: str) -> Failover | None:
        """Return the last change of a group's master, None if none is recorded."""
        lost_ms = {broker_id: at_ms for (group, broker_id), at_ms in self._lost_ms.items() if group == name}
        sessions = [
            int(broker.failover["sessionMs"])
            for broker in self._brokers.values()
            if broker.broker == name and broker.failover is not None and broker.failover.get("sessionMs")
        ]
        return last_failover(name, self.timeline(name), lost_ms, max(sessions, default=None))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
