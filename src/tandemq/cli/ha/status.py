"""`tandemq ha status`: replication of all groups; for groups with a registry also roles, permissions and reasons.

Source: docs/guides/operations.md, "Replication"; docs/internals/failover.md.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from tandemq.cli.ha.health import faults_of, registry_problem, verdict
from tandemq.cli.ha.scrub import damage_rows, health_columns, show_damages, try_log_health
from tandemq.cli.ha.shards import machine_rows, roles_texts
from tandemq.cli.support.exit_codes import EXIT_FAILED
from tandemq.cli.support.members import (
    FoundBroker,
    Group,
    GroupSearch,
    ask_broker,
    ask_json,
    asked_at,
    groups_of,
    search_options,
)
from tandemq.cli.support.name_completion import complete_brokers
from tandemq.cli.support.output import echo_wrapped, show_json, show_rows, table_options, time_text
from tandemq.coordination.lease import CHECKS, SESSION_MS, timing
from tandemq.errors import NetworkError, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

_INDENT = "  "
_LESS = (
    "lastWriteS",
    "lastReadS",
    "verifiedH",
    "logStart",
    "refused",
    "secured",
    "repaired",
    "slavesInSync",
    "damaged",
    "address",
)
"""Columns that a narrow terminal need not show; damaged ranges have a table of their own."""


@click.command()
@click.option("--broker", shell_complete=complete_brokers, help="Only this broker group.")
@click.option("--shards", is_flag=True, help="Show each shard of a machine, not one line for all of them.")
@search_options
@table_options
def status(broker: str | None, shards: bool, search: GroupSearch, as_json: bool) -> int:
    """Show roles, permissions with reasons, log ends, lag, both ends of each replication connection, and log damage.

    The first line is the verdict of `tandemq ha check`; it does not affect the exit code. Exit code 1: no broker was
    found, or a broker given with --address does not answer.
    """
    asked = asked_at(search.addresses)
    if asked or not search.addresses:
        _show(groups_of(search.name_servers, search.registry, broker, asked), has_shards=shards, as_json=as_json)
    return EXIT_FAILED if len(asked) < len(search.addresses) else 0


def _show(groups: list[Group], *, has_shards: bool, as_json: bool) -> None:
    by_group = {group.name: group_rows(group) for group in groups}
    rows = [row for of_group in by_group.values() for row in of_group]
    if as_json:
        show_json(rows)
        return
    faults = {group.name: faults_of(group, by_group[group.name]) for group in groups}
    echo_wrapped(verdict(faults, len(rows)))
    click.echo()
    names = [group.shard_of for group in groups]
    joined = {name for name in names if name and names.count(name) > 1 and not has_shards}
    links = [
        {"broker": row["broker"]} | link for row in rows for link in row.pop("slaves") if row["shardOf"] not in joined
    ]
    damages = [damage for row in rows for damage in damage_rows(row["broker"], row["id"], row.pop("log"))]
    for row in rows:
        del row["failover"], row["registered"], row["refusing"]
    rows = machine_rows(rows) if joined else rows
    for row in rows:
        del row["shardOf"]
    show_rows(rows, as_json=False, less=_LESS)
    if links:
        click.echo("\nAs the masters see their slaves:\n")
        show_rows(links, as_json=False, less=("lastWriteS", "lastReadS", "secured", "ackedOffset"))
    for group in groups:
        if group.has_registry and group.shard_of not in joined:
            _show_group(group)
    for text in roles_texts(groups):
        click.echo()
        echo_wrapped(text)
    if joined:
        click.echo("\n--shards shows each shard.")
    show_damages(damages)


def group_rows(group: Group) -> list[dict[str, Any]]:
    """Return one row per member of a group, missing members included, sorted by id."""
    rows = [_row(found) for found in group.members]
    master = group.master
    end = next((row["logEnd"] for row in rows if master is not None and row["address"] == master.address), None)
    if master is None and not group.has_registry:  # a Java group, or a master that does not answer
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
    return [row | {"shardOf": group.shard_of} for row in sorted(rows + gone, key=lambda row: row["id"])]


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
        "refusing": None,
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


def _row(member: FoundBroker) -> dict[str, Any]:
    row = _empty(member.broker, member.broker_id, member.address)
    row["registered"] = member.is_registered
    if member.has_registry:
        row["failover"] = member.failover
    try:
        answer = ask_broker(member.address, RequestCode.TANDEM_PEER_INFO)
        if answer.code == ResponseCode.SUCCESS:
            row |= {"role": answer.fields["role"], "state": "answers"}
            row |= {"logStart": int(answer.fields["logStart"]), "logEnd": int(answer.fields["logEnd"])}
            row["refusing"] = answer.fields.get("refusing") or None
        else:
            row |= {"role": "SLAVE" if member.broker_id else "MASTER", "state": "answers; no TandemQ broker"}
            row |= _java_log(member)
        row |= _links(member.address)
        row["log"] = try_log_health(member.address)
        row |= health_columns(row["log"])
    except NetworkError:
        return row
    return row


def _java_log(member: FoundBroker) -> dict[str, int]:
    table = ask_json(member.address, RequestCode.GET_BROKER_RUNTIME_INFO).get("table", {})
    return {"logStart": int(table.get("commitLogMinOffset", 0)), "logEnd": int(table.get("commitLogMaxOffset", 0))}


def _links(address: str) -> dict[str, Any]:
    """Return columns on a broker's replication connections; none if it does not know the request."""
    try:
        status = ask_json(address, RequestCode.GET_BROKER_HA_STATUS)
    except RemoteError:
        return {}
    if status.get("master"):
        slaves = [_slave_link(link) for link in status.get("haConnectionInfo") or []]
        return {
            "slavesInSync": int(status.get("inSyncSlaveNums", 0)),
            "slaves": slaves,
            "refused": status.get("refusedTimes"),
        }
    own = status.get("haClientRuntimeInfo") or {}
    is_copying = bool(own.get("activated"))
    return {
        "state": "copies" if is_copying else "has no link to its master",
        "refused": status.get("refusedTimes"),
        "secured": _secured(own) if is_copying else None,
        **_ages(own),
    }


