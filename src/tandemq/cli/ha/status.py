"""`tandemq ha status`: how replication stands, and, of groups with a registry, who may do what, since when, and why.

Source: docs/guides/operations.md, "Replication"; docs/internals/failover.md.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from tandemq.cli.ha.health import faults_of, registry_trouble, verdict
from tandemq.cli.ha.scrub import damage_rows, health_columns, show_damages, try_log_health
from tandemq.cli.support.client_session import namesrv_option
from tandemq.cli.support.members import (
    Found,
    Group,
    address_option,
    ask_broker,
    ask_json,
    asked_at,
    groups_of,
    registry_option,
)
from tandemq.cli.support.output import json_option, show_json, show_rows, time_text
from tandemq.coordination.lease import CHECKS, LEASE_MS
from tandemq.errors import NetworkError, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

EXIT_FAILED = 1


@click.command()
@click.option("--broker", help="Of this broker group only.")
@address_option
@registry_option
@namesrv_option
@json_option
def status(
    broker: str | None, addresses: tuple[str, ...], registry: str | None, name_servers: str, as_json: bool
) -> int:
    """Show who may read and write and why, roles, log ends, lag, the two ends of each link, and damage in logs.

    The first line says whether all is well, by the conditions of `tandemq ha check`; the exit code does not. Exit code
    1: no broker was found, or one that was asked with --address does not tell anything.
    """
    asked = asked_at(addresses)
    if asked or not addresses:
        _show(groups_of(name_servers, registry, broker, asked), as_json=as_json)
    return EXIT_FAILED if len(asked) < len(addresses) else 0


def _show(groups: list[Group], *, as_json: bool) -> None:
    by_group = {group.name: group_rows(group) for group in groups}
    rows = [row for of_group in by_group.values() for row in of_group]
    if as_json:
        show_json(rows)
        return
    faults = {group.name: faults_of(group, by_group[group.name]) for group in groups}
    click.echo(f"{verdict(faults, len(rows))}\n")
    links = [{"broker": row["broker"]} | link for row in rows for link in row.pop("slaves")]
    damages = [damage for row in rows for damage in damage_rows(row["broker"], row["id"], row.pop("log"))]
    for row in rows:
        del row["failover"], row["registered"]
    show_rows(rows, as_json=False)
    if links:
        click.echo("\nAs the masters see their slaves:\n")
        show_rows(links, as_json=False, empty="")
    for group in groups:
        if group.has_registry:
            _show_group(group)
    show_damages(damages)


def group_rows(group: Group) -> list[dict[str, Any]]:
    """Every member of a group: what it says of itself, its log and its links, and whoever is away; by id."""
    rows = [_row(found) for found in group.members]
    master = group.master
    end = next((row["logEnd"] for row in rows if master is not None and row["address"] == master.address), None)
    if master is None and not group.has_registry:  # a Java group, or a master without an answer
        end = next((row["logEnd"] for row in rows if row["id"] == 0), None)
    for row in rows:
        is_master = row["address"] == master.address if master is not None else row["id"] == 0
        own = row["logEnd"]
        row["lagBytes"] = max(0, end - own) if not is_master and end is not None and own is not None else None
    gone = [
        {**_empty(group.name, broker_id, ""), "state": "away"}
        for broker_id in group.missing
        if all(row["id"] != broker_id for row in rows)
    ]
    return sorted(rows + gone, key=lambda row: row["id"])


def _empty(broker: str, broker_id: int, address: str) -> dict[str, Any]:
    return {
        "broker": broker,
        "id": broker_id,
        "role": "",
        "address": address,
        "state": "no answer",
        "logStart": None,
        "logEnd": None,
        "lagBytes": None,
        "slavesInSync": None,
        "refused": None,
        "secured": None,
        "lastReadS": None,
        "lastWriteS": None,
        "slaves": [],
        "log": None,
        **health_columns(None),
        "registered": False,
        "failover": None,
    }


def _row(member: Found) -> dict[str, Any]:
    row = _empty(member.broker, member.broker_id, member.address)
    row["registered"] = member.is_registered
    if member.has_registry:
        row["failover"] = member.standing
    try:
        answer = ask_broker(member.address, RequestCode.TANDEM_PEER_INFO)
        if answer.code == ResponseCode.SUCCESS:
            row |= {"role": answer.fields["role"], "state": "answers"}
            row |= {"logStart": int(answer.fields["logStart"]), "logEnd": int(answer.fields["logEnd"])}
        else:
            row |= {"role": "SLAVE" if member.broker_id else "MASTER", "state": "answers; no TandemQ broker"}
            row |= _java_log(member)
        row |= _links(member.address)
        row["log"] = try_log_health(member.address)
        row |= health_columns(row["log"])
    except NetworkError:
        return row
    return row


def _java_log(member: Found) -> dict[str, int]:
    table = ask_json(member.address, RequestCode.GET_BROKER_RUNTIME_INFO).get("table", {})
    return {"logStart": int(table.get("commitLogMinOffset", 0)), "logEnd": int(table.get("commitLogMaxOffset", 0))}


def _links(address: str) -> dict[str, Any]:
    """What a broker tells of its replication links; nothing if it does not know the question."""
    try:
        told = ask_json(address, RequestCode.GET_BROKER_HA_STATUS)
    except RemoteError:
        return {}
    if told.get("master"):
        slaves = [_slave_link(link) for link in told.get("haConnectionInfo") or []]
        return {
            "slavesInSync": int(told.get("inSyncSlaveNums", 0)),
            "slaves": slaves,
            "refused": told.get("refusedTimes"),
        }
    own = told.get("haClientRuntimeInfo") or {}
    is_copying = bool(own.get("activated"))
    return {
        "state": "copies" if is_copying else "has no link to its master",
        "refused": told.get("refusedTimes"),
        "secured": _secured(own) if is_copying else None,
        **_ages(own),
    }


def _secured(link: dict[str, Any]) -> str | None:
    """What protects a link; None if that is not told, as by a Java broker."""
    if "authenticated" not in link:
        return None
    found = ["secret"] if link["authenticated"] else []
    return " ".join(found + [str(link["tls"])] * bool(link["tls"])) or "open"


def _slave_link(link: dict[str, Any]) -> dict[str, Any]:
    known = int(link.get("brokerId", -1)) >= 0
    return {
        "slave": int(link["brokerId"]) if known else None,
        "address": str(link.get("addr", "")),
        "ackedOffset": int(link.get("slaveAckOffset", 0)),
        "behindBytes": int(link.get("diff", 0)),
        "inSync": bool(link.get("inSync")),
        "secured": _secured(link),
        **_ages(link),
    }


def _ages(link: dict[str, Any]) -> dict[str, float | None]:
    """How many seconds ago one end of a link last read and last wrote, where it is told."""
    now_ms = time.time() * 1000
    return {
        column: round(max(0.0, now_ms - link[name]) / 1000, 1) if link.get(name) else None
        for column, name in (("lastReadS", "lastReadTimestamp"), ("lastWriteS", "lastWriteTimestamp"))
    }


# Groups with a registry.


def _show_group(group: Group) -> None:
    """Who says what of the group: first what its record says, then each member."""
    knowing = [found.standing for found in group.members if found.has_registry and found.standing is not None]
    first = max(knowing, key=lambda standing: standing["epoch"])
    click.echo(f"\n{group.name}: {_record_text(first)}")
    click.echo("\n".join(times_texts(knowing)) + "\n")
    master = group.master
    lags = {told["brokerId"]: told for told in (master.standing or {}).get("members", ())} if master is not None else {}
    show_rows([_part(found, lags.get(found.broker_id, {})) for found in group.members], as_json=False)
    for broker_id in group.missing:
        click.echo(f"broker {broker_id} is a member and does not live, or does not answer")
    for found in group.members:
        standing = found.standing or {}
        for trouble in filter(None, (standing.get("trouble"), registry_trouble(standing))):
            click.echo(f"broker {found.broker_id}: {trouble}")


def _record_text(standing: Mapping[str, Any]) -> str:
    if standing["mode"] is None:
        return "the group's configuration has not been read from the registry"
    in_sync = ", ".join(map(str, standing["inSync"])) or "nobody"
    sets, reason = [f"in sync {in_sync}"], standing["reason"]
    if standing["askedInSync"] is not None:
        sets.append(f"being changed to {', '.join(map(str, standing['askedInSync']))}")
    reader = f", read from broker {standing['reader']}" if standing["reader"] != standing["master"] else ""
    last = "" if reason == f"in sync: {in_sync}" else f"; {reason}"
    return (
        f"mode {standing['mode']}, epoch {standing['epoch']}, master {standing['master']}{reader}, "
        f"{', '.join(sets)}{last}"
    )


def times_texts(standings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The times that members act by; a line for each member if they differ. The registry has the last word on a
    session, and lease and looks follow it."""
    texts = {int(standing["brokerId"]): _times_text(standing) for standing in standings}
    alike = list(dict.fromkeys(texts.values()))
    return alike if len(alike) == 1 else [f"broker {broker_id}: {text}" for broker_id, text in sorted(texts.items())]


