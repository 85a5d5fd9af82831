"""The brokers of a cluster and of its groups, found through name servers, each other, and the registry.

    name servers ── registered brokers ──► asked where they stand ── addresses of living members ──► asked as well
    registry ────── living members ──────►                        └─ configured members: who is missing
    operator ────── addresses ───────────►

A broker is not always registered: a returning master that waits for its hand-back is not. Nor does the id under which
it is registered say which member it is: with elected masters number 0 is whoever is the master.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from tandemq.cli.support import registries
from tandemq.cli.support.client_session import quiet
from tandemq.cli.support.name_servers import registered_brokers
from tandemq.errors import ConfigError, LocalError, NetworkError, NotConnected, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode

registry_option = registries.registry_option(
    "Find members there as well: zookeeper://host:2181,host:2181 or namesrv://host:9876."
)
address_option = click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Ask this broker itself, and look at its group only; may be repeated.",
)
NORMAL_SECONDS = 3.0
PORT_MAX = 65_535
ASK_THEM = (
    "brokers are found through their name servers (--namesrv), through a registry (--registry ADDRESS), or by asking "
    "one of them (--address HOST:PORT)"
)


@dataclass(frozen=True, slots=True)
class Member:
    """A broker as the name server knows it."""

    cluster: str
    broker: str
    broker_id: int
    address: str


@dataclass(slots=True)
class Found:
    """A broker, and what it says of its part in its group."""

    broker: str
    broker_id: int
    """Its own id, if it answers; else the one it is known under."""
    address: str
    is_registered: bool
    standing: dict[str, Any] | None = None
    """The answer to TANDEM_FAILOVER_STATUS; None: no answer, or no TandemQ broker."""

    @property
    def has_registry(self) -> bool:
        """Whether its group gets its roles from a registry."""
        return self.standing is not None and "stage" in self.standing

    @property
    def is_master(self) -> bool:
        """Whether it serves as the master now."""
        return (
            self.standing is not None
            and bool(self.standing["isMaster"])
            and (not self.has_registry or self.standing["stage"] in ("serving", "handing over"))
        )


@dataclass(slots=True)
class Group:
    """A broker group: who was found, and who is missing."""

    name: str
    members: list[Found] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """Configured members that do not live, or do not answer."""

    @property
    def has_registry(self) -> bool:
        """Whether its roles come from a registry."""
        return any(found.has_registry for found in self.members)

    @property
    def master(self) -> Found | None:
        """Who serves as its master now; of two that say so, the one of the higher epoch."""
        masters = [found for found in self.members if found.is_master]
        return max(masters, key=lambda found: (found.standing or {}).get("epoch", 0), default=None)

    def has_answer_of(self, broker_id: int) -> bool:
        """Whether this member was asked, and answered."""
        return any(found.broker_id == broker_id and found.standing is not None for found in self.members)

    def member(self, broker_id: int) -> Found:
        """A member that answers.

        Raises:
            LocalError: there is none of this id, or it is away.
        """
        for found in self.members:
            if found.broker_id == broker_id and found.standing is not None:
                return found
        known = ", ".join(str(found.broker_id) for found in self.members if found.standing is not None)
        what = "does not answer" if broker_id in self.missing else "is unknown"
        raise LocalError(f"broker {broker_id} of group {self.name} {what}", hint=f"there are {known or 'none'}")


def ask_broker(
    address: str, code: RequestCode, fields: dict[str, str] | None = None, *, seconds: float = NORMAL_SECONDS
) -> Any:
    """The answer to one request, whatever it says. Raises NetworkError."""
    from tandemq.model.command import Command  # noqa: PLC0415  # not for --help
    from tandemq.run.request import line  # noqa: PLC0415

    with line(address, seconds=seconds) as opened:
        return opened.ask(Command(code, fields=fields or {}))


def ask_json(address: str, code: RequestCode, fields: dict[str, str] | None = None) -> Any:
    """What the JSON body of the answer to one request says.

    Raises:
        NetworkError: there is no answer.
        RemoteError: the request is refused, or the body is no JSON.
    """
    from tandemq.codec.remoting.fastjson import loads  # noqa: PLC0415  # not for --help

    answer = ask_broker(address, code, fields)
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError(f"{address}: {answer.remark or f'refused with code {answer.code}'}", code=answer.code)
    return loads(answer.body, is_trusted=True)


def members_of(name_servers: str) -> list[Member]:
    """All registered brokers, from the first name server that answers.

    Raises:
        NotConnected: none does.
        RemoteError: who answers is no name server, or refuses.
    """
    return [
        Member(str(data.get("cluster", "")), name, int(number), str(at))
        for name, data in sorted(registered_brokers(name_servers).items())
        for number, at in sorted(data["brokerAddrs"].items(), key=lambda item: int(item[0]))
    ]


def groups_of(
    name_servers: str, registry: str | None, broker: str | None = None, asked: Sequence[Found] = ()
) -> list[Group]:
    """All groups, or one of them, by name, with everybody who can be found; members by id. If some of those who were to
    be asked for members do not answer and others do, standard error says so.

    Args:
        name_servers: "host:port;host:port".
        registry: its address, to find members there as well.
        broker: this group only.
        asked: brokers asked by their own address; of their groups only.
    Raises:
        NetworkError: neither a name server nor the registry, if one is given, answers.
        ConfigError: the registry's address is none.
        LocalError: no broker is found, or none of the group that is asked for.
    """
    registered, living = _known(name_servers, registry, is_needed=not asked)
    wanted = {found.broker for found in asked}
    groups: dict[str, Group] = {}
    for name, broker_id, address, is_registered in [
        *((one.broker, one.broker_id, one.address, True) for one in registered),
        *((*one, False) for one in living),
    ]:
        if broker in (None, name) and (not asked or name in wanted):
            group = groups.setdefault(name, Group(name))
            if all(found.address != address for found in group.members):
                group.members.append(_found(name, broker_id, address, is_registered=is_registered))
    for found in asked:
        if broker in (None, found.broker):
            group = groups.setdefault(found.broker, Group(found.broker))
            if not group.has_answer_of(found.broker_id):
                group.members.append(found)
    for group in groups.values():
        _complete(group)
    if not groups:
        what = f"no broker of group {broker} was found" if broker is not None else "no broker is registered"
        raise LocalError(f"{what} at {name_servers}", hint=ASK_THEM)
    return [groups[name] for name in sorted(groups)]


def _known(
    name_servers: str, registry: str | None, *, is_needed: bool
) -> tuple[list[Member], list[tuple[str, int, str]]]:
    """Registered brokers, and living members in the registry. Raises as `groups_of`, if they are needed."""
    registered: list[Member] = []
    living: list[tuple[str, int, str]] = []
    silent: list[TandemError] = []
    try:
        registered = members_of(name_servers)
    except NetworkError as error:
        silent.append(error)
    try:
        living = _living(registry) if registry else []
    except NetworkError as error:
        silent.append(error)
    why = "; ".join(str(error.args[0]) for error in silent)
    if silent and is_needed and not registered and not living:
        raise NotConnected(why, hint=ASK_THEM)
    if silent:
        click.echo(f"tandemq: {why}", err=True)
    return registered, living


def asked_at(addresses: Sequence[str]) -> list[Found]:
    """The brokers at addresses that the user named; standard error says where there is none.

    Raises:
        ConfigError: one is no address.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise ConfigError(f"--address {address:.128}: that is no HOST:PORT", hint="for instance 10.0.0.1:10911")
    found = []
    for address in addresses:
        try:
            found.append(_broker_at(address))
        except (NetworkError, RemoteError) as error:
            click.echo(f"tandemq: {error}", err=True)
    return found


