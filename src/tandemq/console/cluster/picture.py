"""The picture of a cluster: its broker groups and their members, from the reports of the brokers.

`groups_of` is a function of the answers, without requests of its own. Levels: ok, warning (a guarantee is reduced), bad
(a group accepts no messages, or does not answer).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tandemq.console.web.translation import Phrase

OK, WARNING, BAD = "ok", "warning", "bad"


@dataclass(frozen=True, slots=True)
class BrokerAnswers:
    """The last answers of one broker; None: not asked yet, or not answered."""

    broker: str
    broker_id: int
    address: str
    answers: bool
    failover: Mapping[str, Any] | None = None
    """TANDEM_FAILOVER_STATUS."""
    replication: Mapping[str, Any] | None = None
    """GET_BROKER_HA_STATUS, of groups without a registry."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """GET_BROKER_RUNTIME_INFO."""


@dataclass(frozen=True, slots=True)
class MemberRates:
    """Messages per second that a member received from producers and delivered to consumers, of 10 s and of a minute."""

    puts: float
    gets: float
    puts_minute: float
    gets_minute: float


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group, as shown."""

    broker_id: int
    address: str
    is_master: bool
    answers: bool
    in_sync: bool | None
    """None: unknown, or the master itself."""
    may_read: bool
    may_write: bool
    stage: str = ""
    why: str = ""
    lag_bytes: int | None = None
    lag_ms: int | None = None
    log_end: int | None = None
    rates: MemberRates | None = None
    disk: float | None = None
    """Used part of its device, 0 to 1."""
    version: str = ""

    @property
    def level(self) -> str:
        """Level of this member."""
        if not self.answers:
            return BAD
        return OK if self.is_master or self.in_sync in (True, None) else WARNING


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker group, as shown."""

    name: str
    cluster: str
    mode: str
    epoch: int | None
    members: tuple[MemberView, ...]
    level: str = OK
    problems: tuple[Phrase, ...] = ()
    since_ms: int = 0
    """When the group got its level, as far as this console saw."""

    @property
    def master(self) -> MemberView | None:
        """The active master, None if there is none."""
        return next((member for member in self.members if member.is_master), None)

    @property
    def replicas(self) -> list[MemberView]:
        """The other members."""
        return [member for member in self.members if not member.is_master]

    @property
    def has_registry(self) -> bool:
        """Whether roles come from a registry, so that they can be changed."""
        return self.mode not in ("static", "")

    def member(self, broker_id: int) -> MemberView | None:
        """Return a member by its id, None if there is none."""
        return next((member for member in self.members if member.broker_id == broker_id), None)


def groups_of(answers: list[BrokerAnswers], clusters: Mapping[str, str]) -> tuple[GroupView, ...]:
    """Return the groups of all brokers, sorted by name. `clusters`: cluster by broker name."""
    by_group: dict[str, list[BrokerAnswers]] = {}
    for answer in answers:
        by_group.setdefault(answer.broker, []).append(answer)
    return tuple(_group(name, clusters.get(name, ""), by_group[name]) for name in sorted(by_group))


def _group(name: str, cluster: str, found: list[BrokerAnswers]) -> GroupView:
    master = max((answer for answer in found if _is_master(answer)), key=_epoch, default=None)
    known = [answer for answer in found if answer.answers and answer.failover is not None]
    newest = master or max(known, key=_epoch, default=None)
    failover = (newest.failover if newest is not None else None) or {}
    members = {answer.broker_id: _member(answer, master, failover) for answer in found}
    for item in failover.get("members") or ():
        broker_id = int(item["brokerId"])
        if broker_id not in members:
            members[broker_id] = MemberView(
                broker_id, str(item.get("address", "")), False, False, False, False, False, stage="away"
            )
    group = GroupView(
        name,
        cluster,
        str(failover.get("mode") or ""),
        failover.get("epoch"),
        tuple(members[broker_id] for broker_id in sorted(members)),
    )
    return _judged(group, failover)


def _epoch(answer: BrokerAnswers) -> int:
    return int((answer.failover or {}).get("epoch") or 0)


def _is_master(answer: BrokerAnswers) -> bool:
    if not answer.answers:
        return False
    failover = answer.failover
    if failover is None:  # no TandemQ broker: its id says what it is
        return answer.broker_id == 0
    return bool(failover.get("isMaster")) and failover.get("stage", "serving") in ("serving", "handing over")


def _member(answer: BrokerAnswers, master: BrokerAnswers | None, failover: Mapping[str, Any]) -> MemberView:
    own = answer.failover or {}
    is_master = answer is master
    is_static = "stage" not in own
    listed: Mapping[str, Any] = next(
        (item for item in failover.get("members") or () if item["brokerId"] == answer.broker_id), {}
    )
    in_sync: bool | None = None
    lag_bytes, lag_ms = listed.get("lagBytes"), listed.get("lagMs")
    if not is_master and failover.get("inSync") is not None:
        in_sync = answer.answers and answer.broker_id in failover["inSync"]
    elif not is_master and master is not None and master.replication is not None:
        link = _link_to(answer, master.replication)
        in_sync = link is not None and answer.answers and bool(link.get("inSync"))
        lag_bytes = link.get("diff") if link is not None else None
    end = answer.figures.get("commitLogMaxOffset")
    return MemberView(
        broker_id=answer.broker_id,
        address=answer.address,
        is_master=is_master,
        answers=answer.answers,
        in_sync=in_sync,
        may_read=answer.answers and (is_static or bool(own.get("mayRead"))),
        may_write=answer.answers and (is_master if is_static else bool(own.get("mayWrite"))),
        stage=("master" if is_master else "slave") if is_static else str(own.get("stage", "")),
        why=str(own.get("why", "")) if answer.answers else "",
        lag_bytes=None if is_master or not answer.answers else lag_bytes,
        lag_ms=None if is_master or not answer.answers else lag_ms,
        log_end=int(end) if end and end.isdecimal() else None,
        rates=_rates(answer.figures),
        disk=_number(answer.figures.get("commitLogDiskRatio")),
        version=_version(answer.figures),
    )


def _version(figures: Mapping[str, str]) -> str:
    """Return the version of a broker: TandemQ's own, or that of RocketMQ; "V4_9_8" is 4.9.8."""
    if own := figures.get("tandemqVersion"):
        return f"TandemQ {own}"
    text = figures.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".")
    return f"RocketMQ {text}" if text else ""