def _times_text(standing: Mapping[str, Any]) -> str:
    session_ms, lease_ms, checks = (int(standing[key]) for key in ("sessionMs", "leaseMs", "checks"))
    session = f"session {session_ms / 1000:g} s" if session_ms else "no session yet"
    lease = f"lease {lease_ms / 1000:g} s" + f" instead of {LEASE_MS / 1000:g} s" * (lease_ms != LEASE_MS)
    return f"{session}, {lease}, {checks} looks" + f" instead of {CHECKS}" * (checks != CHECKS)


def _part(found: Found, lag: Mapping[str, Any]) -> dict[str, Any]:
    standing = found.standing or {}
    may = " and ".join(what for what, key in (("read", "mayRead"), ("write", "mayWrite")) if standing.get(key))
    lease_ms = standing.get("leaseLeftMs")
    is_serving = standing.get("stage") in ("serving", "handing over")
    return {
        "id": found.broker_id,
        "stage": standing.get("stage", "no answer"),
        "may": may or "nothing",
        "since": time_text(standing.get("sinceMs", 0)),
        "leaseS": "" if not is_serving else "not needed" if lease_ms is None else f"{lease_ms / 1000:.1f}",
        "lagBytes": lag.get("lagBytes"),
        "lagS": None if lag.get("lagMs") is None else lag["lagMs"] / 1000,
        "registry": standing.get("registry", ""),
        "registered": found.is_registered,
        "why": standing.get("why", ""),
    }