def required_at(addresses: Sequence[str], broker: str | None) -> list[Found]:
    """The brokers at addresses that the user named, if any, of which one at least must answer and be of `broker`.

    Raises:
        ConfigError: one is no address, or who answers is of another group.
        LocalError: nobody answers.
    """
    found = asked_at(addresses)
    if addresses and not found:
        raise LocalError("no broker that was named with --address answers", hint="are they running?")
    names = sorted({one.broker for one in found})
    if broker is not None and found and broker not in names:
        raise ConfigError(f"who answers at --address is of group {', '.join(names)}, not of {broker}")
    return found


def _broker_at(address: str) -> Found:
    """Raises NetworkError, or RemoteError if who answers there is no TandemQ broker."""
    standing = ask_json(address, RequestCode.TANDEM_FAILOVER_STATUS)
    if not isinstance(standing, dict) or "brokerName" not in standing:
        raise RemoteError(f"{address}: who answers there is no TandemQ broker")
    return Found(str(standing["brokerName"]), int(standing["brokerId"]), address, False, standing)


def _living(registry: str) -> list[tuple[str, int, str]]:
    """Name, id and address of every member with a live node. Raises as `groups_of`."""
    from tandemq.coordination.registry.records import (  # noqa: PLC0415
        ROOT,
        groups_path,
        live_broker_path,
        live_from_json,
        live_path,
    )
    from tandemq.registry import Names, NodeFound, NodeMissing, Read, ReadChildren  # noqa: PLC0415

    with quiet(), registries.open_registry(registry) as client:

        def below(path: str) -> Iterable[str]:
            match client.do(ReadChildren(path)):
                case Names(children=names):
                    return names
                case NodeMissing():
                    return ()
                case outcome:
                    raise RemoteError(f"the registry does not tell what is below {path}: {outcome}")

        found = []
        for cluster in below(ROOT):
            for name in below(groups_path(cluster)):
                for number in below(live_path(cluster, name)):
                    node = client.do(Read(live_broker_path(cluster, name, int(number))))
                    if isinstance(node, NodeFound):
                        found.append((name, int(number), live_from_json(node.data).address))
        return found


def _found(name: str, broker_id: int, address: str, *, is_registered: bool) -> Found:
    found = Found(name, broker_id, address, is_registered)
    try:
        standing = ask_json(address, RequestCode.TANDEM_FAILOVER_STATUS)
    except (NetworkError, RemoteError):
        return found
    # Addresses are used again: who answers there may be somebody else by now.
    if isinstance(standing, dict) and standing.get("brokerName") == name:
        found.standing, found.broker_id = standing, int(standing["brokerId"])
    return found


def _complete(group: Group) -> None:
    """Ask whom the members know as living, and note whom nobody can be asked."""
    known = {found.address for found in group.members}
    configured: set[int] = set()
    for found in group.members:  # grows meanwhile
        for told in (found.standing or {}).get("members", ()):
            configured.add(told["brokerId"])
            if told["address"] and told["address"] not in known and not group.has_answer_of(told["brokerId"]):
                known.add(told["address"])
                group.members.append(_found(group.name, told["brokerId"], told["address"], is_registered=False))
    group.members.sort(key=lambda found: found.broker_id)
    answering = {found.broker_id for found in group.members if found.standing is not None}
    group.missing = sorted(configured - answering)