def _rates(figures: Mapping[str, str]) -> MemberRates | None:
    puts = figures.get("putTps")
    gets = figures.get("getTransferredTps") or figures.get("getTransferedTps")
    received, delivered = _number(puts), _number(gets)
    if received is None and delivered is None:
        return None
    received, delivered = received or 0.0, delivered or 0.0
    minutes = _number(puts, 1), _number(gets, 1)
    return MemberRates(
        received,
        delivered,
        received if minutes[0] is None else minutes[0],
        delivered if minutes[1] is None else minutes[1],
    )


def _link_to(answer: BrokerAnswers, replication: Mapping[str, Any]) -> Mapping[str, Any] | None:
    links = replication.get("haConnectionInfo") or []
    for link in links:
        if link.get("brokerId") == answer.broker_id:
            return dict(link)
    return dict(links[0]) if len(links) == 1 and int(links[0].get("brokerId", -1)) < 0 else None


def _number(text: str | None, position: int = 0) -> float | None:
    """Return a number of a text such as "12.5 3.0 1.0", as brokers report rates: of 10 s, 1 and 10 minutes."""
    try:
        return float((text or "").split()[position])
    except (IndexError, ValueError):
        return None


def _judged(group: GroupView, failover: Mapping[str, Any]) -> GroupView:
    problems: list[Phrase] = []
    level = OK
    if not any(member.answers for member in group.members):
        return replace(group, level=BAD, problems=(Phrase("no member answers"),))
    if group.master is None:
        level = BAD
        problems.append(Phrase("no active master"))
    elif group.has_registry and not group.master.may_write and group.mode == "elect":
        level = BAD
        problems.append(Phrase("the master accepts no messages: {why}", {"why": group.master.why or "?"}))
    if failover.get("groupMode") == "slave-consume":
        level = level if level == BAD else WARNING
        problems.append(Phrase("read from broker {id}, the master is away", {"id": failover.get("reader")}))
    away = [member.broker_id for member in group.members if not member.answers]
    if away:
        problems.append(Phrase("broker {ids} does not answer", {"ids": _listed(away)}))
    behind = [replica.broker_id for replica in group.replicas if replica.answers and replica.in_sync is False]
    if behind:
        problems.append(Phrase("broker {ids} is not in sync", {"ids": _listed(behind)}))
    if group.master is not None and group.replicas and all(replica.in_sync is False for replica in group.replicas):
        problems.insert(0, Phrase("no replica in sync"))
    if failover.get("trouble"):
        problems.append(Phrase("{text}", {"text": failover["trouble"]}))
    if problems and level == OK:
        level = WARNING
    return replace(group, level=level, problems=tuple(problems))


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