def _secured(link: dict[str, Any]) -> str | None:
    """Return the protection of a replication connection; None if unknown, as with a Java broker."""
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
    """Return the seconds since one end of a connection last read and last wrote, None where unknown."""
    now_ms = time.time() * 1000
    return {
        column: round(max(0.0, now_ms - link[name]) / 1000, 1) if link.get(name) else None
        for column, name in (("lastReadS", "lastReadTimestamp"), ("lastWriteS", "lastWriteTimestamp"))
    }


# Groups with a registry.


def _show_group(group: Group) -> None:
    """Print a group: its record in the registry, then the view of each member."""
    knowing = [found.failover for found in group.members if found.has_registry and found.failover is not None]
    first = max(knowing, key=lambda failover: failover["epoch"])
    click.echo()
    echo_wrapped(f"{group.name}: {_record_text(first)}", indent=_INDENT)
    for text in times_texts(knowing):
        echo_wrapped(text, indent=_INDENT)
    click.echo()
    master = group.master
    lags = (
        {member["brokerId"]: member for member in (master.failover or {}).get("members", ())}
        if master is not None
        else {}
    )
    show_rows(
        [_part(found, lags.get(found.broker_id, {})) for found in group.members],
        as_json=False,
        less=("registered", "lagBytes", "leaseS", "lagS", "registry"),
    )
    for broker_id in group.missing:
        click.echo(f"broker {broker_id} is a member and is not live, or does not answer")
    for found in group.members:
        failover = found.failover or {}
        for problem in filter(None, (failover.get("trouble"), registry_problem(failover), failover.get("warning"))):
            echo_wrapped(f"broker {found.broker_id}: {problem}", indent=_INDENT)


def _record_text(failover: Mapping[str, Any]) -> str:
    if failover["mode"] is None:
        return "the group's configuration has not been read from the registry"
    in_sync = ", ".join(map(str, failover["inSync"])) or "none"
    sets, reason = [f"in sync {in_sync}"], failover["reason"]
    if failover["askedInSync"] is not None:
        sets.append(f"being changed to {', '.join(map(str, failover['askedInSync']))}")
    reader = f", read from broker {failover['reader']}" if failover["reader"] != failover["master"] else ""
    suffix = "" if reason == f"in sync: {in_sync}" else f"; {reason}"
    return (
        f"mode {failover['mode']}, epoch {failover['epoch']}, master {failover['master']}{reader}, "
        f"{', '.join(sets)}{suffix}"
    )


def times_texts(failovers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the timeouts of the members: one line if all are equal, else a line per member.

    The registry decides the session timeout; lease and number of liveness checks follow from it.
    """
    texts = {int(failover["brokerId"]): _times_text(failover) for failover in failovers}
    distinct = list(dict.fromkeys(texts.values()))
    if len(distinct) == 1:
        return distinct
    return [f"broker {broker_id}: {text}" for broker_id, text in sorted(texts.items())]


def _times_text(failover: Mapping[str, Any]) -> str:
    session_ms, lease_ms, checks = (int(failover[key]) for key in ("sessionMs", "leaseMs", "checks"))
    session = f"session {session_ms / 1000:g} s" if session_ms else "no session yet"
    usual_ms = timing(SESSION_MS).lease_ms
    lease = f"lease {lease_ms / 1000:g} s" + f" instead of {usual_ms / 1000:g} s" * (lease_ms != usual_ms)
    return f"{session}, {lease}, {checks} checks" + f" instead of {CHECKS}" * (checks != CHECKS)


def _part(found: FoundBroker, lag: Mapping[str, Any]) -> dict[str, Any]:
    failover = found.failover or {}
    may = " and ".join(what for what, key in (("read", "mayRead"), ("write", "mayWrite")) if failover.get(key))
    lease_ms = failover.get("leaseLeftMs")
    is_serving = failover.get("stage") in ("serving", "handing over")
    return {
        "id": found.broker_id,
        "stage": failover.get("stage", "no answer"),
        "may": may or "nothing",
        "since": time_text(failover.get("sinceMs", 0)),
        "leaseS": "" if not is_serving else "not needed" if lease_ms is None else f"{lease_ms / 1000:.1f}",
        "lagBytes": lag.get("lagBytes"),
        "lagS": None if lag.get("lagMs") is None else lag["lagMs"] / 1000,
        "registry": failover.get("registry", ""),
        "registered": found.is_registered,
        "why": failover.get("why", ""),
    }
