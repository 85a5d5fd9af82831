"""Checks of a running cluster: name servers, health of groups, addresses, clocks, versions, secrets.

Health, and what other machines reach without credentials, are those of `tandemq ha check`.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tandemq import __version__
from tandemq.cli.doctor.findings import DoctorFinding, counted, ok, problem, warning
from tandemq.cli.doctor.settings_checks import advertised_findings, host_of
from tandemq.cli.ha.health import Rows, faults_of, open_warnings
from tandemq.cli.ha.status import group_rows
from tandemq.cli.support.advice import advised
from tandemq.cli.support.members import FoundBroker, Group, GroupSearch, ask_broker, ask_json
from tandemq.cli.support.name_servers import Openings, openings, registered_brokers
from tandemq.errors import ConfigError, NetworkError, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode

CLOCK_WARNING_MS = 2_000
CLOCK_PROBLEM_MS = 60_000
_RUNTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMember:
    """What one broker reports."""

    name: str
    """Group and id, like broker-a/0."""
    group: str
    address: str
    error: str = ""
    """Why it does not answer; "" if it does."""
    version: str = ""
    clock_ms: tuple[float, float] | None = None
    """Its clock minus this machine's, at least and at most; None if unknown."""
    has_secret: bool | None = None
    """Whether it has a haSecretFile; None if unknown."""
    shares_secret: bool | None = None
    """Whether it accepts the secret of --config; None if that is unknown."""
    refused: int = 0
    """Peers that it has refused since its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the name servers and brokers report."""

    name_servers: Mapping[str, frozenset[str] | str]
    """The registered addresses of each name server, or why it does not answer."""
    versions: Mapping[str, str]
    """TandemQ's version of each name server that reports one."""
    openings: Mapping[str, Openings] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict)
    """Rows of `tandemq ha status` by group."""
    members: Sequence[CheckedMember] = ()
    missing: str = ""
    """Why nothing is known about brokers; "" if there are some."""
    missing_todo: str = "start brokers with namesrvAddr, or correct --namesrv"


# Facts.


def read_cluster(search: GroupSearch, secret_file: str = "") -> ClusterFacts:
    """Ask the name servers and the brokers.

    Args:
        search: where brokers are found.
        secret_file: haSecretFile of this machine's broker; "": unknown.

    Raises:
        ConfigError: an address is malformed, or belongs to no broker.
    """
    from tandemq.run.secret import SecretFile  # noqa: PLC0415  # not for --help

    addresses = [address.strip() for address in search.name_servers.split(";") if address.strip()]
    name_servers = {address: _registered(address) for address in addresses}
    versions = {address: found for address in addresses if (found := _name_server_version(address))}
    try:
        groups = search.groups(None)
    except ConfigError:
        raise
    except TandemError as error:
        facts = ClusterFacts(name_servers=name_servers, versions=versions, missing=str(error.args[0]))
        return replace(facts, missing_todo=advised(error).hint) if isinstance(error, RemoteError) else facts
    try:
        secret = SecretFile(secret_file).secrets()[0] if secret_file else None
    except ConfigError:  # reported with the settings
        secret = None
    rows = {group.name: group_rows(group) for group in groups}
    refused = {row["address"]: row["refused"] or 0 for of_group in rows.values() for row in of_group}
    return ClusterFacts(
        name_servers=name_servers,
        versions=versions,
        openings=openings(search.name_servers),
        groups=groups,
        rows=rows,
        members=[
            _member(found, secret, int(refused.get(found.address, 0))) for group in groups for found in group.members
        ],
    )


def _registered(address: str) -> frozenset[str] | str:
    try:
        table = registered_brokers(address)
    except (NetworkError, RemoteError) as error:
        return str(error.args[0]).removeprefix("no name server answers: ")
    return frozenset(broker for data in table.values() for broker in data["brokerAddrs"].values())


def _name_server_version(address: str) -> str:
    try:
        answer = ask_broker(address, RequestCode.GET_NAMESRV_CONFIG)
    except NetworkError:
        return ""
    return str(answer.fields.get("tandemqVersion", ""))


