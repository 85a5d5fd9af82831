"""Discovery of the brokers of a cluster and of its groups: through name servers, other brokers, and the registry.

    name servers ── registered brokers ──► failover status ── addresses of live members ──► failover status
    registry ────── live members ────────►                 └─ configured members: which of them are missing
    operator ────── addresses ───────────►

A broker is not always registered: a returning master that waits for the offset handover is not. The id under which a
broker is registered does not identify the member: with elected masters, id 0 is the present master.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from tandemq.cli.support import registries
from tandemq.cli.support.client_session import namesrv_option, quiet
from tandemq.cli.support.gathered import Command, gathered
from tandemq.cli.support.name_servers import registered_brokers
from tandemq.cli.support.tls import client_tls
from tandemq.errors import ConfigError, LocalError, NetworkError, NotConnected, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode

NORMAL_SECONDS = 3.0
PORT_MAX = 65_535
ASK_THEM = (
    "brokers are found through name servers (--namesrv), through a registry (--registry ADDRESS), or through the "
    "address of one of them (--address HOST:PORT)"
)


@dataclass(frozen=True, slots=True)
class ListedBroker:
    """A broker as registered at the name server."""

    cluster: str
    broker: str
    broker_id: int
    address: str


@dataclass(slots=True)
class FoundBroker:
    """A broker and its failover status."""

    broker: str
    broker_id: int
    """Its own id if it answers, else the id under which it was found."""
    address: str
    is_registered: bool
    failover: dict[str, Any] | None = None
    """Response to TANDEM_FAILOVER_STATUS; None if there is none, or the broker is not TandemQ."""

    @property
    def has_registry(self) -> bool:
        """Whether the roles of its group come from a registry."""
        return self.failover is not None and "stage" in self.failover

    @property
    def is_master(self) -> bool:
        """Whether it is the active master now."""
        return (
            self.failover is not None
            and bool(self.failover["isMaster"])
            and (not self.has_registry or self.failover["stage"] in ("serving", "handing over"))
        )


@dataclass(slots=True)
class Group:
    """A broker group: the members found, and the ids of missing ones."""

    name: str
    members: list[FoundBroker] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """Ids of configured members that are not live or do not answer."""

    @property
    def has_registry(self) -> bool:
        """Whether its roles come from a registry."""
        return any(found.has_registry for found in self.members)

    @property
    def shard_of(self) -> str:
        """The name of the settings whose shard its members are; "" if they are none."""
        return next((name for found in self.members if (name := (found.failover or {}).get("shardOf"))), "")

    @property
    def master(self) -> FoundBroker | None:
        """The active master; if two members claim to be, the one with the higher epoch."""
        masters = [found for found in self.members if found.is_master]
        return max(masters, key=lambda found: (found.failover or {}).get("epoch", 0), default=None)

    def has_answer_of(self, broker_id: int) -> bool:
        """Return whether this member answered."""
        return any(found.broker_id == broker_id and found.failover is not None for found in self.members)

    def member(self, broker_id: int) -> FoundBroker:
        """Return a member that answers.

        Raises:
            LocalError: the id is unknown, or the member does not answer.
        """
        for found in self.members:
            if found.broker_id == broker_id and found.failover is not None:
                return found
        known = ", ".join(str(found.broker_id) for found in self.members if found.failover is not None)
        what = "does not answer" if broker_id in self.missing else "is unknown"
        raise LocalError(
            f"broker {broker_id} of group {self.name} {what}", hint=f"members that answer: {known or 'none'}"
        )


def ask_broker(
    address: str, code: RequestCode, fields: dict[str, str] | None = None, *, seconds: float = NORMAL_SECONDS
) -> Any:
    """Send one request and return the response, whatever its code. Raises NetworkError."""
    from tandemq.client.connection import BlockingConnection  # noqa: PLC0415
    from tandemq.model.command import Command  # noqa: PLC0415  # not for --help

    with BlockingConnection(address, seconds=seconds, tls=client_tls()) as opened:
        return opened.request(Command(code, fields=fields or {}))


def ask_json(address: str, code: RequestCode, fields: dict[str, str] | None = None) -> Any:
    """Send one request and return the parsed JSON body of the response.

    Raises:
        NetworkError: there is no response.
        RemoteError: the request is refused, or the body is not JSON.
    """
    from tandemq.codec.remoting.fastjson import loads  # noqa: PLC0415  # not for --help

    answer = ask_broker(address, code, fields)
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError(f"{address}: {answer.remark or f'refused with code {answer.code}'}", code=answer.code)
    return loads(answer.body, is_trusted=True)


def members_of(name_servers: str) -> list[ListedBroker]:
    """Return all registered brokers, from the first name server that answers.

    Raises:
        NotConnected: no name server answers.
        RemoteError: the process at an address is not a name server, or it refuses the request.
    """
    return [
        ListedBroker(str(data.get("cluster", "")), name, int(number), str(address))
        for name, data in sorted(registered_brokers(name_servers).items())
        for number, address in sorted(data["brokerAddrs"].items(), key=lambda item: int(item[0]))
    ]


def groups_of(
    name_servers: str, registry: str | None, broker: str | None = None, asked: Sequence[FoundBroker] = ()
) -> list[Group]:
    """Find all groups, or one of them, with all members that can be found.

    If only some of the name servers and the registry answer, a warning is printed to standard error.

    Args:
        name_servers: "host:port;host:port"; "" for none.
        registry: address of a registry, to find members there too.
        broker: only this group.
        asked: brokers that were found by their own address; only their groups.
    Returns:
        Groups sorted by name, their members by id.
    Raises:
        NetworkError: neither a name server nor the registry, if one is given, answers.
        ConfigError: the registry's address is malformed.
        LocalError: no broker is found, or none of the requested group.
        RemoteError: a broker does not permit the requests.
    """
    registered, live = _known(name_servers, registry, is_needed=not asked)
    wanted = {found.broker for found in asked}
    groups: dict[str, Group] = {}
    for name, broker_id, address, is_registered in [
        *((listed.broker, listed.broker_id, listed.address, True) for listed in registered),
        *((*member, False) for member in live),
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
) -> tuple[list[ListedBroker], list[tuple[str, int, str]]]:
    """Return registered brokers, and live members of the registry. Raises as `groups_of` if they are needed."""
    registered: list[ListedBroker] = []
    live: list[tuple[str, int, str]] = []
    silent: list[TandemError] = []
    try:
        registered = members_of(name_servers) if name_servers else []
    except NetworkError as error:
        silent.append(error)
    try:
        live = _live(registry) if registry else []
    except NetworkError as error:
        silent.append(error)
    why = "; ".join(str(error.args[0]) for error in silent)
    if silent and is_needed and not registered and not live:
        raise NotConnected(why, hint=ASK_THEM)
    if silent:
        click.echo(f"tandemq: {why}", err=True)
    return registered, live


class GroupSearch(NamedTuple):
    """Where to find the brokers of groups: the values of --address, --registry and --namesrv."""

    addresses: tuple[str, ...]
    registry: str | None
    name_servers: str

    def groups(self, broker: str | None) -> list[Group]:
        """Return the groups, or one of them; of those brokers that have addresses, at least one must answer.

        Raises:
            TandemError: see `groups_of` and `required_at`.
        """
        return groups_of(self.name_servers, self.registry, broker, required_at(self.addresses, broker))


def search_options(command: Command) -> Command:
    """Add --address, --registry and --namesrv; the command gets them as `search`."""
    address = click.option(
        "--address",
        "addresses",
        multiple=True,
        metavar="HOST:PORT",
        help="Query this broker directly, and only its group; repeatable.",
    )
    registry = registries.registry_option(f"Also find members in this registry: {registries.ADDRESSES}.")
    return address(registry(namesrv_option(gathered(command, "search", GroupSearch))))


def asked_at(addresses: Sequence[str]) -> list[FoundBroker]:
    """Return the brokers at the user's addresses; a warning is printed for each address without one.

    Raises:
        ConfigError: an address is malformed.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise ConfigError(f"--address {address:.128}: HOST:PORT is expected", hint="for instance 10.0.0.1:10911")
    found = []
    for address in addresses:
        try:
            found.append(_broker_at(address))
        except (NetworkError, RemoteError) as error:
            click.echo(f"tandemq: {error}", err=True)
    return found


def required_at(addresses: Sequence[str], broker: str | None) -> list[FoundBroker]:
    """Return the brokers at the user's addresses; if there are addresses, at least one broker of group `broker` must
    answer.

    Raises:
        ConfigError: an address is malformed, or the brokers that answer belong to other groups.
        LocalError: no broker answers.
    """
    found = asked_at(addresses)
    if addresses and not found:
        raise LocalError("no broker given with --address answers", hint="are they running?")
    names = sorted({listed.broker for listed in found})
    if broker is not None and found and broker not in names:
        raise ConfigError(f"the brokers given with --address belong to group {', '.join(names)}, not to {broker}")
    return found


def _broker_at(address: str) -> FoundBroker:
    """Return the TandemQ broker at an address. Raises NetworkError, or RemoteError if it is something else."""
    failover = ask_json(address, RequestCode.TANDEM_FAILOVER_STATUS)
    if not isinstance(failover, dict) or "brokerName" not in failover:
        raise RemoteError(f"{address}: the process there is not a TandemQ broker")
    return FoundBroker(str(failover["brokerName"]), int(failover["brokerId"]), address, False, failover)


def _live(registry: str) -> list[tuple[str, int, str]]:
    """Return (group, broker id, address) of every member with a live node. Raises as `groups_of`."""
    from tandemq.coordination.registry.records import (  # noqa: PLC0415
        ROOT,
        groups_path,
        live_broker_path,
        live_from_json,
        live_path,
    )
    from tandemq.registry import NodeFound, Read  # noqa: PLC0415

    with quiet(), registries.open_registry(registry) as client:
        found = []
        for cluster in registries.children(client, ROOT):
            for name in registries.children(client, groups_path(cluster)):
                for number in registries.children(client, live_path(cluster, name)):
                    node = client.do(Read(live_broker_path(cluster, name, int(number))))
                    if isinstance(node, NodeFound):
                        found.append((name, int(number), live_from_json(node.data).address))
        return found