def _member(found: FoundBroker, secret: bytes | None, refused: int) -> CheckedMember:
    name = f"{found.broker}/{found.broker_id}"
    before_ms = time.time() * 1000
    try:
        table = ask_json(found.address, RequestCode.GET_BROKER_RUNTIME_INFO).get("table", {})
        after_ms = time.time() * 1000
        has_secret = None if found.failover is None else _has_secret(found.address)
        shares = _shares_secret(found.address, secret) if has_secret and secret is not None else None
    except (NetworkError, RemoteError) as error:
        return CheckedMember(name=name, group=found.broker, address=found.address, error=str(error))
    own = (found.failover or {}).get("version")
    return CheckedMember(
        name=name,
        group=found.broker,
        address=found.address,
        version=f"TandemQ {own}" if own else f"RocketMQ {table.get('brokerVersionDesc', 'of an unknown version')}",
        clock_ms=clock_difference(table, before_ms, after_ms),
        has_secret=has_secret,
        shares_secret=shares,
        refused=refused,
    )


def clock_difference(table: Mapping[str, Any], before_ms: float, after_ms: float) -> tuple[float, float] | None:
    """Return the difference of a broker's clock, at least and at most, by its runtime information.

    That has its start in milliseconds and the whole seconds since then.

    Args:
        table: runtime information; its form is RocketMQ's.
        before_ms: this machine's calendar clock before the request.
        after_ms: the same after the response.
    """
    found = _RUNTIME.search(str(table.get("runtime", "")))
    if found is None or not str(table.get("bootTimestamp", "")).isdecimal():
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    theirs_ms = int(table["bootTimestamp"]) + 1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))
    return theirs_ms - after_ms, theirs_ms + 1_000 - before_ms


def _has_secret(address: str) -> bool | None:
    answer = ask_broker(address, RequestCode.TANDEM_CHALLENGE)
    if answer.code == ResponseCode.SUCCESS:
        return True
    return False if "no haSecretFile" in (answer.remark or "") else None


def _shares_secret(address: str, secret: bytes) -> bool | None:
    """Prove a secret with a request that asks for nothing, and return whether the broker accepts the proof."""
    from secrets import token_bytes  # noqa: PLC0415  # not for --help

    from tandemq.broker.kernel.member_requests import ROLES  # noqa: PLC0415
    from tandemq.cli.support.tls import client_tls  # noqa: PLC0415
    from tandemq.client.connection import BlockingConnection  # noqa: PLC0415
    from tandemq.codec import proofs  # noqa: PLC0415
    from tandemq.model.command import Command  # noqa: PLC0415

    with BlockingConnection(address, tls=client_tls()) as opened:
        challenge = opened.request(Command(RequestCode.TANDEM_CHALLENGE)).fields.get(proofs.CHALLENGE, "")
        fields = {"offset": "-1", "size": "0", "before": "0", "behind": "0", proofs.CHALLENGE: challenge}
        fields[proofs.NONCE] = proofs.to_text(token_bytes(proofs.NONCE_BYTES))
        command = Command(RequestCode.TANDEM_LOG_RECORDS, fields=fields)
        fields[proofs.PROOF] = proofs.to_text(proofs.request_proof(ROLES, secret, command))
        code = opened.request(command).code
    # The range is invalid on purpose: a broker says so once it has accepted the proof.
    return {ResponseCode.INVALID_PARAMETER: True, ResponseCode.NO_PERMISSION: False}.get(ResponseCode(code))


# Checks.


def cluster_findings(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Check a cluster."""
    yield from _name_servers(facts)
    is_answered = any(not isinstance(found, str) for found in facts.name_servers.values())
    if facts.missing and (is_answered or not facts.name_servers):
        yield problem("brokers", "the cluster", facts.missing, facts.missing_todo)
    for group in facts.groups:
        yield from _health(group, facts.rows[group.name])
    for text in open_warnings(facts.groups, facts.openings):
        yield warning("access", "the cluster", text, "see docs/reference/access.md, or listen on 127.0.0.1 only")
    for member in facts.members:
        yield from _reachable(member, list(facts.name_servers))
        yield from _clock(member)
    yield from _secrets(facts.members)
    yield from _versions(facts)


def _name_servers(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    tables = {address: found for address, found in facts.name_servers.items() if not isinstance(found, str)}
    for address, found in facts.name_servers.items():
        if isinstance(found, str):
            yield problem("name-server", address, found, "start it, correct its address, or open its port")
        else:
            yield ok("name-server", address, f"answers; registered: {counted(len(found), 'broker')}")
    everywhere = frozenset().union(*tables.values())
    for address, table in tables.items():
        if everywhere - table:
            text = f"{', '.join(sorted(everywhere - table))} registered at other name servers only"
            yield warning("name-server", address, text, "give all brokers the same namesrvAddr")


def _health(group: Group, rows: Rows) -> Iterator[DoctorFinding]:
    faults = faults_of(group, rows)
    for fault in faults:
        yield problem("health", group.name, fault, f"tandemq ha status --broker {group.name} shows details")
    if not faults:
        yield ok("health", group.name, f"healthy, {counted(len(rows), 'broker')}")


def _reachable(member: CheckedMember, name_servers: list[str]) -> Iterator[DoctorFinding]:
    if member.error:
        text = f"{member.address} is advertised, and does not answer from here: {member.error}"
        yield problem("address", member.name, text, "start it, open the port, or set brokerIP1 to a reachable address")
    else:
        yield ok("address", member.name, f"{member.address} answers")
    yield from advertised_findings(member.name, host_of(member.address), name_servers, "clients")


def _clock(member: CheckedMember) -> Iterator[DoctorFinding]:
    if member.clock_ms is None:
        return
    least, most = member.clock_ms
    by_ms = max(least, -most, 0.0)
    if by_ms < CLOCK_WARNING_MS:
        yield ok("clock", member.name, "its clock agrees with this machine's within 2 s")
        return
    text = f"its clock is at least {by_ms / 1000:.0f} s {'ahead of' if least > 0 else 'behind'} this machine's"
    make: Callable[..., DoctorFinding] = problem if by_ms >= CLOCK_PROBLEM_MS else warning
    yield make("clock", member.name, text, "synchronise both clocks with chrony or systemd-timesyncd")


def _secrets(members: Sequence[CheckedMember]) -> Iterator[DoctorFinding]:
    for group in dict.fromkeys(member.group for member in members):
        of_group = [member for member in members if member.group == group]
        without = [member.name for member in of_group if member.has_secret is False]
        having = [member.name for member in of_group if member.has_secret]
        if without and having:
            text = f"members with one: {', '.join(having)}; without: {', '.join(without)}"
            yield problem("secret", f"haSecretFile of {group}", text, "give all members the same file")
        elif having:
            yield ok("secret", f"haSecretFile of {group}", f"members with one: {', '.join(having)}")
    for member in members:
        if member.shares_secret is False:
            text = "it does not accept the secret of --config: one of the files is another one"
            yield problem("secret", member.name, text, "give all members of the group the same haSecretFile")
        elif member.shares_secret:
            yield ok("secret", member.name, "it has the secret of --config")
        if member.refused:
            text = f"it has refused {counted(member.refused, 'peer')} since its start"
            yield warning("secret", member.name, text, "its log has their addresses, and why")


def _versions(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    found = {"this command": f"TandemQ {__version__}"}
    found |= {f"name server {address}": f"TandemQ {version}" for address, version in facts.versions.items()}
    found |= {member.name: member.version for member in facts.members if member.version}
    text = "; ".join(f"{who}: {version}" for who, version in found.items())
    if len(set(found.values())) == 1:
        yield ok("version", "the cluster", text)
    else:
        todo = "install the same version everywhere, unless an upgrade is in progress or brokers are RocketMQ's"
        yield warning("version", "the cluster", text, todo)