def _found(name: str, broker_id: int, address: str, *, is_registered: bool) -> FoundBroker:
    found = FoundBroker(name, broker_id, address, is_registered)
    try:
        failover = ask_json(address, RequestCode.TANDEM_FAILOVER_STATUS)
    except NetworkError:
        return found
    except RemoteError as error:
        if error.code == ResponseCode.NO_PERMISSION:  # nothing could be said about the group
            raise
        return found
    # Addresses are reused: another broker may answer there by now.
    if isinstance(failover, dict) and failover.get("brokerName") == name:
        found.failover, found.broker_id = failover, int(failover["brokerId"])
    return found


def _complete(group: Group) -> None:
    """Add the live members that other members know, and record the configured members that do not answer."""
    known = {found.address for found in group.members}
    configured: set[int] = set()
    for found in group.members:  # the list grows during the loop
        for member in (found.failover or {}).get("members", ()):
            configured.add(member["brokerId"])
            if member["address"] and member["address"] not in known and not group.has_answer_of(member["brokerId"]):
                known.add(member["address"])
                group.members.append(_found(group.name, member["brokerId"], member["address"], is_registered=False))
    group.members.sort(key=lambda found: found.broker_id)
    answering = {found.broker_id for found in group.members if found.failover is not None}
    group.missing = sorted(configured - answering)
